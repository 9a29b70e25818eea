"""Watch each process become ready, stage by stage; then send one real request through every prefill and decode pair."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pdctl.engines.base import Sign
from pdctl.engines.row_matching import literal
from pdctl.errors import LimitError
from pdctl.fleet import bootstrap_probe, canary_probe, http_client, prober, router_probe
from pdctl.fleet.canary_probe import Prompt, Side
from pdctl.launch.deployment import ServerRole, Spec
from pdctl.launch.run_record import StartStage
from pdctl.launch.runtime import Paired, Reached

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.fleet.observations import Canary
    from pdctl.launch.log_tail import LogTail


PROMPT = Prompt("Hello", tokens=2)
AT_ONCE = 8
LISTENS_LINE, WEIGHTS_LINE, READY_LINE = map(literal, (Sign.LISTENS, Sign.WEIGHTS_LOADED, Sign.READY))
EAGER = 0.1  # seconds between checks in the first seconds of a start
EAGER_FOR = 20.0
PROBE = 2.0  # seconds one probe may take


def verify_pairs(
    prefills: tuple[Spec, ...],
    decodes: tuple[Spec, ...],
    timeout: float,
    whole: float,
    post: Callable[[Paired], None],
    key: str = "",
) -> None:
    """Try all pairs, a few at a time, on another thread; post one message per pair.

    `timeout` and `whole`: seconds for one pair and for all of them.
    """

    def told(cell: Canary) -> None:
        post(Paired(cell.prefill, cell.decode, cell.reason, cell.seconds))

    def work() -> None:
        ends = [_side(spec) for spec in prefills], [_side(spec) for spec in decodes]
        canary_probe.matrix(*ends, whole, prompt=PROMPT, patience=timeout, at_once=AT_ONCE, key=key, told=told)

    threading.Thread(target=work, name="verify", daemon=True).start()


def _side(spec: Spec) -> Side:
    return Side(spec.name, spec.url, spec.host, spec.bootstrap_port)


def stages(spec: Spec) -> tuple[StartStage, ...]:
    """The stages this process passes on its way to ready, in the order in which they are reported."""
    if spec.role is ServerRole.ROUTER:
        return (StartStage.STARTED, StartStage.BOUND, StartStage.WORKERS, StartStage.READY)
    if spec.bootstrap_port is not None and spec.ranks:
        return (StartStage.STARTED, StartStage.BOUND, StartStage.WEIGHTS, StartStage.REGISTERED, StartStage.READY)
    return (StartStage.STARTED, StartStage.BOUND, StartStage.WEIGHTS, StartStage.READY)


class ReadinessWatch:
    """A thread per process that posts each stage once, and every change of what the next stage is waiting for."""

    def __init__(
        self,
        spec: Spec,
        generation: int,
        log: LogTail,
        workers: tuple[str, ...],
        interval: float,
        post: Callable[[Reached], None],
        key: str = "",
    ) -> None:
        self._key = key
        self._spec = spec
        self._generation = generation
        self._log = log
        self._workers = workers
        self._interval = interval
        self._post = post
        self._reached: set[StartStage] = {StartStage.STARTED}
        self._waiting = ""
        self._said_ready = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {spec.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ask the thread to end, without waiting for a probe in progress."""
        self._closing.set()

    def _run(self) -> None:
        began = time.monotonic()
        due = began
        while StartStage.READY not in self._reached:
            said_ready = self._read_log()
            now = time.monotonic()
            if said_ready or now >= due:
                try:
                    self._probe()
                except LimitError as error:  # a limit of the supervisor's own process, which may pass
                    self._report_wait(f"cannot be asked: {error.message}")
                # An engine logs every request: once it answers, probe it rarely and wait for its own ready line.
                rarely = StartStage.BOUND in self._reached and self._spec.role is not ServerRole.ROUTER
                due = now + (self._interval if rarely else 0.0)
            young = now - began < EAGER_FOR
            if self._closing.wait(min(EAGER, self._interval) if young else self._interval):
                return

    def _read_log(self) -> bool:
        """Read new log lines; return whether the process has logged that it is ready."""
        for line in self._log.lines():
            if LISTENS_LINE in line:
                self._mark(StartStage.BOUND, f"port {self._spec.port}")
            elif WEIGHTS_LINE in line:
                self._mark(StartStage.WEIGHTS, "weights loaded")
            elif READY_LINE in line:
                self._said_ready = True
        return self._said_ready

    def _probe(self) -> None:
        if self._spec.role is ServerRole.ROUTER:
            self._probe_router()
            return
        health = http_client.get(self._spec.url + self._spec.health_path, PROBE, key=self._key)
        if health.reached:
            self._mark(StartStage.BOUND, f"port {self._spec.port}")
        registered = self._probe_bootstrap(serves=health.ok)
        if health.ok and registered:
            self._read_log()  # stages logged before it answered are reported before "ready"
            self._mark(StartStage.READY, "ready")
        elif prober.wants_key(health.status, health.headers, health.body):
            self._refuse(router_probe.refused(self._spec.health_path, health, self._key))
        elif health.reached and not health.ok:
            self._report_wait(f"{self._spec.health_path} answers {health.status}")

    def _probe_bootstrap(self, serves: bool) -> bool:
        """Whether nothing is missing at the bootstrap server. `serves`: /health answers, so the server should be up."""
        port = self._spec.bootstrap_port
        if port is None or not self._spec.ranks or StartStage.REGISTERED in self._reached:
            return True
        known = bootstrap_probe.registration(self._spec.host, port, self._spec.ranks, PROBE)
        ranks = self._spec.ranks
        unreached = self._unreached(port) if known.complete else ""
        if unreached:
            self._report_wait(unreached)
            return False
        if known.complete:
            self._mark(StartStage.REGISTERED, f"bootstrap registered {ranks}/{ranks}")
            return True
        if serves and not known.reached:
            # SGLang keeps serving without it, for example if its port was taken; before 0.5.13 ranks do not retry.
            self._report_wait(f"/health answers, but its bootstrap server on port {port} does not: {known.reason}")
        elif known.reached:
            self._report_wait(f"bootstrap registered {known.registered or 0}/{ranks}")
        return False

    def _unreached(self, port: int) -> str:
        """What a decode would fail to get: a rank's address from the bootstrap server, or an answer at that address."""
        claim = bootstrap_probe.Claim(self._spec.name, self._spec.host, port, (), self._spec.ranks)
        (server,) = bootstrap_probe.probe_bootstraps((claim,), 2 * PROBE, patience=PROBE)
        silent = [f"tp{one.tp} registered at {one.ip}:{one.port}: {one.reason}" for one in server.ranks if one.reason]
        return next(iter((*server.unranked, *silent)), "")

    def _probe_router(self) -> None:
        state = router_probe.fetch(self._spec.url, PROBE, self._key)
        if not state.reached:
            return
        self._mark(StartStage.BOUND, f"port {self._spec.port}")
        if state.unauthorized:
            self._refuse(state.reason)
            return
        if state.locked_out:
            self._refuse(state.locked_out)
            return
        missing = [url for url in self._workers if not state.lists(url)]
        total = len(self._workers)
        if missing:
            self._report_wait(f"{total - len(missing)}/{total} workers, missing {', '.join(missing)}")
            return
        self._mark(StartStage.WORKERS, f"{total}/{total} workers")
        if state.ready:
            self._mark(StartStage.READY, "ready")
        else:
            self._report_wait(state.reason or "/readiness does not answer 200")

    def _refuse(self, reason: str) -> None:
        """Report that the process will never be ready, because its key is missing or wrong."""
        self._post(Reached(self._spec.name, self._generation, None, reason, time.time(), hopeless=True))
        self._closing.set()

    def _mark(self, stage: StartStage, detail: str) -> None:
        if stage not in self._reached:
            self._reached.add(stage)
            self._waiting = ""  # the stage replaces the last wait message; if the wait continues, it is posted again
            self._post(Reached(self._spec.name, self._generation, stage, detail, time.time()))

    def _report_wait(self, detail: str) -> None:
        if detail != self._waiting:
            self._waiting = detail
            self._post(Reached(self._spec.name, self._generation, None, detail, time.time()))
