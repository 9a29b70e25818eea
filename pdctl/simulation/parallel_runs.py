"""Simulated runs side by side: each in a process of its own, which counts its run and hands back only the figures."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import deque
from multiprocessing import connection, get_context
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.errors import ExitCode, UsageError, limit_reached
from pdctl.quick_definitions import NamedTuple
from pdctl.simulation.kernel import SECOND
from pdctl.simulation.run import simulate
from pdctl.simulation.run_series import draw_series
from pdctl.simulation.simulation_document import SimulationOutcome, UnfinishedRun
from pdctl.simulation.statistics import summarize_policy, summarize_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess
    from pathlib import Path

    from pdctl.simulation.fleet_shape import FleetShape, SimulationSettings
    from pdctl.simulation.request_trace import RequestTrace
    from pdctl.simulation.run_series import RunSeries
    from pdctl.simulation.simulation_document import SimulationSetup
    from pdctl.simulation.statistics import RunStatistics, SloTargets

TOLD_EVERY = 0.2  # seconds of real time between two words of a run about how far it is
ENDED_WITHIN = 5.0  # seconds that a process has to end after it was told to
ENDED_FIX = "run it again by itself: --policy, --loading and --seed name it"
SIGNAL_FIXES: dict[int, str] = {
    signal.SIGKILL: "it may have been out of memory (see dmesg): run fewer at once with --jobs 1",
    signal.SIGXCPU: "raise the limit of this shell: ulimit -t unlimited",
}


class RunJob(NamedTuple):
    """One run. `trace` makes or gives its requests; `directory` gets its decisions."""

    name: str
    fleet: FleetShape
    settings: SimulationSettings
    trace: Callable[[int], RequestTrace]
    targets: SloTargets
    directory: Path | None = None

    @property
    def decisions(self) -> str:
        """The name of the file."""
        return f"{self.name.replace(' ', '-')}-{self.settings.seed}.decisions.jsonl"


class FinishedRun(NamedTuple):
    """`job`: its place in the list of jobs. `unwritten`: which file its decisions are missing from, and why."""

    job: int
    statistics: RunStatistics
    series: RunSeries
    unwritten: str = ""


class LostRun(NamedTuple):
    """A run of which there are no figures because its process was ended, or reached a limit. `job`: its place."""

    job: int
    message: str
    fix: str


class RunProgress(NamedTuple):
    """`last_ns`: when the last request of its trace arrives."""

    job: int
    now_ns: int
    last_ns: int


class _StartedRun(NamedTuple):
    job: int
    process: ForkProcess


class _FailedRun(NamedTuple):
    """`fix` is None for a bug, whose traceback is the message."""

    message: str
    fix: str | None
    exit_code: int


def run_jobs(
    jobs: Sequence[RunJob], processes: int, tell: Callable[[RunProgress], None]
) -> Iterator[FinishedRun | LostRun]:
    """The runs as they end. A caller that leaves early, or on Ctrl-C, ends those that still go on.

    Where memory or processes are used up, fewer go on at a time, and at least one here. Raise UsageError if a policy
    or a trace cannot be used, LimitError if not even a single run can go on.
    """
    if len(jobs) == 1 or processes == 1:
        for number, job in enumerate(jobs):
            yield _run(number, job, tell)
        return
    waiting = deque(range(len(jobs)))
    running: dict[Connection, _StartedRun] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                number = waiting.popleft()
                try:
                    _start(number, jobs[number], running)
                except OSError as error:
                    if limit_reached(error) is None:
                        raise
                    if running:
                        waiting.appendleft(number)
                        processes = len(running)
                    else:
                        yield _run(number, jobs[number], tell)
            for ready in connection.wait(list(running)) if running else ():
                assert not isinstance(ready, int)
                pipe = next(each for each in running if each is ready)
                said = _heard(pipe, running[pipe])
                if isinstance(said, RunProgress):
                    tell(said)
                    continue
                number, process = running.pop(pipe)
                process.join(ENDED_WITHIN)
                pipe.close()
                if not isinstance(said, _FailedRun):
                    yield said
                elif said.exit_code != ExitCode.NOT_PROBED:
                    raise _error(said)
                elif running:  # there may be enough for it once fewer go on
                    waiting.append(number)
                    processes = len(running)
                else:
                    yield LostRun(number, said.message, said.fix or "")
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join(ENDED_WITHIN)
            if process.is_alive():
                process.kill()


def collect_outcome(
    setup: SimulationSetup, jobs: Sequence[RunJob], finished: Sequence[FinishedRun]
) -> SimulationOutcome:
    """What finished, in the order of the jobs, and what did not. Jobs of one name differ in their seed alone."""
    found = {one.job: one for one in finished}
    groups: dict[str, list[int]] = {}
    unfinished = []
    for number, job in enumerate(jobs):
        if number in found:
            groups.setdefault(job.name, []).append(number)
        else:
            settings = job.settings
            unfinished.append(UnfinishedRun(settings.policy.value, settings.loading.value, settings.seed))
    policies = [
        summarize_policy(name, jobs[group[0]].settings, [found[each].statistics for each in group])
        for name, group in groups.items()
    ]
    series = [found[group[0]].series._replace(name=name) for name, group in groups.items()]
    return SimulationOutcome(setup, policies, series, unfinished)


def _heard(pipe: Connection, started: _StartedRun) -> FinishedRun | RunProgress | LostRun | _FailedRun:
    """What the process of a run says; of one that ended without a word, by what."""
    try:
        said: FinishedRun | RunProgress | _FailedRun = pipe.recv()
    except EOFError:
        started.process.join(ENDED_WITHIN)
        code = started.process.exitcode or 0
        if code >= 0:
            return LostRun(started.job, f"its process ended without a word (exit code {code})", ENDED_FIX)
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        words = f"its process was ended by {name} ({(signal.strsignal(-code) or 'unknown').lower()})"
        return LostRun(started.job, words, SIGNAL_FIXES.get(-code, ENDED_FIX))
    return said


def _start(number: int, job: RunJob, running: dict[Connection, _StartedRun]) -> None:
    """Start a process and note it in `running`, by the pipe it speaks through."""
    # fork: a trace of a million requests is shared with the process, not copied. No thread runs here.
    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(number, job, theirs, os.getpid()), daemon=True)
    # A terminal sends Ctrl-C to all of us: the process must not see it, nor we before the process is noted.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
        running[ours] = _StartedRun(number, process)
        theirs.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(number: int, job: RunJob, pipe: Connection, parent: int) -> None:
    """Run one job in a process of its own. Leave at once if nobody waits for it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    try:
        threading.Thread(target=_leave_with, args=(parent,), name="parent watch", daemon=True).start()
        pipe.send(_run(number, job, pipe.send))
    except UsageError as error:
        pipe.send(_FailedRun(error.message, error.fix, error.exit_code))
    except Exception as error:  # noqa: BLE001 - the parent says what it was; nobody sees this process
        pipe.send(_failure(error))


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(TOLD_EVERY)
    os._exit(1)


def _run(number: int, job: RunJob, tell: Callable[[RunProgress], None]) -> FinishedRun:
    trace = job.trace(job.settings.seed)
    last_ns = trace.requests[-1].arrival_ns if trace.requests else 0
    next_at = time.monotonic()

    def progress(now_ns: int) -> None:
        nonlocal next_at
        now = time.monotonic()
        if now >= next_at:
            next_at = now + TOLD_EVERY
            tell(RunProgress(number, now_ns, last_ns))

    run = simulate(job.fleet, trace, job.settings, progress)
    unwritten = ""
    if job.directory is not None:
        file = job.directory / job.decisions
        documents = ({"time_s": when / SECOND, **one.document()} for when, one in run.decisions)
        try:
            user_files.write_whole(file, "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in documents))
        except OSError as error:  # the figures are worth more than this file
            unwritten = f"{file.name} ({(error.strerror or str(error)).lower()})"
    return FinishedRun(number, summarize_run(run, job.targets), draw_series(run), unwritten)


def _failure(error: Exception) -> _FailedRun:
    reached = limit_reached(error)
    if reached is not None:
        return _FailedRun(reached.message, reached.fix, reached.exit_code)
    import traceback  # late: only a bug needs it

    return _FailedRun("".join(traceback.format_exception(error)), None, 0)


def _error(said: _FailedRun) -> Exception:
    if said.fix is None:
        return RuntimeError(f"a run failed in a process of its own:\n{said.message}")
    error = UsageError(said.message, said.fix)
    error.exit_code = type(error.exit_code)(said.exit_code)
    return error
