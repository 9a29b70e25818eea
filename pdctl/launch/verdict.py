"""Why a run ended or is not ready, in sentences that name the process, the evidence and the place to look."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from pdctl.errors import ExitCode
from pdctl.launch.events import Stage
from pdctl.launch.readiness import stages
from pdctl.launch.relay import PROBE, last_lines
from pdctl.launch.run import Exit, Outcome, Process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.launch.deployment import Spec
    from pdctl.launch.mailbox import Paired
    from pdctl.launch.state import RunDir

TAIL = 20
REASON_WITHIN = 200  # lines: every client that waited leaves one after it
LONGEST_REASON = 400  # characters
ENDS = ("Instance ends: ", "Router ends: ")  # engine/server.py, router/app.py
START_AGAIN = ". A rank cannot be replaced alone; start the instance again."
ENDED_BY_US = "pdctl ended it"
BY_ITSELF = "its own: it was asked to leave"  # SGLang's way, 0.5.3 to 0.5.23
SIGNALS = {
    signal.SIGKILL: "from outside, or OOM-killed: see dmesg",
    signal.SIGSEGV: "it crashed in native code",
    signal.SIGBUS: "it crashed in native code, or /dev/shm is full",
    signal.SIGABRT: "it aborted itself",
}


def hopeless(name: str, detail: str) -> Outcome:
    """It runs, and will never be ready as it was started."""
    return Outcome(
        f"{name}: {detail}", code=int(ExitCode.NOT_READY), fix="pdctl launch … --set security.api-key-file=FILE"
    )


def in_words(exit: Exit) -> str:
    if exit.lost:
        return exit.lost
    if not exit.signal:
        hint = " (the command cannot be found)" if exit.code == 127 else ""
        return f"left with exit code {exit.code}{hint}"
    try:
        number = signal.Signals(exit.signal)
    except ValueError:  # a real-time signal
        return f"was killed by signal {exit.signal}"
    own = exit.asked and number == signal.SIGKILL
    hint = ENDED_BY_US if exit.ours else BY_ITSELF if own else SIGNALS.get(number, "")
    return f"was killed by {number.name}{f' ({hint})' if hint else ''}"


def stopped(number: int) -> Outcome:
    return Outcome(f"stopped by {signal.Signals(number).name}", signal=number)


def blind(thread: str, reason: str) -> Outcome:
    """A thread that watches for the supervisor has ended: what it would have told stays unknown."""
    message = f"the supervisor's thread {thread} ended on {reason}: what it watched is watched no more"
    fix = "launch again, and report the traceback: a detached run has it in logs/supervisor.log"
    return Outcome(message, code=int(ExitCode.BUG), fix=fix)


def out_of_time(ends_at: float) -> Outcome:
    """Before the allocation is taken away, so that requests can finish."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ends_at))
    fix = "launch again; targets.slurm.time asks for more, as far as the partition allows"
    return Outcome(f"the allocation ends at {when}: its time is over", code=int(ExitCode.FINDINGS), fix=fix)


def died(directory: RunDir, process: Process, exit: Exit, ready_at: float | None, restarts: int) -> Outcome:
    """`ready_at` None: it never was."""
    moment = "before it was ready" if ready_at is None else f"{span(exit.at - ready_at)} after it became ready"
    tries = f" It had been restarted {'once' if restarts == 1 else f'{restarts} times'} before." if restarts else ""
    log = directory.current_log(process.name)
    lines = telling_lines(directory, process, TAIL)
    shown = "".join(f"\n  {process.name} | {line}" for line in lines)
    message = f"{process.name} {in_words(exit)} {moment}.{tries} Last {len(lines)} lines of {log}:{shown}"
    return Outcome(message, code=int(ExitCode.FINDINGS))


def late(
    directory: RunDir,
    waiting: tuple[tuple[Spec, Process], ...],
    reached: Mapping[str, Mapping[Stage, float]],
    details: Mapping[str, str],
    timeout: float,
) -> Outcome:
    rows: list[str] = []
    for spec, process in waiting:
        if not process.generation:
            rows.append(f"{spec.name}: not started, it waits for the others")
            continue
        missing = next(stage for stage in stages(spec) if stage not in reached.get(spec.name, {}))
        lines = telling_lines(directory, process, 1)
        last = f"; last line: {lines[-1]}" if lines else ""
        rows.append(f"{spec.name}: {lacking(spec, missing, details.get(spec.name, ''))}{last}")
    message = f"not ready after {span(timeout)}\n  " + "\n  ".join(rows)
    fix = "raise --timeout, or read the logs in " + str(directory.logs)
    return Outcome(message, code=int(ExitCode.NOT_READY), fix=fix)


def telling_lines(directory: RunDir, process: Process, count: int) -> tuple[str, ...]:
    """The last lines of this generation, without the traces of our own questions."""
    lines = last_lines(directory.current_log(process.name), 4 * count, process.generation_start)
    return tuple(line for line in lines if not PROBE.search(line))[-count:]


def own_reason(directory: RunDir, process: Process) -> str:
    """Why this generation ended, as pdctl's engine or router says in a line of its own; empty where there is none."""
    for line in reversed(telling_lines(directory, process, REASON_WITHIN)):
        for words in ENDS:
            _, ends, reason = line.partition(words)
            if ends:
                return reason.removesuffix(START_AGAIN)[:LONGEST_REASON]
    return ""


def lacking(spec: Spec, stage: Stage, detail: str) -> str:
    if stage is Stage.BOUND:
        return f"port {spec.port} not bound"
    if stage is Stage.WEIGHTS:
        return "weights not loaded"
    fallback = {Stage.REGISTERED: f"bootstrap registered 0/{spec.ranks}", Stage.WORKERS: "no worker listed"}
    return detail or fallback.get(stage, f"{spec.health_path} does not answer 200")


def unpaired(results: tuple[Paired, ...]) -> Outcome:
    failed = [result for result in results if result.problem]
    rows = "".join(f"\n  {result.prefill} → {result.decode}: {result.problem}" for result in failed)
    message = f"{len(failed)} of {len(results)} prefill and decode pairs do not answer a request{rows}"
    return Outcome(
        message, code=int(ExitCode.FINDINGS), fix="pdctl logs shows both sides; --no-verify starts without this check"
    )


def span(seconds: float) -> str:
    """0.84 s, 12.3 s, 2m05s, 3h07m, 4d02h."""
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
