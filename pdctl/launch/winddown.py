"""End a run: first the router, so that it finishes its requests, then decode and prefill. A second signal kills all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pdctl.fleet import router_probe
from pdctl.launch import ending_reasons
from pdctl.launch.deployment import Deployment, LaunchOptions, ServerRole
from pdctl.launch.run_record import EventKind, RunOutcome, State
from pdctl.launch.runtime import Exited, Interrupt, SupervisorMailbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdctl.launch.journal import Journal
    from pdctl.launch.runtime import Handle, Runtime

ASK_ROUTER = 2.0  # seconds for the router to say how many requests are in flight
AFTER_KILL = 5.0  # seconds for a killed process to be gone


class WindDown:
    def __init__(
        self,
        journal: Journal,
        runtime: Runtime,
        mailbox: SupervisorMailbox,
        handles: Mapping[str, Handle],
        deployment: Deployment,
    ) -> None:
        self._journal = journal
        self._runtime = runtime
        self._mailbox = mailbox
        self._handles = handles
        self._deployment = deployment
        self._asked: dict[str, float] = {}
        self._killed: set[str] = set()
        self._now = False

    def run(self, outcome: RunOutcome, options: LaunchOptions) -> None:
        began = self._mailbox.now()
        self._journal.state(State.STOPPING)
        self._journal.note(EventKind.STOPPING, detail=self._in_flight())
        routers = [handle for handle in self._handles.values() if handle.spec.role is ServerRole.ROUTER]
        others = [handle for handle in self._handles.values() if handle.spec.role is not ServerRole.ROUTER]
        self._stop(routers, options.drain)
        self._stop(others, options.grace)
        detail = self._nothing_left()
        self._journal.state(State.STOPPED if outcome.signal else State.FAILED, outcome)
        self._journal.note(EventKind.ENDED, detail=detail, seconds=self._mailbox.now() - began)

    def _in_flight(self) -> str:
        spec = self._deployment.router
        if spec is None or not self._journal.running(spec.name):
            return ""
        count = router_probe.fetch(spec.url, ASK_ROUTER).in_flight
        return f"{count} request{'s' if count > 1 else ''} in flight" if count else ""

    def _stop(self, handles: list[Handle], grace: float) -> None:
        waiting = [handle for handle in handles if self._journal.running(handle.spec.name)]
        for handle in waiting:
            self._asked[handle.spec.name] = time.time()
            handle.terminate()
        if self._now:
            self._kill(waiting)
        self._await(waiting, 0.0 if self._now else grace)
        late = [handle for handle in waiting if self._journal.running(handle.spec.name)]
        if late:
            self._kill(late)
            self._await(late, AFTER_KILL)

    def _await(self, handles: list[Handle], seconds: float) -> None:
        """Handle messages until all of `handles` have ended or time is up; a signal kills every process at once."""
        deadline = self._mailbox.now() + seconds
        while any(self._journal.running(handle.spec.name) for handle in handles):
            message = self._mailbox.receive(deadline)
            if message is None:
                return
            if isinstance(message, Interrupt) and not self._now:
                self._now = True
                self._kill(handle for handle in self._handles.values() if self._journal.running(handle.spec.name))
            elif isinstance(message, Exited) and self._journal.running(message.name):
                self._note_end(message)

    def _kill(self, handles: Iterable[Handle]) -> None:
        for handle in handles:
            self._asked.setdefault(handle.spec.name, time.time())
            self._killed.add(handle.spec.name)
            handle.kill()

    def _note_end(self, message: Exited) -> None:
        name, at = message.name, message.exit.at
        self._journal.exited(name, message.exit)
        ordered = message.exit.ours or message.exit.asked
        if name not in self._asked or (not ordered and at < self._asked[name]):
            self._journal.note(EventKind.DIED, name, ending_reasons.in_words(message.exit), at=at)
            return
        seconds = max(0.0, at - self._asked[name])
        # SGLang kills itself with SIGKILL when it exits as asked (0.5.3 to 0.5.23).
        kind = EventKind.KILLED if message.exit.signal == 9 and name in self._killed else EventKind.STOPPED
        self._journal.note(kind, name, ending_reasons.in_words(message.exit), seconds=seconds, at=at)

    def _nothing_left(self) -> str:
        """What is left, in words. Normally nothing is, and the text says so because it was checked."""
        deaf = (f"{handle.spec.name} ({handle.words})" for handle in self._handles.values() if handle.exit is None)
        left = (*self._runtime.sweep(), *deaf)
        busy = self._runtime.busy_ports(self._deployment)
        found = [f"{what} cannot be ended" for what in left]
        found += [f"port {port} is still taken" for port in busy]
        if found:
            return "; ".join(found)
        ports = sum(len(spec.ports) for spec in self._deployment.specs)
        return f"nothing left: {len(self._handles)} processes gone, {ports} ports free"
