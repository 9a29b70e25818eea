"""Which logs a verb reads, and which period of them: RUN, PATH, `-`, `--since`, `--until`, `--tz`."""

from __future__ import annotations

import os
import shlex
import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.cli.parameters import option
from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple
from pdctl.render import term
from pdctl.render.trace import wording

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pdctl.engines.row_matching import Speech
    from pdctl.launch.launched import Launched
    from pdctl.launch.log_tail import StoppedInstance
    from pdctl.logs.library import Library
    from pdctl.logs.part import LogPart
    from pdctl.logs.source import Log
    from pdctl.render.term import Term
    from pdctl.trace.log_groups import LogGroup

Run = option("--run", metavar="RUN", help="Logs of this run of `pdctl launch`; RUN.1: an earlier one.")
Since = option("--since", metavar="TIME", help="Only lines since then: 2026-11-21T01:34:20, 01:34:20 or -10m.")
Until = option("--until", metavar="TIME", help="Only lines until then.")
Zone = option(
    "--tz",
    metavar="ZONE",
    help="Zone of the logs' clocks and of the times shown; default: inferred from the logs, else local.",
)
Dialects = option(
    "--dialects",
    metavar="DIR",
    variable="PDCTL_DIALECTS",
    help="Directory of more dialect rows (or $PDCTL_DIALECTS).",
)
Index = option("--index/--no-index", help="Keep the places of rooms for the next time.")
Verbose = option("--verbose", "-v", help="Say what was read, and how fast.")
OutputFile = option("--output-file", metavar="FILE", help="Write the answer there.")

QUIET = 1.0  # seconds before it shows
REDRAW = 0.1  # seconds
BAR = 24
DIRECTORIES = 24  # directories named in a note at most


class Sources(NamedTuple):
    """`names`: path → instance for the logs of a run; other files are named by their stem.

    `shown`: path → its name in answers if nobody typed it: a run's logs are `RUN/logs/router.log`.
    `lost`, `ended`, `stopped`, `unwatched`: see `pdctl.launch.log_tail.LogFiles`.
    """

    paths: tuple[str, ...]
    names: Mapping[str, str]
    shown: Mapping[str, str] = MappingProxyType({})
    lost: str = ""
    ended: str = ""
    stopped: tuple[StoppedInstance, ...] = ()
    unwatched: str = ""


class LogReading(NamedTuple):
    """The command line's options for reading logs; texts as typed."""

    since: str | None = None
    until: str | None = None
    tz: str | None = None
    dialects: Path | None = None
    indexed: bool = True


def sources(paths: Sequence[str], run: str | None) -> Sources:
    """The paths as typed; without any, the logs of the named run, of the only live one, or of the last to end."""
    if paths:
        if run is not None:
            raise UsageError("--run and PATH name two places", "give one of them")
        if paths.count("-") > 1:
            raise UsageError("`-` stands twice: stdin can be read once", "give it once")
        return Sources(tuple(paths), {})
    from pdctl.launch import launched  # imported late: needed only for the logs of a run
    from pdctl.launch.run_directory import home
    from pdctl.launch.run_record import OVER

    found = launched.find_launched(home(os.environ), run, OVER)
    files = found.log_files()
    if run is None:
        tell_choice(found, read=True, stopped=[each.name for each in files.stopped])
    return Sources(tuple(files.names), *files)


def tell_choice(found: Launched, read: bool = False, stopped: Sequence[str] = ()) -> None:
    """Where nobody named a run: print to stderr which others ended badly since `found` was launched.

    read: its logs are read, and the answer need not name it: print its name and state too, and which of its instances
    are `stopped`.
    """
    from pdctl.launch.run_choice import describe_ended, ended_badly_since
    from pdctl.launch.run_directory import RunDir, home
    from pdctl.launch.run_record import OVER  # imported late: needed only where no run is named

    if found.deployment is None:
        return
    root = home(os.environ)
    run = RunDir.of(root, found.name).look()
    if read:
        state = describe_ended(run) if run.condition in OVER else f"is {run.condition.value}"
        if stopped:
            state += (
                f", but {', '.join(stopped)} {'are' if len(stopped) > 1 else 'is'} stopped: pdctl status {run.name}"
            )
        term.err().write(f"note: the logs are those of run `{run.name}`, which {state}")
    for other in ended_badly_since(root, run):
        term.err().write(f"note: run `{other.name}` {describe_ended(other)}; pdctl diagnose --run {other.name}")


def earlier(chosen: Sources) -> list[str]:
    """The earlier runs (NAME.1, NAME.2, …) of the name whose logs were chosen, the latest first."""
    shown = next(iter(chosen.shown.values()), "")
    if not shown:
        return []
    from pdctl.launch.run_directory import earlier_runs, home  # imported late: needed only where a room is not found

    name = shown.split("/")[0]
    return [f"{name}.{number}" for number in sorted(earlier_runs(home(os.environ) / "runs" / name), reverse=True)]


def opened(chosen: Sources) -> tuple[Log, ...]:
    from pdctl import user_files
    from pdctl.logs.source import open_logs

    stdin = user_files.standard_input() if "-" in chosen.paths else None
    logs = open_logs(chosen.paths, names=chosen.names, stdin=stdin)
    if chosen.lost and logs:
        logs = (logs[0]._replace(notes=(*logs[0].notes, chosen.lost)), *logs[1:])
    if not chosen.shown:
        return logs
    return tuple(log._replace(parts=tuple(_called(part, chosen.shown) for part in log.parts)) for log in logs)


def _called(part: LogPart, shown: Mapping[str, str]) -> LogPart:
    return part._replace(origin=shown.get(part.path, part.origin))


def library(logs: tuple[Log, ...], reading: LogReading, progress: Callable[[int, int], None] | None = None) -> Library:
    """The logs, limited to the period that was asked for, if any. Raise UsageError for an invalid period."""
    from pdctl.logs.library import Library
    from pdctl.logs.window import read_period, timezone

    zone = timezone(reading.tz)
    spoken = read_speech(reading.dialects)
    whole = Library(logs, speech=spoken, tz=zone, index=reading.indexed, progress=progress)
    if reading.since is None and reading.until is None:
        return whole
    since, until = read_period(reading.since, reading.until, zone, whole.last, whole.first)
    return Library(logs, speech=spoken, tz=zone, since=since, until=until, index=reading.indexed, progress=progress)


def read_speech(dialects: Path | None) -> Speech:
    """The rows by which lines are read: those of a directory, if one is given, before pdctl's own."""
    if dialects is None:
        from pdctl.engines.row_matching import speech

        return speech()
    from pdctl.engines.user_rows import extended_speech

    return extended_speech(dialects)


def tell_window(library: Library, reading: LogReading) -> None:
    """Print to stderr which period counts, before the answer that depends on it."""
    from pdctl.logs.window import timezone

    note = window_note(library, timezone(reading.tz))
    if note:
        term.err().write(f"note: {note}")


def window_note(library: Library, zone: dt.tzinfo | None) -> str:
    """One sentence that says which lines count, and whether there are any; "" if all lines count."""
    if library.limits is None:
        return ""
    span = wording.window(library.limits, zone)
    if not library.empty:
        return f"only lines {span} count"
    first, last = library.first(), library.last()
    if first is None or last is None:
        return f"no line was written {span}: no line of these logs carries a time"
    return f"no line was written {span}: these logs have lines {wording.window((first, last), zone)}"


def several_deployments(library: Library, verb: str) -> tuple[str, ...]:
    """A note if these are the logs of several deployments, which `verb` reads as if they were one's."""
    from pdctl.trace.observed_deployment import ObservedDeployment  # imported late: a wrong command line needs neither

    directories = {os.path.dirname(part.path) for log in library.logs for part in log.parts[:1]}  # noqa: PTH120
    groups: Sequence[LogGroup] = ()
    deployment = ObservedDeployment.of(library)
    if len(directories) > 1 or deployment.succeeded:
        from pdctl.trace.log_groups import group_logs  # late: most logs of one directory are those of one deployment

        groups = group_logs(library)
    if len(groups) < 2:
        clash = deployment.contradiction
        return (f"what follows may be wrong: {clash}",) if clash else ()
    commands = "; ".join(f"pdctl {verb} {shlex.join(map(str, group.directories))}" for group in groups[:DIRECTORIES])
    more = f"; and {len(groups) - DIRECTORIES} more" if len(groups) > DIRECTORIES else ""
    return (
        f"these are the logs of {len(groups)} deployments by their directories and times, and all count as one here; "
        f"ask about each: {commands}{more}",
    )


class Scanning:
    """Progress of reading logs: one line on a terminal, shown after the first second and erased at the end.

    Call with the bytes read and the total bytes; shows nothing unless the stream is a terminal that can erase it."""

    def __init__(self, term: Term, clock: Callable[[], float] = time.monotonic) -> None:
        self._term, self._clock = term, clock
        self._began = clock()
        self._drawn = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if not self._term.moves or now - self._began < QUIET or now - self._drawn < REDRAW:
            return
        self._drawn = now
        self._term.stream.write(f"\r{self._line(done, total, now - self._began)}\x1b[K")
        self._term.stream.flush()

    def close(self) -> None:
        """Erase the line."""
        if self._drawn:
            self._term.stream.write("\r\x1b[K")
            self._term.stream.flush()
            self._drawn = 0.0

    def _line(self, done: int, total: int, seconds: float) -> str:
        share = min(1.0, done / total) if total else 0.0
        full, empty = self._term.symbol("━", "#"), self._term.symbol("╌", ".")
        bar = full * round(share * BAR) + empty * (BAR - round(share * BAR))
        rate = wording.speed(done / 1e9 / seconds) if seconds else ""
        return f"reading {bar} {wording.size(done)} of {wording.size(total)}, {rate}"


def read_stats(library: Library, seconds: float, term: Term) -> None:
    """Write what an answer cost: `4 logs of 1.2 GB, answered in 0.61 s: 1.2 GB read (1.97 GB/s), 12 lines hit`."""
    tally, count = library.stats, len(library.logs)
    rate = f" ({wording.speed(tally.scanned / 1e9 / tally.seconds)})" if tally.seconds and tally.scanned else ""
    parts = [f"{wording.size(tally.scanned)} read{rate}, {tally.hits} lines hit"] if tally.scanned else []
    parts += [f"{tally.remembered} answers remembered"] if tally.remembered else []
    parts += [f"{tally.looked_up} looked up in the index"] if tally.looked_up else []
    parts += [] if tally.remembered or tally.looked_up else ["no index used"]
    size = wording.size(sum(log.size for log in library.logs))
    head = f"{count} log{'' if count == 1 else 's'} of {size}, answered in {wording.took(seconds)}"
    term.write(": ".join(filter(None, (head, ", ".join(parts)))))
