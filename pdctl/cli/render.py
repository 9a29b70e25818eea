"""`pdctl render`: a topology as files that another system runs (what answers look like is in pdctl/render)."""

from __future__ import annotations

from enum import Enum
from pathlib import Path  # noqa: TC003 - Typer evaluates the annotations
from typing import TYPE_CHECKING, Annotated

from pdctl import user_files
from pdctl.cli.parameters import argument, option
from pdctl.errors import UsageError
from pdctl.render import term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.manifests.write.objects import Object


class RenderFlavour(str, Enum):
    DISAGGREGATEDSET = "disaggregatedset"
    RBG = "rbg"
    LWS = "lws"


def kubernetes(
    topology: Annotated[str, argument(metavar="FILE|NAME", help="Topology file or the name of a shipped one.")],
    overlays: Annotated[
        list[str] | None, option("--file", "-F", metavar="FILE", help="Overlay merged over the file; repeatable.")
    ] = None,
    sets: Annotated[
        list[str] | None, option("--set", metavar="PATH=VALUE", help="One value of the topology; repeatable.")
    ] = None,
    flavour: Annotated[RenderFlavour | None, option(help="Kind of object; default targets.kubernetes.flavour.")] = None,
    output: Annotated[
        Path | None, option("--output", "-o", metavar="DIR", help="A file to each object, instead of a stream.")
    ] = None,
    version: Annotated[
        str | None, option("--kubernetes-version", metavar="1.30", help="Check against this release alone.")
    ] = None,
) -> None:
    """Print the manifests of a topology, checked against the schemas of Kubernetes and of the operators.

    \b
    pdctl render kubernetes qwen.yaml --set targets.kubernetes.image=lmsysorg/sglang:v0.5.23 | kubectl apply -f -
    pdctl render kubernetes qwen.yaml --flavour lws -o manifests/
    pdctl render kubernetes qwen.yaml --kubernetes-version 1.30
    """
    from pdctl.manifests import kubernetes_validation
    from pdctl.manifests.write import rendering
    from pdctl.topology import resolve

    versions = kubernetes_validation.VERSIONS if version is None else (kubernetes_validation.schema_version(version),)
    read = resolve.load([resolve.topology_file(each) for each in (topology, *(overlays or []))], sets or [])
    made = rendering.render(read, flavour.value if flavour is not None else None, versions)
    for caution in made.cautions:
        term.err().write(f"warning: {caution.message}")
    if output is None:
        write_stream(made.objects)
    else:
        _keep(made.objects, output)


def write_stream(objects: Sequence[Object]) -> None:
    from pdctl.manifests.write.objects import stream

    term.document().write(stream(objects).rstrip())


def _keep(objects: Sequence[Object], directory: Path) -> None:
    from pdctl.manifests.write.objects import document, file_name

    try:
        directory.mkdir(parents=True, exist_ok=True)
        for each in objects:
            user_files.write_whole(directory / file_name(each), document(each))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{error.filename or directory}: {reason}", "--output DIR, one that can be written to"
        ) from None
    term.err().write(f"{len(objects)} files in {directory}")


SUBVERBS = (kubernetes,)
