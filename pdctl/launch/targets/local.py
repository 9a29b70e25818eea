"""This machine: every instance is a child of the supervisor, which is this process or, with -d, a detached one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from pdctl.errors import LaunchError
from pdctl.fleet import listeners
from pdctl.launch import deployment_plan, preflight, procfs, remote
from pdctl.launch.process import RUN, ChildProcess, start
from pdctl.launch.run_opening import failing, open_ordered
from pdctl.launch.supervisor import Supervisor
from pdctl.launch.targets.target import DryRun
from pdctl.lifeline import Lifeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pdctl.launch.deployment import Deployment, Spec
    from pdctl.launch.run_opening import Opened
    from pdctl.launch.run_record import RunOutcome
    from pdctl.launch.runtime import Exited
    from pdctl.launch.targets.target import Display, LaunchOrder

SWEEP = 2.0  # seconds for killed processes to disappear


class LocalTarget:
    def __init__(self, order: LaunchOrder) -> None:
        self._order = order
        self.topology = order.topology
        self.plan = deployment_plan.plan_here(order.topology)
        self.cautions = self.plan.warnings
        self._deployment = deployment_plan.deployment(order.topology, self.plan)
        self.rehearsal = bool(self._deployment.rehearsal)

    def dry_run(self) -> DryRun:
        return DryRun(self._deployment, lacking=preflight.not_installed(self._deployment))

    def launch(self, display: Display) -> RunOutcome | None:
        runtime = LocalRuntime(self._order.name or self._deployment.name, os.environ)
        opened = open_ordered(self._order, self.plan, self._deployment, preflight.check)
        with failing(opened):
            display.opened(opened.directory, opened.run)
            if self._order.detached:
                _leave_running(opened, display)
                return None
            outcome = Supervisor(opened.directory, opened.run, runtime, display.event).run()
        os.close(opened.lock)
        return outcome


def _leave_running(opened: Opened, display: Display) -> None:
    supervisor = remote.detach(opened.directory, opened.lock)
    try:
        run = remote.await_serving(opened.directory, lambda: supervisor.poll() is not None, display.event)
    except KeyboardInterrupt:
        # The user cancelled the launch; the second signal says that nothing needs to be drained.
        supervisor.send_signal(signal.SIGTERM)
        supervisor.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(timeout=remote.MARGIN)
        raise
    remote.release(supervisor)
    display.serving(run)


class LocalRuntime:
    ends_at = 0.0
    moves_ports = False

    def __init__(self, run: str, environ: Mapping[str, str]) -> None:
        self._environ = {**environ, RUN: run}
        self._lifeline = Lifeline()
        self._children: list[ChildProcess] = []
        self._adopted_before = self._strangers()
        procfs.adopt_orphans()

    def moved(self, specs: tuple[Spec, ...], generation: int) -> tuple[Spec, ...]:
        del generation
        return specs

    def start(
        self, specs: tuple[Spec, ...], generation: int, logs: Sequence[Path], post: Callable[[Exited], None]
    ) -> tuple[ChildProcess, ...]:
        return tuple(self._start(spec, generation, log, post) for spec, log in zip(specs, logs, strict=True))

    def _start(self, spec: Spec, generation: int, log: Path, post: Callable[[Exited], None]) -> ChildProcess:
        try:
            child = start(spec, generation, log, self._lifeline, self._environ)
        except OSError as error:
            raise LaunchError(f"{spec.name}: cannot start {spec.argv[0]}: {error.strerror}") from None
        self._children.append(child)
        child.watch(post)
        return child

    def beyond_help(self, specs: tuple[Spec, ...]) -> str:
        del specs
        return ""

    def sweep(self) -> tuple[str, ...]:
        """Kill processes that left their session and that this process adopted when their parent died."""
        deadline = time.monotonic() + SWEEP
        left = self._left()
        while left and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.01)
            left = self._left()
        return tuple(f"process {pid}" for pid in left)

    def _left(self) -> tuple[int, ...]:
        own = {child.pid for child in self._children if child.exit is None}
        inside = {pid for child in self._children for pid in procfs.session(child.pid)}
        return tuple(sorted((self._strangers() - self._adopted_before - own) | (inside - own)))

    def _strangers(self) -> set[int]:
        return set(procfs.descendants(os.getpid()))

    def busy_ports(self, deployment: Deployment) -> tuple[int, ...]:
        taken = (
            port.port for spec in deployment.specs for port in spec.ports if not listeners.is_free(port.port, spec.host)
        )
        return tuple(taken)
