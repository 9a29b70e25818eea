"""Brings a deployment up, keeps it up, and ends it. One thread decides; everything else posts to its mailbox."""

from __future__ import annotations

import contextlib
import time
from queue import Empty
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError
from pdctl.launch import verdict, verify
from pdctl.launch.deployment import OnDeath, Spec
from pdctl.launch.events import Event, Kind, Stage
from pdctl.launch.journal import Journal
from pdctl.launch.mailbox import Exited, Interrupt, Mailbox, Message, Paired, Reached
from pdctl.launch.readiness import Watch
from pdctl.launch.relay import Tail
from pdctl.launch.run import Outcome, Run, State
from pdctl.launch.signals import Signals
from pdctl.launch.winddown import AFTER_KILL, WindDown

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.launch.state import RunDir
    from pdctl.launch.targets import Handle, Target

PAIR_TIMEOUT = 30.0  # seconds one verification request may take
STEADY = 600.0  # seconds of readiness after which earlier restarts are forgiven
TICK = 1.0  # seconds between looks at what has no message of its own


class Ending(Exception):
    """The run is over; `outcome` says why."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class StartOver(Exception):
    """A process died and the policy restarts every process."""


class Supervisor:
    def __init__(self, directory: RunDir, run: Run, target: Target, emit: Callable[[Event], None]) -> None:
        self._target = target
        self._mailbox = Mailbox()
        self._journal = Journal(directory, run, emit)
        self._deployment = run.deployment
        self._options = run.options
        self._specs = {spec.name: spec for spec in run.deployment.specs}
        self._handles: dict[str, Handle] = {}
        self._watches: dict[str, Watch] = {}
        self._reached: dict[str, dict[Stage, float]] = {}
        self._details: dict[str, str] = {}
        self._results: list[Paired] = []
        self._served = False
        self._restarts: dict[str, int] = {}
        self._due: dict[str, float] = {}  # monotonic times of planned restarts

    def run(self) -> Outcome:
        """Returns when nothing of the run is left."""
        with Signals(self._mailbox):
            try:
                self._work()
            except Ending as ending:
                outcome = ending.outcome
            except PdctlError as error:
                outcome = Outcome(error.message, code=int(error.exit_code), fix=error.fix)
            self._wind_down(outcome)
        return outcome

    def _work(self) -> None:
        while self._serve_until_a_death():
            self._journal.state(State.STARTING)
            self._end_all()
            self._pause(self._backoff(max(self._restarts.values())))

    def _serve_until_a_death(self) -> bool:
        """True when a death restarts every process; every other end raises Ending."""
        try:
            self._bring_up()
            self._until(lambda: False)
        except StartOver:
            return True
        return False

    def _bring_up(self) -> None:
        deadline = time.monotonic() + self._options.timeout
        roles = self._deployment.roles
        for spec in roles:
            self._start(spec)
        self._until(lambda: all(map(self._is_ready, roles)), deadline)
        router = self._deployment.router
        if router:
            self._start(router)
            self._until(lambda: self._is_ready(router), deadline)
        if self._options.verify:
            self._verify(deadline)
        self._served = True
        self._journal.state(State.SERVING)
        self._journal.note(Kind.SERVING, detail=self._deployment.url)

    def _verify(self, deadline: float) -> None:
        prefills, decodes = self._deployment.prefills, self._deployment.decodes
        pairs = len(prefills) * len(decodes)
        rounds = -(-pairs // verify.AT_ONCE)
        whole = rounds * (PAIR_TIMEOUT + 1.0)
        self._results.clear()
        patience = min(PAIR_TIMEOUT, max(1.0, deadline - time.monotonic()))
        verify.start(prefills, decodes, patience, whole, self._mailbox.put)
        self._until(lambda: len(self._results) == pairs, time.monotonic() + whole)
        if any(result.problem for result in self._results):
            raise Ending(verdict.unpaired(tuple(self._results)))

    def _start(self, spec: Spec) -> None:
        generation = self._journal.run.process(spec.name).generation + 1
        directory = self._journal.directory
        handle = self._target.start(spec, generation, directory.log(spec.name), self._mailbox.put)
        self._handles[spec.name] = handle
        self._reached[spec.name] = {Stage.STARTED: handle.since}
        self._details.pop(spec.name, None)
        self._journal.started(handle)
        self._journal.note(Kind.STAGE, spec.name, f"pid {handle.pid}", stage=Stage.STARTED, at=handle.since)
        workers = tuple(role.url for role in self._deployment.servers) if spec is self._deployment.router else ()
        tail = Tail(directory.log(spec.name), handle.log_start)
        watch = Watch(spec, generation, tail, workers, self._options.interval, self._mailbox.put)
        self._watches[spec.name] = watch
        watch.start()

    def _is_ready(self, spec: Spec) -> bool:
        return Stage.READY in self._reached[spec.name]

    def _until(self, condition: Callable[[], bool], deadline: float | None = None) -> None:
        """Handle messages until `condition` holds. Raises Ending at the deadline, on a signal, on a death."""
        while not condition():
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise Ending(self._late())
            wake = min([now + TICK, *self._due.values(), *([deadline] if deadline else [])])
            with contextlib.suppress(Empty):
                self._handle(self._mailbox.get(timeout=max(0.0, wake - now)))
            self._restart_due()

    def _late(self) -> Outcome:
        run = self._journal.run
        waiting = tuple(
            (spec, run.process(spec.name))
            for spec in self._deployment.specs
            if Stage.READY not in self._reached.get(spec.name, {})
        )
        return verdict.late(self._journal.directory, waiting, self._reached, self._details, self._options.timeout)

    def _restart_due(self) -> None:
        now = time.monotonic()
        for name in [name for name, at in self._due.items() if at <= now]:
            del self._due[name]
            self._start(self._specs[name])
        for name in self._restarts:  # a restarted process that never becomes ready has failed as well
            handle = self._handles[name]
            overdue = time.time() - handle.since > self._options.timeout
            if overdue and name not in self._due and not self._is_ready(self._specs[name]):
                handle.kill()

    def _handle(self, message: Message) -> None:
        if isinstance(message, Interrupt):
            raise Ending(verdict.stopped(message.number))
        if isinstance(message, Paired):
            self._results.append(message)
            detail = message.problem or "answered"
            self._journal.note(Kind.PAIR, f"{message.prefill} → {message.decode}", detail, seconds=message.seconds)
            return
        handle = self._handles[message.name]
        if message.generation != handle.generation:
            return
        if isinstance(message, Exited):
            self._note_death(message)
        elif handle.exit is None:
            self._note_stage(message)

    def _note_stage(self, message: Reached) -> None:
        name = message.name
        self._details[name] = message.detail
        if message.stage is None:
            return
        seconds = message.at - max(self._reached[name].values())
        self._reached[name][message.stage] = message.at
        self._journal.note(
            Kind.STAGE, name, message.detail, stage=message.stage, seconds=max(0.0, seconds), at=message.at
        )

    def _note_death(self, message: Exited) -> None:
        name = message.name
        self._watches[name].close()
        self._journal.exited(name, message.exit)
        self._journal.note(Kind.DIED, name, verdict.in_words(message.exit), at=message.exit.at)
        ready_at = self._reached[name].get(Stage.READY)
        if ready_at is not None and message.exit.at - ready_at > STEADY:
            self._restarts.pop(name, None)
        tries = self._restarts.get(name, 0)
        policy = self._options.on_death
        if policy is OnDeath.STOP or not self._served or tries >= self._options.max_restarts:
            process = self._journal.run.process(name)
            raise Ending(verdict.died(self._journal.directory, process, message.exit, ready_at, tries))
        self._restarts[name] = tries + 1
        delay = self._backoff(tries + 1)
        what = "everything restarts" if policy is OnDeath.RESTART_ALL else "restarts"
        detail = f"{what} in {verdict.span(delay)} ({tries + 1} of {self._options.max_restarts})"
        self._journal.note(Kind.RESTARTING, name, detail)
        if policy is OnDeath.RESTART_ALL:
            raise StartOver
        self._reached[name] = {}
        self._due[name] = time.monotonic() + delay

    def _backoff(self, tries: int) -> float:
        return float(min(self._options.backoff * 2 ** (tries - 1), self._options.backoff_max))

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._until(lambda: time.monotonic() >= until)

    def _end_all(self) -> None:
        """End every process of this generation at once, as a new one follows."""
        for watch in self._watches.values():
            watch.close()
        for handle in self._handles.values():
            handle.kill()
        deadline = time.monotonic() + AFTER_KILL
        while any(self._journal.run.process(name).exit is None for name in self._handles):
            try:
                message = self._mailbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return  # the new generation will find its ports taken, and say so
            if isinstance(message, Interrupt):
                raise Ending(verdict.stopped(message.number))
            if isinstance(message, Exited):
                self._journal.exited(message.name, message.exit)

    def _wind_down(self, outcome: Outcome) -> None:
        for watch in self._watches.values():
            watch.close()
        down = WindDown(self._journal, self._target, self._mailbox, self._handles, self._deployment)
        down.run(outcome, self._options)
