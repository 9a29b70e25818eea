"""The steps of a switch, described (`--dry-run`) or performed; on failure, the state the instance is left in."""

from __future__ import annotations

import time
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError
from pdctl.fleet import canary_probe
from pdctl.fleet.canary_probe import Prompt, Side
from pdctl.shell_quoting import pasteable
from pdctl.switch.admin_requests import WORKERS, Routing, SwitchingInstance
from pdctl.switch.switch_order import PREFILL, Result, Standing, StepNote, SwitchStep, other
from pdctl.switch.switch_refusals import graph_memory, has_graphs, port_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.fleet.observations import Canary
    from pdctl.switch.switch_order import SwitchOrder
    from pdctl.switch.switch_refusals import Fleet, Member

CANARY = 60.0  # seconds
# A decode of sglang 0.5.23 keeps the address that a prefill had before it became a decode; nothing tells it of the
# new one. It asks again after a room has waited SGLANG_DISAGGREGATION_WAITING_TIMEOUT (300 s; 321 s measured).
CANARY_OF_RETURNED = 400.0
AGAIN = 0.5  # seconds between two queries
BETWEEN_TURNS = 1.0  # seconds between two orders to an instance that is not idle
SLICE = 5.0  # seconds of draining between reports of what is left
ROUTER = 60.0  # seconds for a router to carry out what it has accepted
SETTLE = 30.0  # seconds for the instance to become what it said it is
PAIR = 20.0  # seconds for the first canary of a pair; the next one may take the time left
PROMPT = Prompt("Hello", tokens=2)


def canary_seconds(order: SwitchOrder, fleet: Fleet) -> float:
    if order.canary is not None:
        return order.canary
    return CANARY if order.to != PREFILL or fleet.target.embedded else CANARY_OF_RETURNED


def steps(order: SwitchOrder, fleet: Fleet) -> Iterator[StepNote]:
    """The steps in order, without those that have nothing to do."""
    target, old, new = fleet.target, other(order.to), order.to
    for router, entry in zip(fleet.routers, target.listed, strict=True):
        if entry is not None:
            yield StepNote(
                SwitchStep.REMOVE, f"DELETE {order.url} at {router.url} ({router.kind}), and wait until it is gone"
            )
    if target.role != new:
        yield StepNote(SwitchStep.DRAIN, f"wait up to {order.drain:g} s until it holds nothing in two looks")
        graphs = "" if target.embedded or new == PREFILL or has_graphs(target) else _graphs(order, fleet)
        yield StepNote(
            SwitchStep.SWITCH, f"POST {order.url}/pd_role_switch: {old} -> {new}{graphs}; again while it is not idle"
        )
    yield StepNote(SwitchStep.VERIFY, f"its role reads {new}, /health answers 200" + _ranks(order, fleet))
    peers = [member.name for member in fleet.of(old) if member.healthy]
    yield StepNote(
        SwitchStep.CANARY, f"one request with each of {', '.join(peers)}, within {canary_seconds(order, fleet):g} s"
    )
    for router in fleet.routers:
        port = f" with bootstrap port {port_of(order, fleet)}" if new == PREFILL else ""
        yield StepNote(SwitchStep.ADD, f"POST it at {router.url} as a {new}{port}, and wait until it is routed to")


def _graphs(order: SwitchOrder, fleet: Fleet) -> str:
    return f" with {graph_memory(order, fleet):g} GB for its CUDA graphs"


def _ranks(order: SwitchOrder, fleet: Fleet) -> str:
    if order.to != PREFILL:
        return ""
    return f", {fleet.target.ranks} rank(s) at {fleet.target.host}:{port_of(order, fleet)}"


class Left(Enum):
    """What is known about the instance."""

    UNTOUCHED = 0
    OUT = 1  # removed from a router, in its old role
    UNSURE = 2  # it was told to switch and has not answered
    BROKEN = 3  # it says that it can no longer serve
    TURNED = 4  # it has its new role


class Stopped(Exception):
    """The switch ends here."""

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; `result` says how the instance was left."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result


class Switch:
    """One switch of one instance. `told` is called with every step as it ends."""

    def __init__(self, order: SwitchOrder, fleet: Fleet, told: Callable[[StepNote], None]) -> None:
        self._order, self._fleet, self._told = order, fleet, told
        self._target = fleet.target
        self._old, self._new = other(order.to), order.to
        self._instance = SwitchingInstance(order.name, order.url, order.key, order.secret)
        self._routings = [Routing(url, order.key, order.secret) for url in order.routers]
        self._removed: list[tuple[Routing, str, int | None]] = []  # router, and the role and port it had there
        self._left = Left.UNTOUCHED
        self._durations: dict[str, float] = {}
        self._port = port_of(order, fleet)

    def run(self) -> Result:
        """Perform the switch. Raise Interrupted on Ctrl-C, at whatever step."""
        try:
            self._steps()
        except KeyboardInterrupt:
            raise Interrupted(self._end(Stopped("interrupted"))) from None
        except (Stopped, PdctlError) as stop:
            return self._end(Stopped(str(stop), stop.fix))
        return self._result(Standing.SWITCHED)

    def _steps(self) -> None:
        turned = self._target.role == self._new  # by an earlier run of this that did not finish
        steps: list[tuple[SwitchStep, Callable[[], str]]] = [(SwitchStep.REMOVE, self._remove)]
        if turned:
            self._left = Left.TURNED
        else:
            steps += [(SwitchStep.DRAIN, self._drain), (SwitchStep.SWITCH, self._turn)]
        steps += [(SwitchStep.VERIFY, self._verify), (SwitchStep.CANARY, self._canaries), (SwitchStep.ADD, self._add)]
        for step, work in steps:
            began = time.monotonic()
            words = work()
            self._durations[step.value] = seconds = time.monotonic() - began
            self._told(StepNote(step, words, seconds))

    def _remove(self) -> str:
        gone: list[str] = []
        for routing in self._routings:
            entry = routing.entry(self._order.url)
            if entry is None:
                continue
            if self._left is Left.UNTOUCHED:
                self._left = Left.OUT
            self._removed.append((routing, entry.worker.role, entry.worker.bootstrap_port))
            routing.remove(entry)
            gone.append(routing.url)
        for routing in self._routings:
            still = partial(_listed, routing, self._order.url)
            self._wait(ROUTER, still, f"router {routing.url} to let it go")
        return f"out of {', '.join(gone)}" if gone else "in no router"

    def _drain(self) -> str:
        """Wait until it is idle twice in a row: a request on its way may arrive between two queries."""
        deadline, quiet, said = time.monotonic() + self._order.drain, 0, ""
        while quiet < 2:
            left = deadline - time.monotonic()
            holds = self._holds(min(SLICE, max(0.0, left)) if said else 0.0)
            if not holds:
                quiet += 1
                time.sleep(AGAIN)
                continue
            quiet = 0
            if left <= 0:
                raise Stopped(
                    f"{self._order.name} is not idle after {self._order.drain:g} s: {holds}",
                    f"--drain-timeout, or end them: curl -X POST {pasteable(self._order.url)}/abort_request "
                    "-d '{\"abort_all\": true}'",
                )
            if holds != said:
                self._told(StepNote(SwitchStep.DRAIN, holds))
            said = holds
        return "idle"

    def _holds(self, seconds: float) -> str:
        held = self._instance.held(seconds)
        if held is None:
            raise Stopped(f"what {self._order.name} still holds cannot be read at {self._order.url}/v1/loads")
        words = [f"{name} {count:g}" for name, count in held.items()]
        flights = ((routing.url, routing.in_flight(self._order.url)) for routing in self._routings)
        return ", ".join(words + [f"in flight at {url}: {count}" for url, count in flights if count])

    def _turn(self) -> str:
        deadline = time.monotonic() + self._order.turn
        order, graphs = self._order, None
        if not self._target.embedded and self._new != PREFILL and not has_graphs(self._target):
            graphs = graph_memory(order, self._fleet)
        while True:
            self._left = Left.UNSURE
            answer = self._instance.turn(self._new, graphs, max(1.0, deadline - time.monotonic()))
            if answer.success:
                self._left = Left.TURNED
                return f"{self._old} -> {self._new}"
            if not answer.known:
                raise Stopped(f"{order.name} did not answer whether it switched: {answer.message}")
            self._left = Left.OUT if answer.safe_to_restore else Left.BROKEN
            if not answer.not_idle or time.monotonic() >= deadline:
                raise Stopped(f"{order.name} does not switch: {answer.message}")
            self._told(StepNote(SwitchStep.SWITCH, answer.message))
            time.sleep(BETWEEN_TURNS)

    def _verify(self) -> str:
        self._wait(SETTLE, self._lacks, f"{self._order.name} to serve as a {self._new}")
        return f"it serves as a {self._new}"

    def _lacks(self) -> str:
        return self._instance.lacks(self._new, self._target.host, self._port, self._target.ranks)

    def _canaries(self) -> str:
        """One request with every peer, retried: a decode's first one may use an address the prefill no longer has."""
        seconds = canary_seconds(self._order, self._fleet)
        deadline = time.monotonic() + seconds
        peers = [self._side(member) for member in self._fleet.of(self._old) if member.healthy]
        own = Side(self._order.name, self._order.url, bootstrap_port=self._port)
        waiting, tries = peers, 0
        while True:
            tries += 1
            left = max(1.0, deadline - time.monotonic())
            cells = self._ask(own, waiting, left, min(PAIR, left) if tries == 1 else left)
            bad = [cell for cell in cells if not cell.ok]
            if not bad:
                return f"{len(peers)} of {len(peers)} pairs answered" + (f", at try {tries}" if tries > 1 else "")
            words = "; ".join(f"{cell.prefill} -> {cell.decode}: {cell.reason}" for cell in bad)
            if time.monotonic() >= deadline:
                raise Stopped(f"canary after {seconds:g} s: {words}")
            self._told(StepNote(SwitchStep.CANARY, words))
            names = {name for cell in bad for name in (cell.prefill, cell.decode)}
            waiting = [side for side in peers if side.name in names]
            time.sleep(AGAIN)

    def _ask(self, own: Side, peers: list[Side], left: float, patience: float) -> tuple[Canary, ...]:
        prefills, decodes = ([own], peers) if self._new == PREFILL else (peers, [own])
        return canary_probe.matrix(prefills, decodes, left, prompt=PROMPT, patience=patience, key=self._order.key)

    def _side(self, member: Member) -> Side:
        listed = next((entry.bootstrap_port for entry in member.listed if entry and entry.bootstrap_port), None)
        return Side(member.name, member.url, bootstrap_port=listed or member.bootstrap_port)

    def _add(self) -> str:
        port = self._port if self._new == PREFILL else None
        for routing in self._routings:
            self._put(routing, self._new, port)
        words = ", ".join(routing.url for routing in self._routings) or "no router"
        return f"{self._new} in {words}" + (f", bootstrap port {port}" if port is not None else "")

    def _put(self, routing: Routing, role: str, port: int | None) -> None:
        routing.add(self._order.url, role, port)

        def lacks() -> str:
            entry = routing.entry(self._order.url)
            if entry is None:
                return "it is not listed"
            worker = entry.worker
            if worker.role != role or (port is not None and worker.bootstrap_port != port):
                return f"it is listed as a {worker.role} with bootstrap port {worker.bootstrap_port}"
            return "" if worker.healthy else f"it is {worker.health}"

        self._wait(ROUTER, lacks, f"router {routing.url} to route to it as a {role}")

    def _wait(self, seconds: float, lacks: Callable[[], str], what: str) -> None:
        """Wait until `lacks` returns "". Raise Stopped naming what was waited for and what was missing last."""
        deadline = time.monotonic() + seconds
        while missing := lacks():
            if time.monotonic() >= deadline:
                raise Stopped(f"waited {seconds:g} s for {what}: {missing}")
            time.sleep(AGAIN)

    def _end(self, stop: Stopped) -> Result:
        order, again = self._order, "the same command again takes up where this one ended"
        if self._left is Left.UNTOUCHED:
            return self._result(Standing.AS_BEFORE, stop.problem, stop.fix)
        if self._left is Left.OUT:
            return self._restore(stop)
        if self._left is Left.TURNED:
            problem = f"{stop.problem}. {order.name} is a {self._new} now, and not (everywhere) routed to"
            missing = self._lacks()
            if missing:
                problem, again = (
                    f"{problem}; it does not serve: {missing}",
                    f"the end of its log; start {order.name} again",
                )
            return self._result(Standing.OUT, problem, stop.fix or again)
        if self._left is Left.BROKEN:
            fix = f"start {order.name} again; pdctl leaves it out of every router until then"
            return self._result(Standing.OUT, stop.problem, fix)
        problem = f"{stop.problem}. Nobody knows what became of it; now it says: {self._instance.role() or 'nothing'}"
        fix = f"look at {order.url}/model_info: where it is a {self._new}, {again}; else start it again"
        return self._result(Standing.OUT, problem, fix)

    def _restore(self, stop: Stopped) -> Result:
        """Put the instance back, as it was, into every router that had it."""
        began = time.monotonic()
        try:
            for routing, role, port in self._removed:
                wanted = (port or self._target.bootstrap_port) if role == PREFILL else None
                self._put(routing, role, wanted)
        except (Stopped, PdctlError) as failed:
            problem = f"{stop.problem}. It could not be put back into its router: {failed}"
            return self._result(Standing.OUT, problem, f"add {self._order.url} to the router as a {self._old}")
        except KeyboardInterrupt:
            problem = (
                f"{stop.problem} twice. It was being put back into its router; whether it got there nobody has seen"
            )
            fix = f"curl -s {pasteable(self._removed[-1][0].url)}{WORKERS}; if it is not there, add it as a {self._old}"
            return self._result(Standing.OUT, problem, fix)
        self._told(StepNote(SwitchStep.RESTORE, f"{self._old} as before", time.monotonic() - began))
        return self._result(Standing.AS_BEFORE, stop.problem, stop.fix)

    def _result(self, standing: Standing, problem: str = "", fix: str = "") -> Result:
        return Result(
            self._order.name, self._order.url, self._old, self._new, standing, problem, fix,
            self._port if self._new == PREFILL else None, self._target.ranks, tuple(self._durations.items()),
        )  # fmt: skip


def _listed(routing: Routing, url: str) -> str:
    return "it is still listed" if routing.entry(url) is not None else ""
