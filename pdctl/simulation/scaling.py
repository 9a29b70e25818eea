"""The loop of a controller around a simulated fleet: observe, decide, order. Policies and orders are the real ones."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.policy import POLICIES, DecisionInput, ScalingPolicyName, decide
from pdctl.policy.constraints import Limits
from pdctl.policy.observation import Arrival, MeasuredTraffic, Observation, QueueDepths, ReplicaLoad
from pdctl.policy.orders import FleetView, ReplicaView, plan_orders
from pdctl.quick_definitions import NamedTuple
from pdctl.replica.states import CountsAs, ReplicaState
from pdctl.simulation.kernel import SECOND, DueEvent, LoggedEvent
from pdctl.simulation.weight_loads import LoadPlan

if TYPE_CHECKING:
    from pdctl.policy.decision import Decision
    from pdctl.simulation.fleet import SimulatedFleet
    from pdctl.simulation.fleet_shape import SimulationSettings
    from pdctl.simulation.replicas import SimulatedReplica

DEFAULT_S = 5.0  # between decisions of a policy that has no period of its own and is told numbers
FEWEST_SEEN = 64  # observations that are kept, however short the windows of a policy are
MOST_SEEN = 4096
MOST_DECISIONS = 10_000  # that are kept
MOST_TURNS = 10**7  # in which a policy is asked: a week of turns of 0.1 s
NO_QUEUES = QueueDepths()


class ScalingLoop:
    def __init__(self, fleet: SimulatedFleet, settings: SimulationSettings) -> None:
        self._fleet, self._settings = fleet, settings
        policy = POLICIES[settings.policy]
        self._own = policy.settings() if settings.policy_settings is None else settings.policy_settings
        self._limits = settings.limits or Limits()
        every_s = policy.interval_s if settings.interval_s is None else settings.interval_s
        if every_s is None and (self._own != policy.settings() or settings.limits is not None):
            every_s = DEFAULT_S
        windows = [value for name, value in dataclasses.asdict(self._own).items() if name.endswith("window_s")]
        self._horizon_s = max([0.0, *windows, self._limits.cooldown_up_s, self._limits.cooldown_down_s])
        self._history: deque[Observation] = deque(maxlen=MOST_SEEN)
        self._names = [f"replica-{number}" for number in range(len(fleet.replicas))] if every_s is not None else []
        self._before = _Counters.of(fleet, 0)
        self._rate = self._itl_s = 0.0
        self.decisions: list[tuple[int, Decision]] = []
        if every_s is not None:
            arrivals = fleet.requests.arrival
            length_s = (arrivals[-1] if arrivals else 0) / SECOND
            if settings.longest_s is not None:
                length_s = min(length_s, settings.longest_s)
            if length_s > MOST_TURNS * every_s:
                raise UsageError(
                    f"{settings.policy.value} decides every {every_s:g} s, {length_s / every_s:,.0f} times until the "
                    f"last request arrives, above {MOST_TURNS:,}",
                    "raise --interval, or end the run with --longest",
                )
            self._every_ns = max(1, round(every_s * SECOND))
            fleet.kernel.handlers[DueEvent.DECISION] = self._decide
            fleet.kernel.schedule(self._every_ns, DueEvent.DECISION, 0)

    def _decide(self, now_ns: int, _subject: int, _token: int) -> None:
        fleet = self._fleet
        self._history.append(self._observe(now_ns))
        while len(self._history) > FEWEST_SEEN and self._history[1].time_s < now_ns / SECOND - self._horizon_s:
            self._history.popleft()
        given = DecisionInput(tuple(self._history), self._own, self._limits)
        decision = decide(self._settings.policy, given)
        if decision.prefill_delta or decision.decode_delta:
            deltas = decision.prefill_delta, decision.decode_delta
            fleet.kernel.log.write((now_ns, LoggedEvent.DECIDED, *deltas))
            orders = plan_orders(decision, self._view(now_ns, decision))
            fleet.perform(now_ns, orders)
        self._keep(now_ns, decision)
        fleet.kernel.schedule(now_ns + self._every_ns, DueEvent.DECISION, 0)

    def _keep(self, now_ns: int, decision: Decision) -> None:
        """Of decisions that change nothing and refuse the same, the first."""
        changes = decision.prefill_delta or decision.decode_delta
        if len(self.decisions) >= MOST_DECISIONS or not (changes or decision.refused):
            return
        last = self.decisions[-1][1] if self.decisions else None
        if changes or last is None or _refusals(last) != _refusals(decision):
            self.decisions.append((now_ns, decision))

    def _observe(self, now_ns: int) -> Observation:
        fleet = self._fleet
        states = fleet.states
        now = _Counters.of(fleet, now_ns)
        seconds = (now_ns - self._before.time_ns) / SECOND
        gain = _Counters(*(new - old for new, old in zip(now, self._before, strict=True)))
        self._before = now
        if gain.prefill_busy_ns:
            self._rate = gain.computed_tokens / gain.prefill_busy_ns * SECOND
        if gain.decode_steps:
            self._itl_s = gain.decode_busy_ns / gain.decode_steps / SECOND
        listed = tuple(self._load_of(one) for one in fleet.replicas if one.state is not ReplicaState.INACTIVE)
        arrived = gain.requests_seen
        traffic = MeasuredTraffic(
            requests_per_s=arrived / seconds,
            prompt_tokens=gain.prompt_tokens_seen / arrived if arrived else None,
            output_tokens=gain.output_tokens_seen / arrived if arrived else None,
            itl_s=self._itl_s or None,
            kv_arrival_tokens_per_s=gain.computed_tokens / seconds,
            startup_s=fleet.startup_s,
        )
        return Observation(
            prefills=states.count(CountsAs.PREFILL),
            decodes=states.count(CountsAs.DECODE),
            waiting_prompt_tokens=fleet.waiting_tokens,
            kv_blocks_used=fleet.used_blocks,
            kv_blocks_used_on_prefill=fleet.prefill_blocks,
            block_tokens=fleet.shape.decode.block_tokens,
            kv_blocks_per_replica=fleet.shape.decode.kv_blocks,
            prefill_tokens_per_s=self._rate or fleet.prefill_rate,
            kv_ingress_tokens_per_s=fleet.shape.decode.nic_bytes_per_s / fleet.shape.decode.kv_bytes_per_token,
            time_s=now_ns / SECOND,
            pending_prefills=states.count(CountsAs.PREFILL, loading=True),
            pending_decodes=states.count(CountsAs.DECODE, loading=True),
            measured=traffic,
            replicas=listed,
            arrivals_ahead=self._ahead(now_ns),
        )

    def _load_of(self, one: SimulatedReplica) -> ReplicaLoad:
        waiting = len(one.without_pages) if one.without_pages else 0
        queues = QueueDepths(prealloc=waiting, transfer=one.senders) if waiting or one.senders else NO_QUEUES
        return ReplicaLoad(
            self._names[one.number],
            one.state,
            True,
            one.used,
            one.capacity,
            one.waiting_tokens,
            one.running_rooms,
            queues,
        )

    def _ahead(self, now_ns: int) -> tuple[Arrival, ...]:
        """What the oracle is told."""
        if self._settings.policy is not ScalingPolicyName.ORACLE:
            return ()
        rows = self._fleet.requests
        first = bisect_left(rows.arrival, now_ns)
        last = bisect_left(rows.arrival, now_ns + round(self._own.horizon_s * SECOND))
        return tuple(
            Arrival((rows.arrival[at] - now_ns) / SECOND, rows.prompt[at], rows.output[at]) for at in range(first, last)
        )

    def _view(self, now_ns: int, decision: Decision) -> FleetView:
        fleet = self._fleet
        wanted = max(0, decision.prefill_delta) + max(0, decision.decode_delta)
        near = fleet.machines_with_weights() if wanted else set[int]()
        by_state: dict[ReplicaState, list[ReplicaView]] = {}
        for one in fleet.replicas:
            if one.state is ReplicaState.INACTIVE:
                wanted -= 1
                if wanted < 0:
                    continue
            by_state.setdefault(one.state, []).append(
                ReplicaView(
                    replica=one.number,
                    used_blocks=one.used,
                    idle=not (one.used or one.senders or one.running_rooms or one.unfinished or one.inbox),
                    sending=fleet.loads.is_sending(one.number),
                    beside_weights=fleet.links.machines[one.number] in near,
                    parked_s=(now_ns - one.since_ns) / SECOND if one.state is ReplicaState.SHUTTING_NULL else 0.0,
                )
            )
        live = self._settings.loading is LoadPlan.LIVE
        return FleetView(by_state, True, live, fleet.states.decode_scarce, self._settings.park_s, self._settings.flips)


class _Counters(NamedTuple):
    """What has grown since the start of a run."""

    time_ns: int
    computed_tokens: int
    prefill_busy_ns: int
    decode_steps: int
    decode_busy_ns: int
    requests_seen: int
    prompt_tokens_seen: int
    output_tokens_seen: int

    @staticmethod
    def of(fleet: SimulatedFleet, now_ns: int) -> _Counters:
        return _Counters(
            *(now_ns, fleet.computed_tokens, fleet.prefill_busy_ns, fleet.decode_steps, fleet.decode_busy_ns),
            *(fleet.requests_seen, fleet.prompt_tokens_seen, fleet.output_tokens_seen),
        )


def _refusals(decision: Decision) -> list[str]:
    return [one.action for one in decision.refused]
