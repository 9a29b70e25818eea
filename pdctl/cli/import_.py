"""`pdctl import`: turn other people's start scripts, compose files, recipes and manifests into a topology."""

from __future__ import annotations

import os
import re
from pathlib import Path  # noqa: TC003 - Typer evaluates the annotations
from typing import Annotated

from pdctl import user_files
from pdctl.cli.parameters import argument, option
from pdctl.errors import ExitCode, UsageError
from pdctl.render import term

VARIABLE = re.compile(r"(\w+)=(.*)", re.DOTALL)
What = argument(metavar="FILE...", help="Scripts, compose file, srt-slurm recipe, manifests; - is stdin.")


def command(
    files: Annotated[list[str], What],
    output: Annotated[
        Path | None, option("--output", "-o", metavar="FILE", help="Write the topology there, not to stdout.")
    ] = None,
    variables: Annotated[
        list[str] | None, option("--var", metavar="NAME=VALUE", help="A variable of the files; repeatable.")
    ] = None,
    name: Annotated[
        str | None, option("--name", metavar="NAME", help="Name of the topology, if not the file's.")
    ] = None,
    force: Annotated[bool, option("--force", help="Overwrite the file of -o.")] = False,
    strict: Annotated[bool, option("--strict", help="Exit 1 if anything looks wrong or is left out.")] = False,
    quiet: Annotated[bool, option("--quiet", "-q", help="No notes.")] = False,
) -> ExitCode:
    """Turn a deployment that others wrote into a topology, and say what could not come along.

    \b
    pdctl import prefill.sh decode.sh router.sh -o topology.yaml
    pdctl import docker-compose.yml | pdctl topology check -
    pdctl import lws.yaml services.yaml --var NAMESPACE=serving
    pdctl import recipes/h100/1k1k.yaml --strict

    The topology goes to stdout, notes to stderr: what looks wrong in the files, what was left out, changed or assumed.
    Exit code 1: no plan can run it as it stands.
    """
    from pdctl.imports.importer import import_files  # imported late: --help does not need it
    from pdctl.render import diagnostics

    if str(output) == "-":
        output = None
    if output is not None and output.exists() and not force:
        raise UsageError(f"{output} exists already", "add --force to overwrite it, or name another file")
    made = import_files(files, _variables(variables or []), name, os.environ)
    if output is None:
        term.document().write(made.text.rstrip())
    else:
        try:
            user_files.write_whole(output, made.text)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"{output} cannot be written: {reason}", "name a file that can be") from None
    if not quiet:
        diagnostics.show_notes(made.notes, made.summary, str(output) if output is not None else "", term.err())
    return ExitCode.OK if made.feasible and not (strict and made.incomplete) else ExitCode.FINDINGS


def _variables(given: list[str]) -> dict[str, str]:
    found = {}
    for each in given:
        match = VARIABLE.fullmatch(each)
        if match is None:
            raise UsageError(f"--var {each} is no NAME=VALUE", "write --var MODEL=Qwen/Qwen3-32B")
        found[match[1]] = match[2]
    return found
