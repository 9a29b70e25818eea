"""Bring a deployment up, keep it up, and end it. One thread decides; everything else posts to its mailbox."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError, limit_reached
from pdctl.launch import credentials, ending_reasons, readiness, router_list, turned_instances
from pdctl.launch.deployment import OnDeath, ServerRole
from pdctl.launch.journal import Journal
from pdctl.launch.log_tail import LogTail, part
from pdctl.launch.readiness import ReadinessWatch
from pdctl.launch.run_record import EventKind, Run, RunEvent, RunOutcome, StartStage, State
from pdctl.launch.runtime import (
    Exited,
    Interrupt,
    Located,
    Message,
    Paired,
    Reached,
    Signals,
    SupervisorMailbox,
    ThreadEnded,
    Told,
)
from pdctl.launch.storage import CrashNotice, refused
from pdctl.launch.winddown import AFTER_KILL, WindDown
from pdctl.thread_death import in_words, told_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.launch.deployment import Deployment, Spec
    from pdctl.launch.run_directory import RunDir
    from pdctl.launch.runtime import Handle, Runtime

PAIR_TIMEOUT = 30.0  # seconds one verification request may take
STEADY = 600.0  # seconds of readiness after which earlier restarts no longer count
TICK = 1.0  # seconds between checks of what posts no message
MERCY = 3.0  # seconds for the other nodes of a dead instance to exit by themselves
WARN = 600.0  # seconds before the end of an allocation at which to announce it
# Threads whose messages the supervisor waits for: the end of a process, its stages, a step, its hosts, the pairs.
WATCHES = ("wait ", "watch ", "step ", "hosts", "verify")
ROUTING = ("announce ", "forget ")  # without them the router misses a move, but the run continues
WIND_DOWN = 10.0  # seconds kept free before an allocation ends, beyond draining and grace: nothing is cut off


class Ending(Exception):
    """The run is over; `outcome` says why."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class StartOver(Exception):
    """A process died and the policy restarts every process."""


class Supervisor:
    def __init__(
        self,
        directory: RunDir,
        run: Run,
        runtime: Runtime,
        emit: Callable[[RunEvent], None],
        *,
        mailbox: SupervisorMailbox | None = None,
        watch: Callable[..., ReadinessWatch] = ReadinessWatch,
    ) -> None:
        """`mailbox`: one with another clock, for tests; `watch`: makes what reports when a process is ready."""
        self._runtime = runtime
        self._mailbox = mailbox if mailbox is not None else SupervisorMailbox()
        self._watch = watch
        self._journal = Journal(directory, run, emit)
        self._options = run.options
        self._planned = run.deployment
        self._handles: dict[str, Handle] = {}
        self._watches: dict[str, ReadinessWatch] = {}
        self._reached: dict[str, dict[StartStage, float]] = {}
        self._details: dict[str, str] = {}
        self._results: list[Paired] = []
        self._served = False
        # By instance: all its nodes start and end together.
        self._restarts: dict[str, int] = {}
        self._begun: dict[str, float] = {}  # by the mailbox's clock, as the next two: when it was last started
        self._due: dict[str, float] = {}  # when to start it again
        self._mercy: dict[str, float] = {}  # until when the other nodes of a dead instance may exit by themselves
        self._given_up: set[str] = set()
        self._left_behind: dict[str, list[str]] = {}  # by server: its earlier addresses
        self._warned = False
        self._credentials = router_list.NOBODY

    @property
    def _deployment(self) -> Deployment:
        """The deployment with its current addresses."""
        return self._journal.run.deployment

    def _nodes(self, instance: str) -> tuple[Spec, ...]:
        return tuple(spec for spec in self._deployment.specs if spec.instance == instance)

    def run(self) -> RunOutcome:
        """Run until nothing of the run is left; return why it ended."""
        directory = self._journal.directory.path
        notice = CrashNotice(directory, self._journal.run.name)
        with notice, Signals(self._mailbox), told_threads(self._thread_ended):
            try:
                self._credentials = router_list.Credentials(
                    credentials.api_key(self._deployment), credentials.read(directory)
                )
                self._journal.note(EventKind.SECRET, detail=credentials.decision(self._deployment, directory))
                self._work()
            except Ending as ending:
                outcome = ending.outcome
            except PdctlError as error:
                outcome = RunOutcome(error.message, code=int(error.exit_code), fix=error.fix)
            except (OSError, MemoryError, RuntimeError) as error:
                problem = limit_reached(error) or (refused(directory, error) if isinstance(error, OSError) else None)
                if problem is None:
                    raise
                outcome = RunOutcome(problem.message, code=int(problem.exit_code), fix=problem.fix)
            self._wind_down(outcome)
            with contextlib.suppress(OSError):  # the file system may be read-only by now
                credentials.forget(directory)
        return outcome

    def _thread_ended(self, thread: str, error: BaseException) -> None:
        """Post the end of a thread; called on that thread."""
        self._mailbox.put(ThreadEnded(thread, error))

    def _work(self) -> None:
        while self._serve_until_a_death():
            self._journal.state(State.STARTING)
            self._end_all()
            turned_instances.forget_roles(self._journal.directory.path)  # everything starts as planned
            self._pause(self._backoff(max(self._restarts.values())))

    def _serve_until_a_death(self) -> bool:
        """Return True when a death restarts every process; every other end raises Ending."""
        try:
            self._bring_up()
            self._until(lambda: False)
        except StartOver:
            return True
        return False

    def _bring_up(self) -> None:
        deadline = self._mailbox.now() + self._options.timeout
        names = tuple(spec.name for spec in self._deployment.roles)
        for spec in self._deployment.servers:
            self._start(spec.instance)
        self._until(lambda: all(map(self._is_ready, names)), deadline)
        router = self._deployment.router
        if router:
            self._start(router.name)
            self._until(lambda: self._is_ready(router.name), deadline)
        if self._options.verify:
            self._verify(deadline)
        self._served = True
        self._journal.state(State.SERVING)
        self._journal.note(EventKind.SERVING, detail=self._deployment.url)

    def _verify(self, deadline: float) -> None:
        prefills, decodes = self._deployment.prefills, self._deployment.decodes
        pairs = len(prefills) * len(decodes)
        rounds = -(-pairs // readiness.AT_ONCE)
        whole = rounds * (PAIR_TIMEOUT + 1.0)
        self._results.clear()
        patience = min(PAIR_TIMEOUT, max(1.0, deadline - self._mailbox.now()))
        readiness.verify_pairs(prefills, decodes, patience, whole, self._mailbox.put, self._credentials.key)
        self._until(lambda: len(self._results) == pairs, self._mailbox.now() + whole)
        if any(result.problem for result in self._results):
            raise Ending(ending_reasons.pairs_failed(tuple(self._results)))

    def _start(self, instance: str) -> None:
        """Start the next generation of an instance, on all its nodes, or of the router."""
        generation = 1 + max(self._journal.run.process(spec.name).generation for spec in self._nodes(instance))
        self._move(instance, generation)
        directory = self._journal.directory
        now = turned_instances.with_roles(self._deployment, turned_instances.read_roles(directory.path))
        specs = tuple(spec for spec in now.specs if spec.instance == instance)
        specs = credentials.equipped(specs, self._deployment, directory.path)
        split = generation if self._runtime.moves_ports else 1
        logs = tuple(part(directory.log(spec.name), split) for spec in specs)
        workers = tuple(role.url for role in self._deployment.servers if role.instance not in self._given_up)
        handles = self._runtime.start(specs, generation, logs, self._mailbox.put)
        self._begun[instance] = self._mailbox.now()
        self._mercy.pop(instance, None)
        for spec, handle, log in zip(specs, handles, logs, strict=True):
            self._handles[spec.name] = handle
            self._reached[spec.name] = {StartStage.STARTED: handle.since}
            self._details.pop(spec.name, None)
            self._journal.started(handle)
            self._journal.note(EventKind.STAGE, spec.name, handle.words, stage=StartStage.STARTED, at=handle.since)
            known = workers if spec.role is ServerRole.ROUTER else ()
            tail = LogTail(log, handle.log_start)
            key = self._credentials.key
            watch = self._watch(spec, generation, tail, known, self._options.interval, self._mailbox.put, key)
            self._watches[spec.name] = watch
            watch.start()

    def _move(self, instance: str, generation: int) -> None:
        specs = self._runtime.moved(self._nodes(instance), generation)
        if instance == "router" and self._runtime.moves_ports:
            now = {spec.name: spec for spec in self._deployment.servers}
            planned = {spec.url: now[spec.name] for spec in self._planned.servers}
            router = self._planned.router
            specs = tuple(
                dataclasses.replace(spec, argv=router_list.readdressed(router or spec, planned)) for spec in specs
            )
        if specs != self._nodes(instance):
            self._journal.moved(specs)

    def _is_ready(self, name: str) -> bool:
        return StartStage.READY in self._reached[name]

    def _until(self, condition: Callable[[], bool], deadline: float | None = None) -> None:
        """Handle messages until `condition` holds. Raise Ending at the deadline, on a signal, or when the run must end.

        By `on_death` a process's death ends the run, restarts its instance or leaves it down, or raises StartOver.
        """
        while not condition():
            now = self._mailbox.now()
            if deadline is not None and now >= deadline:
                raise Ending(self._late())
            wake = min([now + TICK, *self._due.values(), *([deadline] if deadline else [])])
            message = self._mailbox.receive(wake)
            if message is not None:
                self._handle(message)
            self._restart_due()

    def _late(self) -> RunOutcome:
        run = self._journal.run
        waiting = tuple(
            (spec, run.process(spec.name))
            for spec in self._deployment.specs
            if StartStage.READY not in self._reached.get(spec.name, {})
        )
        return ending_reasons.start_timed_out(
            self._journal.directory, waiting, self._reached, self._details, self._options.timeout
        )

    def _restart_due(self) -> None:
        now = self._mailbox.now()
        for instance in [instance for instance, at in self._due.items() if at <= now]:
            if not any(self._journal.running(spec.name) for spec in self._nodes(instance)):
                del self._due[instance]
                self._start(instance)
        for instance in [instance for instance, at in self._mercy.items() if at <= now]:
            del self._mercy[instance]
            self._kill(instance)
        for instance in self._restarts:  # a restarted instance that does not become ready in time has failed too
            names = [spec.name for spec in self._nodes(instance)]
            late = now - self._begun[instance] > self._options.timeout and not all(map(self._is_ready, names))
            if late and instance not in self._due and instance not in self._given_up:
                self._kill(instance)
        self._watch_time_limit()
        self._journal.check_storage()

    def _watch_time_limit(self) -> None:
        """End the run in time before its allocation ends, and announce that beforehand."""
        ends_at = self._runtime.ends_at
        if not ends_at:
            return
        left = ends_at - time.time()
        if left < self._options.drain + self._options.grace + WIND_DOWN:
            raise Ending(ending_reasons.out_of_time(ends_at))
        if left < WARN and not self._warned:
            self._warned = True
            self._journal.note(EventKind.LIMIT, detail=f"the allocation ends in {ending_reasons.span(left)}")

    def _kill(self, instance: str) -> None:
        for spec in self._nodes(instance):
            if self._journal.running(spec.name):
                self._handles[spec.name].kill()

    def _handle(self, message: Message) -> None:
        if isinstance(message, Interrupt):
            raise Ending(ending_reasons.stopped(message.number))
        if isinstance(message, Paired):
            self._results.append(message)
            detail = message.problem or "answered"
            self._journal.note(EventKind.PAIR, f"{message.prefill} → {message.decode}", detail, seconds=message.seconds)
            return
        if isinstance(message, ThreadEnded):
            if message.thread.startswith(WATCHES):
                raise Ending(ending_reasons.watcher_ended(message.thread, message.error))
            if message.thread.startswith(ROUTING):
                detail = f"not told: {in_words(message.error)}"
                self._journal.note(EventKind.ROUTED, message.thread.partition(" ")[2], detail)
            return
        handle = self._handles[message.name]
        if message.generation != handle.generation:
            return
        if isinstance(message, Exited):
            self._decide_on_death(message)
        elif isinstance(message, Located):
            self._journal.located(message.name, message.pid)
        elif isinstance(message, Told):
            self._journal.note(
                EventKind.ROUTED, message.name, message.problem or f"the router knows it at {handle.spec.url}"
            )
        elif handle.exit is None:
            self._note_stage(message)

    def _note_stage(self, message: Reached) -> None:
        name = message.name
        self._details[name] = message.detail
        if message.stage is None:
            if message.hopeless and not self._served:
                raise Ending(ending_reasons.never_ready(name, message.detail))
            return
        seconds = message.at - max(self._reached[name].values())
        self._reached[name][message.stage] = message.at
        self._journal.note(
            EventKind.STAGE, name, message.detail, stage=message.stage, seconds=max(0.0, seconds), at=message.at
        )
        if message.stage is StartStage.READY:
            self._announce(self._handles[name].spec)

    def _announce(self, spec: Spec) -> None:
        """Tell the router the new address of a server that was restarted under another one."""
        router = self._deployment.router
        planned = next((each for each in self._planned.servers if each.name == spec.name), None)
        if router is None or planned is None or not self._served or not self._runtime.moves_ports:
            return
        handle = self._handles[spec.name]
        before = tuple(dict.fromkeys((planned.url, *self._left_behind.get(spec.name, ()))))
        old = tuple(url for url in before if url != spec.url)
        router_list.announce(router.url, spec, handle.generation, old, self._mailbox.put, self._credentials)

    def _decide_on_death(self, message: Exited) -> None:
        """Note a death, and decide: start its instance again, leave it down, or end the run (`OnDeath`)."""
        name = message.name
        spec = self._handles[name].spec
        instance = spec.instance
        self._watches[name].close()
        self._journal.exited(name, message.exit)
        if instance in self._due or instance in self._given_up:  # another of its nodes died first
            self._journal.note(EventKind.STOPPED, name, ending_reasons.in_words(message.exit), at=message.exit.at)
            return
        why = ending_reasons.own_reason(self._journal.directory, self._journal.run.process(name))
        words = ending_reasons.in_words(message.exit)
        self._journal.note(EventKind.DIED, name, f"{words}: {why}" if why else words, at=message.exit.at)
        ready_at = self._reached[name].get(StartStage.READY)
        if ready_at is not None and message.exit.at - ready_at > STEADY:
            self._restarts.pop(instance, None)
        tries = self._restarts.get(instance, 0)
        policy = self._options.on_death
        keeps_serving = policy is OnDeath.KEEP_SERVING and bool(self._peers(instance))
        stops = policy is OnDeath.NONE or (policy is OnDeath.KEEP_SERVING and not keeps_serving)
        worn_out = tries >= self._options.max_restarts
        if not self._served or stops or (worn_out and not keeps_serving):
            process = self._journal.run.process(name)
            alone = ""
            if self._served and policy is OnDeath.KEEP_SERVING and not keeps_serving:
                alone = ending_reasons.alone(self._role(instance), bool(self._given_up))
            raise Ending(ending_reasons.died(self._journal.directory, process, message.exit, ready_at, tries, alone))
        self._forget(spec)
        hopeless = self._runtime.beyond_help(self._nodes(instance))
        if worn_out and not hopeless:
            hopeless = f"it was restarted {'once' if tries == 1 else f'{tries} times'}"
        if hopeless:
            self._give_up(instance, hopeless, message, ready_at)
            return
        self._restarts[instance] = tries + 1
        delay = self._backoff(tries + 1)
        what = "everything restarts" if policy is OnDeath.ALL else "restarts"
        detail = f"{what} in {ending_reasons.span(delay)} ({tries + 1} of {self._options.max_restarts})"
        self._journal.note(EventKind.RESTARTING, instance, detail, seconds=delay)
        if policy is OnDeath.ALL:
            raise StartOver
        self._due[instance] = self._mailbox.now() + delay
        self._end_the_others(instance)

    def _end_the_others(self, instance: str) -> None:
        """End the other nodes of an instance with a dead node: they cannot serve and may hang in a collective."""
        for spec in self._nodes(instance):
            self._reached[spec.name] = {}
            if self._journal.running(spec.name):
                self._mercy[instance] = self._mailbox.now() + MERCY
                self._handles[spec.name].terminate()

    def _forget(self, spec: Spec) -> None:
        router = self._deployment.router
        server = self._nodes(spec.instance)[0]
        if router is not None and server.role is not ServerRole.ROUTER and self._runtime.moves_ports:
            self._left_behind.setdefault(server.name, []).append(server.url)
            router_list.forget(router.url, server, self._credentials)

    def _give_up(self, instance: str, why: str, message: Exited, ready_at: float | None) -> None:
        """Leave an instance down. The run continues while its role has another instance; otherwise raise Ending."""
        self._given_up.add(instance)
        others = self._peers(instance)
        if not others:
            process = self._journal.run.process(message.name)
            alone = f"{instance} stays down ({why}), and no other {self._role(instance).value} is left"
            raise Ending(ending_reasons.died(self._journal.directory, process, message.exit, ready_at, 0, alone))
        rest = ", ".join(spec.instance for spec in others)
        self._journal.note(
            EventKind.DIED, instance, f"stays down: {why}; {rest} {'go' if len(others) > 1 else 'goes'} on"
        )
        self._end_the_others(instance)

    def _role(self, instance: str) -> ServerRole:
        """The role that the instance has now: the planned one, unless it was switched."""
        turned = turned_instances.read_roles(self._journal.directory.path).get(instance)
        return turned.role if turned is not None else self._nodes(instance)[0].role

    def _peers(self, instance: str) -> list[Spec]:
        """The other instances that have the same role now and have not been given up. A router has none."""
        role = self._role(instance)
        others = (spec for spec in self._deployment.servers if spec.instance not in (instance, *self._given_up))
        return [spec for spec in others if self._role(spec.instance) is role]

    def _backoff(self, tries: int) -> float:
        return float(min(self._options.backoff * 2 ** (tries - 1), self._options.backoff_max))

    def _pause(self, seconds: float) -> None:
        until = self._mailbox.now() + seconds
        self._until(lambda: self._mailbox.now() >= until)

    def _end_all(self) -> None:
        """Kill every process of this generation at once, because a new one follows."""
        for watch in self._watches.values():
            watch.close()
        for handle in self._handles.values():
            handle.kill()
        deadline = self._mailbox.now() + AFTER_KILL
        while any(self._journal.run.process(name).exit is None for name in self._handles):
            message = self._mailbox.receive(deadline)
            if message is None:
                return  # the new generation will find its ports taken and report it
            if isinstance(message, Interrupt):
                raise Ending(ending_reasons.stopped(message.number))
            if isinstance(message, Exited):
                self._journal.exited(message.name, message.exit)

    def _wind_down(self, outcome: RunOutcome) -> None:
        for watch in self._watches.values():
            watch.close()
        down = WindDown(self._journal, self._runtime, self._mailbox, self._handles, self._deployment)
        down.run(outcome, self._options)
