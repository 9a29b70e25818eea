"""Control a run from outside its supervisor: start it detached, watch it, end it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.errors import ExitCode, LaunchError, NotReadyError, StorageError
from pdctl.launch import credentials, ending_reasons, procfs, storage
from pdctl.launch.log_tail import last_lines
from pdctl.launch.run_directory import SUPERVISOR
from pdctl.launch.run_record import GONE, OVER, EventKind, Run, RunEvent, RunOutcome, State, left_alive
from pdctl.program import command

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.launch.run_directory import RunDir
    from pdctl.launch.run_record import Allocation

POLL = 0.1  # seconds between reads of run.json
MARGIN = 15.0  # seconds added to the supervisor's own deadlines
AFTER_KILL = 5.0
AFTER_CANCEL = 60.0  # twice Slurm's usual KillWait
SUPERVISOR_LOG = "supervisor"


def detach(directory: RunDir, lock: int) -> subprocess.Popen[bytes]:
    """Start the supervisor of a prepared run in a session of its own; it inherits the run's lock."""
    with directory.log(SUPERVISOR_LOG).open("ab") as output:
        return subprocess.Popen(
            [*command(SUPERVISOR), str(directory.path), str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            start_new_session=True,
        )


def release(supervisor: subprocess.Popen[bytes]) -> None:
    """Let the supervisor outlive this process without the warning of a collected Popen (`python -X dev`)."""
    supervisor.returncode = 0


def await_serving(directory: RunDir, ended: Callable[[], bool], emit: Callable[[RunEvent], None]) -> Run:
    """Pass on every event until the detached run serves. Raise LaunchError or NotReadyError if it ends before.

    `ended`: returns whether its supervisor is gone. A disk that fills is told at once: run.json cannot tell it.
    """
    told = ""

    def tell(event: RunEvent) -> None:
        if event.detail != told:
            emit(event)

    reader = _Reader(directory, tell)
    options = reader.run.options
    deadline = time.monotonic() + options.timeout + options.drain + options.grace + MARGIN
    while time.monotonic() < deadline:
        gone = ended()  # checked before reading the file, which then has the supervisor's last state
        run = reader.read()
        notice = storage.read(directory.path)  # after the run: the state that only a notice has came with its reason
        if notice.lost and not told:
            told = storage.sentence(notice)
            emit(RunEvent(notice.since, EventKind.STORAGE, detail=told))
        if run.state is State.SERVING or run.state in OVER:
            break
        if gone:
            raise _crashed(directory, run)
        time.sleep(POLL)
    else:
        name = reader.run.name
        why = f": {told}" if told else ""
        raise NotReadyError(f"{name}: its supervisor has not said anything for too long{why}", f"pdctl logs {name}")
    if run.state is State.SERVING:
        return run
    raise failure(run.outcome or RunOutcome("it ended without a word", int(ExitCode.FINDINGS)))


class _Reader:
    """Reads run.json repeatedly and passes on each event once: the events that `run` lacks, or all if it is None."""

    def __init__(self, directory: RunDir, emit: Callable[[RunEvent], None], run: Run | None = None) -> None:
        self._directory = directory
        self._emit = emit
        self._seen = 0 if run is None else len(run.events)
        self.run = directory.load() if run is None else run

    def read(self) -> Run:
        self.run = self._directory.load()
        for event in self.run.events[self._seen :]:
            self._emit(event)
        self._seen = len(self.run.events)
        return self.run

    def ended(self) -> bool:
        """Whether the run is over and everything was read.

        The supervisor is checked before the file is read, because it writes its last state just before it exits: the
        other way round, that state could be missed.
        """
        gone = not self.run.alive
        return self.read().state in OVER or gone


def failure(outcome: RunOutcome) -> LaunchError | NotReadyError:
    kind = NotReadyError if outcome.code == ExitCode.NOT_READY else LaunchError
    return kind(outcome.message, outcome.fix)


def watch(directory: RunDir, emit: Callable[[RunEvent], None]) -> Run:
    """Pass on every event until the run is over; return its last state."""
    reader = _Reader(directory, emit, directory.load())
    while not reader.ended():
        time.sleep(POLL)
    return reader.run


def patience(run: Run) -> float:
    """The seconds that an orderly end may take."""
    return run.options.drain + run.options.grace + MARGIN


def _crashed(directory: RunDir, run: Run) -> LaunchError:
    log = directory.log(SUPERVISOR_LOG)
    lines = "".join(f"\n  {line}" for line in last_lines(log, ending_reasons.TAIL))
    crash = storage.read(directory.path).crash
    what = f"the supervisor failed: {crash}" if crash else "the supervisor ended without a word"
    if run.allocation is not None:
        from pdctl.launch.slurm import submission  # imported late: only a run on a cluster needs it

        what = submission.outcome_of_ended_job(run).message
    return LaunchError(f"{what}; last lines of {log}:{lines or ' (empty)'}")


def stop(directory: RunDir, run: Run, force: bool, timeout: float, emit: Callable[[RunEvent], None]) -> Run:
    """End `run` and return it as it is then. `force` skips the draining. Does nothing to a run that is over.

    Raise StorageError if it is another user's.
    """
    try:
        return _stop(directory, run, force, timeout, emit)
    except PermissionError:
        owner = user_files.other_owner(directory.path) or "another user"
        words = f"pdctl down {run.name}{' --force' if force else ''}"
        fix = user_files.as_owner(directory.path, words, directory.path.absolute().parent.parent)
        raise StorageError(
            f"run `{run.name}` is {owner}'s: only its owner can end it", fix or "run as the user who started it"
        ) from None


def _stop(directory: RunDir, run: Run, force: bool, timeout: float, emit: Callable[[RunEvent], None]) -> Run:
    if not directory.owns(run) and (run.alive or run.survivors):
        raise _of_another_directory(directory, run)
    reader = _Reader(directory, emit, run)
    asked = False
    deadline = time.monotonic() + timeout
    while (living := reader.run.alive) and time.monotonic() < deadline:
        run = reader.run
        if not asked and (run.supervisor is not None or run.allocation is not None):
            asked = True
            _signal(run, signal.SIGTERM)
            if force:
                _signal(run, signal.SIGINT)  # a second signal means now; another number, so that the two cannot merge
        time.sleep(POLL)
        reader.read()
    if living and not force:
        late = f"{run.name} is still stopping after {ending_reasons.span(timeout)}"
        if run.supervisor is not None and ending_reasons.supervisor_stopped(run):
            raise NotReadyError(
                f"{late}: its supervisor (pid {run.supervisor}) is stopped", f"kill -CONT {run.supervisor}"
            )
        raise NotReadyError(late, f"pdctl down {run.name} --force")
    reader.read()
    return _record_death(directory, reader)


def _of_another_directory(directory: RunDir, run: Run) -> LaunchError:
    """The error for a record that was copied or moved: nothing is signalled, because the run may be another home's."""
    lives, command = left_alive(run)
    what = f"{directory.path / 'run.json'} was recorded in {run.directory!r}"
    found = f"{lives}; nothing was signalled"
    recorded = Path(run.directory)
    if (recorded / "run.json").exists():
        home = shlex.quote(str(recorded.parent.parent))
        return LaunchError(
            f"{what}, and this is a copy; {found}",
            f"PDCTL_HOME={home} pdctl down {run.name}, or end it by hand: {command}",
        )
    return LaunchError(f"{what}, and was moved here; {found}", f"end it by hand: {command}")


def _record_death(directory: RunDir, reader: _Reader) -> Run:
    """End what a vanished or unresponsive supervisor left, and record that the run is over."""
    run = reader.run
    _signal(run, signal.SIGKILL)
    deadline = time.monotonic() + (AFTER_KILL if run.allocation is None else AFTER_CANCEL)
    while (run.alive or run.survivors) and time.monotonic() < deadline:
        for process in run.survivors:
            for pid in {process.pid or 0, *procfs.session(process.pid or 0)} - {0}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    if run.survivors:
        left = ", ".join(f"{process.name} (pid {process.pid})" for process in run.survivors)
        raise LaunchError(f"{run.name}: {left} cannot be ended")
    if run.allocation is not None and run.alive:
        job = run.allocation.job
        raise LaunchError(f"{run.name}: job {job} was cancelled and is still in the queue", f"scontrol show job {job}")
    credentials.forget(directory.path)
    run = reader.read()  # keep what the supervisor wrote before it was killed
    if run.state not in OVER:
        outcome = RunOutcome(f"ended from outside: {GONE}", int(ExitCode.FINDINGS))
        run = dataclasses.replace(run, state=State.STOPPED, outcome=outcome)
        directory.save_end(run)
    return run


def _signal(run: Run, number: signal.Signals) -> None:
    if run.allocation is not None:
        _signal_job(run, run.allocation, number)
    elif run.alive and run.supervisor:
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.supervisor, number)


def _signal_job(run: Run, given: Allocation, number: signal.Signals) -> None:
    """Signal the job's batch script, which is the supervisor. Cancel a job that has not begun or is to be killed."""
    from pdctl.launch.slurm import queue, submission  # imported late: only a run on a cluster needs it

    if number == signal.SIGKILL or run.supervisor is None:
        submission.cancel(given)
    elif run.alive:
        queue.cancel(given.job, number.name.removeprefix("SIG"), batch=True)
