"""`pdctl dialect`: the log lines, flags and variables of engines and routers, and which dialect a log speaks."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pdctl import user_files
from pdctl.cli.log_sources import read_speech
from pdctl.cli.parameters import argument, option
from pdctl.engines.identify import identify
from pdctl.engines.row_matching import adapter, adapters, survey
from pdctl.engines.versions import resolve
from pdctl.errors import ExitCode, UsageError
from pdctl.render import dialect as render
from pdctl.render import term
from pdctl.suggestions import similar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.engines.base import Row
    from pdctl.logs.source import Log

NAMES = tuple(str(one.speaker) for one in adapters())


class DialectForm(str, Enum):
    TEXT = "text"
    JSON = "json"


class FlagPackage(str, Enum):
    SGLANG = "sglang"
    SGLANG_ROUTER = "sglang-router"
    SMG = "smg"


class RowRole(str, Enum):
    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"


Output = Annotated[DialectForm, option("--output", "-o", help="Form of the answer.")]
Dialects = Annotated[
    Path | None,
    option(
        "--dialects", metavar="DIR", variable="PDCTL_DIALECTS",
        help="Directory of more rows (or $PDCTL_DIALECTS).",
    ),
]  # fmt: skip

Of = Annotated[str | None, argument(metavar="[V]", help="A release (default: the newest pdctl has read).")]
AlsoOf = Annotated[str | None, option("--version", metavar="V", help="The same.")]


def show(
    speaker: Annotated[
        str | None,
        argument(
            metavar="[SPEAKER]",
            help=f"Whose rows: {', '.join(NAMES)}; all if not given.",
        ),
    ] = None,
    version: Annotated[
        str | None, option("--version", metavar="V", help="Only what this release of SGLang writes.")
    ] = None,
    role: Annotated[RowRole | None, option("--role", help="Only what this role writes.")] = None,
    dialects: Dialects = None,
    output: Output = DialectForm.TEXT,
) -> None:
    """List the log lines pdctl understands: level, role, releases, what each proves, one example.

    \b
    pdctl dialect show sglang --version 0.5.18 --role prefill
    pdctl dialect show pdctl-router
    pdctl dialect show -o json
    """
    if speaker is not None and speaker not in NAMES:
        near = similar(speaker, NAMES)
        raise UsageError(
            f"no speaker {speaker!r}", f"did you mean {near[0]}?" if near else f"one of {', '.join(NAMES)}"
        )
    rows = [row for row in read_speech(dialects).rows if speaker is None or row.speaker == speaker]
    release = None if version is None else resolve(version)
    if release is not None:
        rows = [row for row in rows if not _dated(row) or row.span.holds(release.known)]
    if role is not None:
        rows = [row for row in rows if row.role in (role.value, "") and _writes(row, role)]
    stream = term.out()
    if output is DialectForm.JSON:
        stream.write(render.rows_json(rows))
        return
    if release is not None and release.note:
        term.err().write(f"note: {release.note}")
    render.rows(rows, stream)


def _dated(row: Row) -> bool:
    known = adapter(row.speaker)
    return known is not None and known.dated


def check(
    logs: Annotated[list[str], argument(metavar="LOG...", help="Files, directories, globs, or - for stdin.")],
    dialects: Dialects = None,
    unknown: Annotated[int, option("--unknown", min=0, metavar="N", help="Shapes of unknown lines to show.")] = 10,
    output: Output = DialectForm.TEXT,
) -> ExitCode:
    """Say which dialect each log speaks and why, and how many of its lines are known.

    Exit code 1: a log whose speaker could not be told.

    \b
    pdctl dialect check prefill-0.log decode-0.log router.log
    kubectl logs deploy/router | pdctl dialect check -
    pdctl dialect check logs/ -o json
    """
    from pdctl.logs.source import open_logs

    spoken = read_speech(dialects)
    opened = open_logs(logs, stdin=user_files.standard_input() if "-" in logs else None)
    found = [
        render.CheckedLog(log.instance, log.files, identify(_lines(log), spoken), survey(_lines(log), spoken))
        for log in opened
    ]
    stream = term.out()
    if output is DialectForm.JSON:
        stream.write(render.checked_json(found, unknown))
    else:
        render.checked(found, unknown, stream)
    return ExitCode.FINDINGS if any(each.identity.speaker is None for each in found) else ExitCode.OK


def flags(
    release: Of = None,
    version: AlsoOf = None,
    package: Annotated[FlagPackage, option("--package", help="Whose flags.")] = FlagPackage.SGLANG,
    output: Output = DialectForm.TEXT,
) -> None:
    """List the flags of one release of SGLang or of its routers, and since when and until when they exist.

    \b
    pdctl dialect flags 0.5.10
    pdctl dialect flags --version 0.5.22 -o json
    pdctl dialect flags --package sglang-router 0.3.1
    """
    _items("flags", release, version, output, package)


def env(release: Of = None, version: AlsoOf = None, output: Output = DialectForm.TEXT) -> None:
    """List the environment variables one release of SGLang reads, and since when and until when it does.

    \b
    pdctl dialect env 0.5.22
    pdctl dialect env --version 0.5.22 -o json
    """
    _items("env", release, version, output)


def _items(
    kind: str, given: str | None, version: str | None, output: DialectForm, package: FlagPackage = FlagPackage.SGLANG
) -> None:
    if given is not None and version is not None and given != version:
        raise UsageError(f"two releases are given: {given} and --version {version}", "give one of them")
    release = resolve(given if version is None else version, package.value)
    found = render.items(kind, release.known, package.value)
    stream = term.out()
    if release.note:
        term.err().write(f"note: {release.note}")
    if output is DialectForm.JSON:
        stream.write(render.items_json(kind, release, found, package.value))
        return
    render.items_text(kind, release, found, stream, package.value)


def _writes(row: Row, role: RowRole) -> bool:
    """A row without a role is written by both kinds of engine, never by a router."""
    return bool(row.role) or role is not RowRole.ROUTER


def _lines(log: Log) -> Iterator[bytes]:
    from pdctl.logs.blocks import LineNumbers
    from pdctl.logs.window import lines

    for part in log.parts:
        for raw in lines(part, 0, 1 << 62, LineNumbers(part)):
            yield raw.line


SUBVERBS = (show, check, flags, env)
