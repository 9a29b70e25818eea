"""Why a run ended or is not ready, in sentences that name the process, the evidence and where to look."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import signal
import time
from typing import TYPE_CHECKING

from pdctl import thread_death
from pdctl.engines.base import Level, Sign
from pdctl.errors import ExitCode, limit_reached, limit_told
from pdctl.launch import procfs, storage
from pdctl.launch.log_tail import PROBE, STAMP, StoppedInstance, last_lines
from pdctl.launch.readiness import stages
from pdctl.launch.run_record import MAY_TELL, NO_LINE, OVER, Exit, Process, RunOutcome, StartStage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pdctl.engines.base import Row
    from pdctl.launch.deployment import ServerRole, Spec
    from pdctl.launch.run_directory import RunDir
    from pdctl.launch.run_record import Run
    from pdctl.launch.runtime import Paired

TAIL = 20
READ_FOR_REASONS = 80  # lines
OOM = "sudo dmesg -T | grep -iE 'out of memory|killed process'"
COMMAND = re.compile(r"\] pdctl: \S+ generation (\d+): ")  # process.py writes it in front of each generation
LAST_SECONDS = 10.0  # before its end in which a process may write why it ends; what is older has other causes
ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|Traceback|[A-Za-z]*(?:Error|Exception))\b")  # in a line of no known row
ENDING = frozenset({Sign.CRASHED, Sign.CHILD_ENDED, Sign.ENDED_ITSELF, Sign.ORDERED_TO_END, Sign.REHEARSED, Sign.DIED})
REASON_WITHIN = 200  # lines: every client that was waiting adds one after the reason
LONGEST_REASON = 400  # characters
ENDS = ("Instance ends: ", "Router ends: ")  # engine/frontend/http_process.py, router/router_process.py
START_AGAIN = ". A rank cannot be replaced alone; start the instance again."
ENDED_BY_US = "pdctl ended it"
BY_ITSELF = "its own: it was asked to leave"  # SGLang 0.5.3 to 0.5.23 kills itself after SIGTERM
AFTER_ORDER = "after pdctl asked it to end"  # what it did then is no failure of the deployment
SIGNALS = {
    signal.SIGTERM: "from outside",
    signal.SIGKILL: "from outside, or OOM-killed: see dmesg",
    signal.SIGSEGV: "it crashed in native code",
    signal.SIGBUS: "it crashed in native code, or /dev/shm is full",
    signal.SIGABRT: "it aborted itself",
}


def never_ready(name: str, detail: str) -> RunOutcome:
    """The outcome for a process that runs, but can never become ready with the settings it was started with."""
    return RunOutcome(
        f"{name}: {detail}", code=int(ExitCode.NOT_READY), fix="pdctl launch … --set security.api-key-file=FILE"
    )


def in_words(exit: Exit) -> str:
    if exit.lost:
        return exit.lost
    if not exit.signal:
        hint = AFTER_ORDER if exit.asked and exit.code else "the command cannot be found" if exit.code == 127 else ""
        return f"left with exit code {exit.code}{f' ({hint})' if hint else ''}"
    try:
        number = signal.Signals(exit.signal)
    except ValueError:  # a real-time signal
        return f"was killed by signal {exit.signal}{f' ({AFTER_ORDER})' if exit.asked else ''}"
    hint = SIGNALS.get(number, "")
    if exit.ours or (exit.asked and number == signal.SIGTERM):
        hint = ENDED_BY_US
    elif exit.asked:
        hint = BY_ITSELF if number == signal.SIGKILL else ", ".join(filter(None, (hint, AFTER_ORDER)))
    return f"was killed by {number.name}{f' ({hint})' if hint else ''}"


def stopped(number: int) -> RunOutcome:
    return RunOutcome(f"stopped by {signal.Signals(number).name}", signal=number)


def supervisor_died(run: Run, directory: RunDir) -> str:
    """That the supervisor of a run on this machine is gone, with what it left and how to clear that."""
    crash = storage.read(directory.path).crash
    said = f"the supervisor (pid {run.supervisor}) died{f' of {crash}' if crash else ''}"
    if run.state in OVER:
        return f"{said}; {run.name} was cleared since"
    left = ", ".join(f"{process.name} (pid {process.pid})" for process in run.survivors)
    return f"{said}; {f'still alive: {left}' if left else 'no process is left'}. Clear it: pdctl down {run.name}"


def describe_stopped(run: Run, process: Process) -> tuple[str, str]:
    """That its processes are stopped, and the command that continues them; ("", "") if they are not."""
    stopped = () if run.allocation is not None or process.pid is None else procfs.stopped(process.pid)
    if not stopped:
        return "", ""
    pids = " ".join(map(str, stopped))
    several = len(stopped) > 1
    who = f"its processes (pids {', '.join(map(str, stopped))}) are" if several else f"its process (pid {pids}) is"
    return f"{who} stopped", f"kill -CONT {pids}"


def stopped_instances(run: Run) -> tuple[StoppedInstance, ...]:
    """The instances of a live run on this machine that are stopped, in its order."""
    if not run.alive:
        return ()
    found = (
        (spec, describe_stopped(run, process))
        for spec in run.deployment.specs
        if run.lives(process := run.process(spec.name))
    )
    return tuple(StoppedInstance(spec.name, what, fix) for spec, (what, fix) in found if what)


def supervisor_stopped(run: Run) -> str:
    """That the supervisor of a live run on this machine is stopped, and the command that continues it; "" if not."""
    pid = run.supervisor
    if pid is None or run.allocation is not None or not run.alive or not procfs.is_stopped(pid):
        return ""
    return f"the supervisor (pid {pid}) is stopped: it restarts nothing and ends nothing. Continue it: kill -CONT {pid}"


def watcher_ended(thread: str, error: BaseException) -> RunOutcome:
    """The outcome when one of the supervisor's watching threads has ended: what it watched is no longer known."""
    reached = limit_reached(error)
    if reached is not None:
        message = f"{reached.message}: nothing watches what thread {thread} watched"
        return RunOutcome(message, code=int(reached.exit_code), fix=reached.fix)
    message = (
        f"the supervisor's thread {thread} ended on {thread_death.in_words(error)}: what it watched is watched no more"
    )
    fix = "launch again, and report the traceback: a detached run has it in logs/supervisor.log"
    return RunOutcome(message, code=int(ExitCode.BUG), fix=fix)


def out_of_time(ends_at: float) -> RunOutcome:
    """The outcome when the allocation is about to end. The run ends first, so that requests can finish."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ends_at))
    fix = "launch again; targets.slurm.time asks for more, as far as the partition allows"
    return RunOutcome(f"the allocation ends at {when}: its time is over", code=int(ExitCode.FINDINGS), fix=fix)


def died(
    directory: RunDir, process: Process, exit: Exit, ready_at: float | None, restarts: int, alone: str = ""
) -> RunOutcome:
    """The outcome when a process died. `ready_at` None: it was never ready. `alone`: why the run could not continue."""
    moment = "before it was ready" if ready_at is None else f"{span(exit.at - ready_at)} after it became ready"
    alone = f" The run could not go on: {alone}." if alone else ""
    tries = f" It had been restarted {'once' if restarts == 1 else f'{restarts} times'} before." if restarts else ""
    lines = reasons(directory, process, exit)
    shown = "".join(f"\n  {process.name} | {line}" for line in lines)
    told = (
        f"{MAY_TELL} {directory.current_log(process.name)}:{shown}"
        if lines
        else no_last_lines(directory, process, exit)
    )
    limit = next(filter(None, map(limit_told, lines)), None)
    message = f"{process.name} {in_words(exit)} {moment}.{tries}{alone} {told}"
    return RunOutcome(message, code=int(ExitCode.FINDINGS), fix=limit.fix if limit is not None else "")


def alone(role: ServerRole, several: bool) -> str:
    """Why `keep-serving` does not restart an instance. `several`: its role had others, which were given up."""
    if several:
        return f"no other {role.value} is left"
    return f"it was the only {role.value}, and keep-serving restarts none that is; --on-death instance does"


def start_timed_out(
    directory: RunDir,
    waiting: tuple[tuple[Spec, Process], ...],
    reached: Mapping[str, Mapping[StartStage, float]],
    details: Mapping[str, str],
    timeout: float,
) -> RunOutcome:
    rows: list[str] = []
    for spec, process in waiting:
        if not process.generation:
            rows.append(f"{spec.name}: not started, it waits for the others")
            continue
        missing = next(stage for stage in stages(spec) if stage not in reached.get(spec.name, {}))
        lines = telling_lines(directory, process, 1)
        last = f"; last line: {lines[-1]}" if lines else ""
        rows.append(f"{spec.name}: {missing_stage(spec, missing, details.get(spec.name, ''))}{last}")
    message = f"not ready after {span(timeout)}\n  " + "\n  ".join(rows)
    fix = "raise --timeout, or read the logs in " + str(directory.logs)
    return RunOutcome(message, code=int(ExitCode.NOT_READY), fix=fix)


def telling_lines(directory: RunDir, process: Process, count: int) -> tuple[str, ...]:
    """The last lines of this generation, without the access-log lines that our own probes cause."""
    lines = last_lines(directory.current_log(process.name), 4 * count, process.generation_start)
    return tuple(line for line in lines if not PROBE.search(line))[-count:]


def reasons(directory: RunDir, process: Process, exit: Exit) -> tuple[str, ...]:
    """The lines of this generation's last seconds that may tell why it ended; those of normal operation are left out.

    A process that is killed from outside cannot write why: its lines are shown only if an error is among them.
    """
    lines = _last_seconds(telling_lines(directory, process, READ_FOR_REASONS), process.generation, exit)
    telling = [(line, row) for line, row in ((line, _row(line)) for line in lines) if not _routine(line, row)]
    killed = exit.signal == signal.SIGKILL and not (exit.ours or exit.asked or exit.lost)
    if killed and not any(_is_error(line, row) for line, row in telling):
        return ()
    return tuple(line for line, _ in telling)[-TAIL:]


def _last_seconds(lines: Iterable[str], generation: int, exit: Exit) -> Iterator[str]:
    """Those of `lines` that the generation wrote in its last seconds. A line without a time is as old as the line
    before it, but for the error that a process leaves by: Python prints it last, however long nothing was printed."""
    late, untimed = True, list[str]()
    for line in lines:
        opening = COMMAND.search(line)
        if opening and int(opening[1]) > max(1, generation):
            break
        stamp = STAMP.match(line)
        if stamp:
            untimed.clear()
            with contextlib.suppress(ValueError):  # no such date
                late = dt.datetime.fromisoformat(stamp[1]).timestamp() >= exit.at - LAST_SECONDS
        else:
            untimed.append(line)
        if late:
            yield line
    if not late and exit.code and untimed and ERROR.search(untimed[-1]):
        yield from untimed


def _row(line: str) -> Row | None:
    from pdctl.engines.row_matching import speech  # imported late: a run that ends normally never needs it

    said = None if COMMAND.search(line) else speech().match(line.encode())
    return None if said is None else said.row


def _is_error(line: str, row: Row | None) -> bool:
    return ERROR.search(line) is not None if row is None else row.level in (Level.ERROR, Level.CRITICAL)


def _routine(line: str, row: Row | None) -> bool:
    if row is None:
        return COMMAND.search(line) is not None
    return row.level in (Level.DEBUG, Level.INFO) and not row.cause and ENDING.isdisjoint(row.proves)


def no_last_lines(directory: RunDir, process: Process, exit: Exit) -> str:
    """The sentence for a log without such lines: it says so, and where to look instead."""
    none = f"{NO_LINE} {directory.current_log(process.name)} tells why"
    if not _killed_by_another(exit):
        return f"{none}."
    where = f" on {process.place}" if process.place else ""
    job = ", or sacct -o JobID,State,MaxRSS" if process.place else ""
    return f"{none}: a process that is killed cannot write one. Was it the OOM killer? Ask{where}: {OOM}{job}"


def kernel_log(process: Process, exit: Exit) -> str:
    """The command that shows whether the kernel killed the process; "" if its end has another explanation."""
    if not _killed_by_another(exit):
        return ""
    return f"{OOM}   # on {process.place}" if process.place else OOM


def _killed_by_another(exit: Exit) -> bool:
    return exit.signal == signal.SIGKILL and not (exit.ours or exit.asked or exit.lost)


def own_reason(directory: RunDir, process: Process) -> str:
    """The reason this generation ended, from the line that pdctl's engine or router writes; empty if there is none."""
    for line in reversed(telling_lines(directory, process, REASON_WITHIN)):
        for words in ENDS:
            _, ends, reason = line.partition(words)
            if ends:
                return reason.removesuffix(START_AGAIN)[:LONGEST_REASON]
    return ""


def missing_stage(spec: Spec, stage: StartStage, detail: str) -> str:
    if stage is StartStage.BOUND:
        return f"port {spec.port} not bound"
    if stage is StartStage.WEIGHTS:
        return "weights not loaded"
    fallback = {StartStage.REGISTERED: f"bootstrap registered 0/{spec.ranks}", StartStage.WORKERS: "no worker listed"}
    return detail or fallback.get(stage, f"{spec.health_path} does not answer 200")


def pairs_failed(results: tuple[Paired, ...]) -> RunOutcome:
    failed = [result for result in results if result.problem]
    rows = "".join(f"\n  {result.prefill} → {result.decode}: {result.problem}" for result in failed)
    message = f"{len(failed)} of {len(results)} prefill and decode pairs do not answer a request{rows}"
    return RunOutcome(
        message, code=int(ExitCode.FINDINGS), fix="pdctl logs shows both sides; --no-verify starts without this check"
    )


def span(seconds: float) -> str:
    """Seconds as 0.84 s, 12.3 s, 2m05s, 3h07m or 4d02h."""
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
