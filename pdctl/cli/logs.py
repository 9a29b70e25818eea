"""`pdctl logs`: what the processes of a run wrote, prefixed and in order of time."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli import elsewhere, log_sources
from pdctl.cli.exits import reraise
from pdctl.cli.options import suggest_one_of
from pdctl.errors import NotFoundError, PdctlError, UsageError
from pdctl.launch.run import OVER
from pdctl.launch.state import RunDir, home, load_all, pick
from pdctl.render import log_printer, term

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.launch.run import Run


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN] [INSTANCE]...", help="The run (not needed for a single one) and its instances."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only the last N lines of each instance.")
    ] = None,
    since: Annotated[str | None, log_sources.Since] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only lines that match a regular expression.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Without the instance's name in front.")] = False,
) -> None:
    """Show or follow the logs of a run.

    \b
    pdctl logs -f                                 # the only run alive, or the latest
    pdctl logs blue decode-0 --tail 50
    pdctl logs blue --since -10m                  # the ten minutes before the last line
    pdctl logs blue --grep 'room=123|ERROR'
    """
    cluster, instances = elsewhere.meant(words or [])
    if cluster is not None:
        # Against now: kubectl does not tell when the last line was written.
        begins = None if since is None else log_sources.moment("--since", since, None, time.time)
        elsewhere.logs(cluster, instances, follow, tail, begins, grep, raw)
        return
    root = home(os.environ)
    run, names = _select(root, words or [])
    directory = RunDir.of(root, run.name)
    files = {name: file for name, file in directory.tails(run).items() if name in names}
    printer = log_printer.Printer(run, term.out(), log_printer.pattern(grep), raw)
    begins = None if since is None else _begins(run.name, since)
    try:
        log_printer.show(files, printer, tail, begins)
        if follow:
            log_printer.follow(files, printer, over=lambda: not directory.load().alive)
    except KeyboardInterrupt:
        reraise(signal.SIGINT)


def _begins(run: str, since: str) -> float:
    """The moment meant; which one that is, and that no line was written since then, goes to stderr."""
    from pdctl.logs.library import Library

    opened = log_sources.opened(log_sources.sources((), run))
    whole = Library(opened)
    begins = log_sources.moment("--since", since, None, log_sources.Last(whole), whole.first)
    note = log_sources.window_note(Library(opened, since=begins), None)
    term.err().write(f"note: {note}")
    return begins


def _select(root: Path, words: list[str]) -> tuple[Run, set[str]]:
    """The first word is a run, unless it can only be an instance of the one run there is to mean."""
    named = bool(words) and (RunDir.of(root, words[0]).path / "run.json").exists()
    if words and not named:
        run = _with_instance(root, words[0])
        wanted = words
    else:
        run = pick(root, words[0] if named else None, OVER)
        wanted = words[1:]
    known = [process.name for process in run.processes]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise NotFoundError(f"{run.name} has no instance `{unknown[0]}`", suggest_one_of(unknown[0], known))
    return run, set(wanted or known)


def _with_instance(root: Path, word: str) -> Run:
    """The single run, if it has an instance called `word`; otherwise `word` was meant to be a run."""
    try:
        run = pick(root, None, OVER)
    except (UsageError, NotFoundError):
        return pick(root, word)
    names = [process.name for process in run.processes]
    if word in names:
        return run
    try:
        return pick(root, word)
    except PdctlError as error:
        what = f"`{word}` is no run, and no instance of {run.name}"
        known = ", ".join(each.name for each in load_all(root)[0])
        raise NotFoundError(what, f"{suggest_one_of(word, names)} of {run.name}; the runs are {known}") from error
