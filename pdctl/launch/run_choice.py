"""The runs of a home, and which of them a command means."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

from pdctl import user_files
from pdctl.errors import NotFoundError, PdctlError, StorageError, UsageError
from pdctl.launch import procfs
from pdctl.launch.run_directory import SUPERVISOR, RunDir, check_name
from pdctl.launch.run_record import MAY_TELL, NO_LINE, OVER, Run, State

KNOWN = "pdctl ls lists the runs"  # the fix where the name of an existing run is wanted


def load_all(root: Path) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Every run, newest first, and a sentence for each directory that could not be read.

    Raise StorageError if the runs cannot be listed.
    """
    runs: list[Run] = []
    unreadable: list[str] = []
    try:
        names = sorted(os.listdir(root / "runs"))  # noqa: PTH208 - names are all we need
    except (FileNotFoundError, NotADirectoryError):
        return (), ()
    except OSError as error:
        raise user_files.unreadable(root / "runs", error) from None
    for name in names:
        found = _try_load(RunDir.of(root, name))
        if isinstance(found, Run):
            runs.append(found)
        elif found:
            unreadable.append(found)
    return tuple(sorted(runs, key=lambda run: -run.created)), tuple(unreadable)


def _try_load(directory: RunDir) -> Run | str:
    """The run, or why it cannot be read; empty if there is none, or if it is just being opened."""
    try:
        return directory.look()
    except NotFoundError:
        return directory.unrecorded()
    except PdctlError as error:
        return f"{error.message}; {error.fix}"


def runs_of_others() -> tuple[str, ...]:
    """A sentence for each supervisor that another user runs on this machine: its run is in that user's home."""
    import pwd  # imported late: needed only if no run is found

    found: dict[str, str] = {}
    for pid, uid, words in procfs.commands():
        if uid == os.geteuid():
            continue
        with contextlib.suppress(KeyError, ValueError, IndexError):
            owner = pwd.getpwuid(uid).pw_name
            run = words[words.index(SUPERVISOR) + 1]
            home = shlex.quote(str(Path(run).parent.parent))
            found[run] = f"{owner} runs {run} (pid {pid}): sudo -u {owner} env PDCTL_HOME={home} pdctl …"
    return tuple(found.values())


def find_run(root: Path, name: str | None, also: tuple[State, ...] = ()) -> Run:
    """The run called `name`, or the only live one. If none is alive: the run that ended last if its state is in `also`,
    or, if `also` contains STALE, the last stale one. Raise NotFoundError or UsageError."""
    if name is not None:
        return _named(root, name)
    runs, unreadable = load_all(root)
    conditions = [(run, run.condition) for run in runs]
    alive = [run for run, condition in conditions if condition not in OVER]
    if len(alive) > 1:
        names = ", ".join(run.name for run in alive)
        raise UsageError(f"{len(alive)} runs are alive: {names}", f"name one of them: {alive[0].name}")
    if alive:
        return alive[0]
    runs = tuple(sorted(runs, key=lambda run: -_last_sign(root, run)))
    stale = [run for run in runs if run.condition is State.STALE]
    for run in (*runs[:1], *stale):
        if run.condition in also:
            return run
    if stale:
        what = f"no run is alive; `{stale[0].name}` is stale: its supervisor died"
        raise NotFoundError(what, f"pdctl down {stale[0].name}")
    if not runs:
        if unreadable:
            what, _, fix = unreadable[0].partition("; ")
            raise StorageError(what, fix)
        raise NotFoundError(
            "; ".join(("no run is alive", *runs_of_others())), "pdctl launch FILE|NAME (2p1d, for example)"
        )
    last = runs[0]
    fix = (
        f"pdctl diagnose --run {last.name}"
        if last.state is State.FAILED
        else "pdctl launch FILE|NAME (2p1d, for example)"
    )
    raise NotFoundError(f"no run is alive; the last to end, `{last.name}`, {describe_ended(last)}", fix)


def _last_sign(root: Path, run: Run) -> float:
    """When a run ended, in seconds since the epoch; if its supervisor died, when it last wrote a line of its logs."""
    last = run.events[-1].at if run.events else run.created
    if run.unsupervised:
        with contextlib.suppress(OSError):
            last = max((file.stat().st_mtime for file in RunDir.of(root, run.name).logs.iterdir()), default=last)
    return last


def ended_badly_since(root: Path, chosen: Run) -> tuple[Run, ...]:
    """The other runs that failed or became stale after `chosen` was launched, the last to end first."""
    bad = (run for run in load_all(root)[0] if run.condition in (State.FAILED, State.STALE) and run.name != chosen.name)
    ended = sorted(((_last_sign(root, run), run.name, run) for run in bad), key=lambda each: each[:2], reverse=True)
    return tuple(run for at, _, run in ended if at >= chosen.created)


def describe_ended(run: Run) -> str:
    """How and why a run ended, in one line: its outcome without the log lines."""
    if run.condition is State.STALE:
        return "is stale: its supervisor died"
    what = "failed" if run.state is State.FAILED else "was stopped"
    why = run.outcome.message.partition("\n")[0] if run.outcome is not None else ""
    for words in (f". {MAY_TELL} ", f". {NO_LINE} "):
        why = why.partition(words)[0]
    why = why.rstrip(".:")
    return f"{what}: {why}" if why else what


def _named(root: Path, name: str) -> Run:
    latest, _, number = name.rpartition(".")
    check_name(latest if number.isdecimal() else name, KNOWN)
    directory = RunDir.of(root, name)
    with contextlib.suppress(NotFoundError):
        return directory.look()
    if failed := directory.unrecorded():
        what, _, fix = failed.partition("; ")
        raise StorageError(what, fix)
    known = [run.name for run in load_all(root)[0]]
    nothing = "; ".join(("no run was ever launched here", *runs_of_others()))
    hint = f"known runs: {', '.join(known)}" if known else f"{nothing}; `pdctl launch FILE` starts one"
    raise NotFoundError(f"no run `{name}` in {root / 'runs'}", hint)
