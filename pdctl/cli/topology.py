"""`pdctl topology`: check a file, show it resolved, print its schema."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

from pdctl.cli.parameters import argument, option
from pdctl.errors import ExitCode, TopologyError
from pdctl.render import diagnostics, term
from pdctl.render.term import as_json
from pdctl.topology import resolve

if TYPE_CHECKING:
    from pdctl.topology.diagnostic import Diagnostic


class CheckForm(str, Enum):
    TEXT = "text"
    JSON = "json"


class ShownForm(str, Enum):
    YAML = "yaml"
    JSON = "json"


class Schema(str, Enum):
    JSON = "json"
    MARKDOWN = "markdown"


Overlays = Annotated[
    list[str] | None, option("--file", "-F", metavar="FILE", help="Overlay merged over the file; repeatable.")
]
Sets = Annotated[list[str] | None, option("--set", metavar="PATH=VALUE", help="One value of the topology; repeatable.")]


def check(
    files: Annotated[list[str], argument(metavar="FILE...", help="Topology files or names of shipped ones.")],
    overlays: Overlays = None,
    sets: Sets = None,
    output: Annotated[CheckForm, option("--output", "-o", help="Form of the answer.")] = CheckForm.TEXT,
) -> ExitCode:
    """Say whether topologies are right, or everything that is wrong with them.

    \b
    pdctl topology check topologies/*.yaml
    pdctl topology check base.yaml -F site.yaml --set roles.decode.instances=2
    pdctl topology check 2p1d -o json
    """
    found: list[Diagnostic] = []
    stream = term.out()
    for name in files:
        try:
            paths = [resolve.topology_file(each) for each in (name, *(overlays or []))]
            topology = resolve.load(paths, sets or [])
        except TopologyError as error:
            found += diagnostics.of(error)
            continue
        if output is CheckForm.TEXT:
            shape = f"{topology.prefill.instances} prefill, {topology.decode.instances} decode, {topology.engine.kind}"
            stream.write(f"{paths[0]}: {stream.style('ok', 'green')} ({shape})")
    if output is CheckForm.JSON:
        stream.write(diagnostics.to_json(found))
    elif found:
        diagnostics.show(found, stream)
        stream.write("1 problem" if len(found) == 1 else f"{len(found)} problems")
    return ExitCode.USAGE if found else ExitCode.OK


def show(
    file: Annotated[str, argument(metavar="FILE", help="Topology file or the name of a shipped one.")],
    overlays: Overlays = None,
    sets: Sets = None,
    output: Annotated[ShownForm, option("--output", "-o", help="Form of the answer.")] = ShownForm.YAML,
) -> None:
    """Print a topology as pdctl understands it: merged, variables and defaults filled in.

    \b
    pdctl topology show 2p1d
    pdctl topology show base.yaml -F site.yaml -o json
    """
    from pdctl.topology.export import document, to_yaml

    values = resolve.resolve([resolve.topology_file(each) for each in (file, *(overlays or []))], sets or []).values
    if output is ShownForm.YAML:
        text = to_yaml(values).rstrip()
    else:
        text = as_json({"schema": "pdctl.topology/1", "topology": document(values)})
    term.document().write(text)


def schema(
    output: Annotated[Schema, option("--output", "-o", help="JSON Schema, or the field reference.")] = Schema.JSON,
) -> None:
    """Print the JSON Schema of topology files, or the field reference as Markdown.

    \b
    pdctl topology schema > pdctl.schema.json
    """
    from pdctl.topology.export import json_schema, markdown

    if output is Schema.MARKDOWN:
        term.out().write(markdown().rstrip())
    else:
        term.out().write(as_json(json_schema()))


SUBVERBS = (check, show, schema)
