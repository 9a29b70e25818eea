"""Random fleets under every policy: the invariants of docs/elastic.md hold after each event of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from pdctl.layout.kv_pages import RESERVED_DECODE_TOKENS
from pdctl.policy import ScalingPolicyName
from pdctl.policy.constraints import Limits
from pdctl.replica.states import STATES, CountsAs, IngressLock, ReplicaState, Weights
from pdctl.replica.transitions import Trigger
from pdctl.simulation.fleet import SimulatedFleet
from pdctl.simulation.fleet_shape import FirstTokenFrom, FleetShape, RequestRouting, SimulationSettings
from pdctl.simulation.kernel import DUE_EVENTS, SECOND, Kernel, LoggedEvent
from pdctl.simulation.replica_choice import NOBODY
from pdctl.simulation.replicas import SPENT_ON
from pdctl.simulation.request_trace import RequestTrace, TraceRequest
from pdctl.simulation.run import simulate
from pdctl.simulation.scaling import ScalingLoop
from pdctl.simulation.synthetic import make_request_trace
from pdctl.simulation.weight_loads import LoadPlan
from tests.cases import for_each
from tests.simulation.fleets import poisson, profile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.simulation.replicas import SimulatedReplica

LOADS = (ReplicaState.NEW_PREFILL, ReplicaState.REFRACTORY_PREFILL)
OUT = (ReplicaState.SHUTTING_NULL, ReplicaState.INACTIVE)
OTHERS = [name for name in ScalingPolicyName if name is not ScalingPolicyName.BLITZ]


def bursts(seed: int) -> RequestTrace:
    """Quiet, busy and quiet minutes, a third of the prompts that start alike."""
    parts = [poisson(40, 3.0, seed), poisson(240, 25.0, seed + 1), poisson(40, 3.0, seed + 2)]
    rng, begin, requests = Random(seed), 0, list[TraceRequest]()
    for part in parts:
        for one in part.requests:
            blocks = (1, 2, 3) if rng.random() < 0.3 else (1000 + len(requests),)
            requests.append(one._replace(arrival_ns=begin + one.arrival_ns, prefix_blocks=blocks))
        begin = requests[-1].arrival_ns
    return RequestTrace("bursts", requests, 64)


def drawn(
    seed: int, policy: ScalingPolicyName, loading: LoadPlan
) -> tuple[FleetShape, RequestTrace, SimulationSettings]:
    rng = Random(seed)
    one = profile(
        kv_blocks=rng.randrange(40, 400),
        start_s=rng.random(),
        flip_s=rng.random() / 2,
        decode_batch_rooms=rng.randrange(4, 40),
        nic_bytes_per_s=10.0 ** rng.randrange(8, 10),
        decode_token_s=1e-7,
        handover_s=0.001,
    )
    first = FirstTokenFrom.PREFILL if rng.random() < 0.5 else FirstTokenFrom.DECODE
    reserved = rng.choice((RESERVED_DECODE_TOKENS, 16))  # no answer is longer than the first, many than the second
    shape = FleetShape(2, 2, 10, one, one, rng.randrange(1, 5), first, reserved)
    settings = SimulationSettings(
        policy=policy,
        limits=Limits(prefill=(1, 6), decode=(1, 6), gpus=10),
        interval_s=1.0 if policy is not ScalingPolicyName.BLITZ else None,
        routing=list(RequestRouting)[seed % 3],
        one_sender=rng.random() < 0.5,
        gate=rng.random() < 0.5,
        loading=loading,
        park_s=rng.random(),
    )
    return shape, bursts(seed), settings


class CheckedFleet:
    """A run whose log is kept and whose fleet is looked at after each event."""

    def __init__(self, shape: FleetShape, trace: RequestTrace, settings: SimulationSettings) -> None:
        self.records: list[Sequence[int]] = []
        self.chosen = 0  # decodes, under the gate
        self.kernel = Kernel()
        write = self.kernel.log.write

        def keep(record: Sequence[int]) -> None:
            write(record)
            self.records.append(record)
            if record[1] == LoggedEvent.TRANSFER_BEGAN:
                decode = self.fleet.replicas[record[3]]
                assert STATES[decode.state].takes_kv or decode is self.source(record[2]), "V16"

        self.kernel.log.write = keep
        self.fleet = SimulatedFleet(shape, trace, settings, self.kernel)
        if settings.gate:
            choose, self.fleet.decodes.choose = self.fleet.decodes.choose, self.choose_decode  # type: ignore[method-assign]
            self.choose_ungated = choose
        self.scaling = ScalingLoop(self.fleet, settings)
        self.limits = settings.limits
        self.one_sender = settings.one_sender
        for kind in range(DUE_EVENTS):
            self.kernel.handlers[kind] = self.checked(self.kernel.handlers[kind])
        self.fleet.begin()
        self.kernel.run(10**15)

    def choose_decode(self) -> int:
        number = self.choose_ungated()
        decodes = [one.number for one in self.fleet.replicas if one.state is ReplicaState.DECODE]
        used = self.fleet.decode_used
        gated = 2 * max(sum(used) / len(decodes), self.fleet.shape.decode.kv_blocks / 4)
        assert number == NOBODY or used[number] <= gated, "V14: a gated decode is chosen"
        self.chosen += number != NOBODY
        return number

    def source(self, room: int) -> SimulatedReplica:
        return self.fleet.replicas[self.fleet.requests.source[room]]

    def checked(self, handler: Callable[[int, int, int], None]) -> Callable[[int, int, int], None]:
        def handle(now_ns: int, subject: int, token: int) -> None:
            changes = len(self.fleet.states.changes)
            before = self.serving()
            handler(now_ns, subject, token)
            for one in self.fleet.replicas:
                self.check_replica(one)
            self.check_books()
            made = self.fleet.states.changes[changes:]
            if any(change.event.trigger is Trigger.PLANNER for change in made):
                assert all(self.serving()[role] or not before[role] for role in (CountsAs.PREFILL, CountsAs.DECODE)), (
                    "V6"
                )

        return handle

    def serving(self) -> Counter[CountsAs]:
        return Counter(STATES[one.state].counts_as for one in self.fleet.replicas if STATES[one.state].serves)

    def check_replica(self, one: SimulatedReplica) -> None:
        assert 0 <= one.used <= one.capacity or not one.used, f"V4: {one.used} of {one.capacity}"
        assert min(one.given, one.unfinished, one.sending, one.senders, one.slots, one.demand) >= 0
        assert one.queued_tokens >= one.waiting_tokens >= 0
        lock = STATES[one.state].ingress_lock
        expected = {
            IngressLock.HELD: one.lock_held,
            IngressLock.FREE: not one.lock_held and not one.lock_pending,
            IngressLock.BEING_TAKEN: one.lock_held or one.lock_pending,
            IngressLock.BEING_RELEASED: one.lock_held or one.lock_pending,
        }
        assert expected[lock], f"V3: {one.state} held={one.lock_held} pending={one.lock_pending}"
        assert not (one.lock_held and one.senders), "V3: the lock is held and a sender writes"
        assert one.senders <= 1 or not self.one_sender, "V3: more than one sender"
        if one.state in OUT:
            assert one.unfinished == one.running_rooms == one.used == len(one.inbox) == one.demand == 0, "V5"
        if self.fleet.loads.is_sending(one.number):
            assert STATES[one.state].weights is not Weights.NONE, "V12: a chain's members load and send"

    def check_books(self) -> None:
        fleet = self.fleet
        assert sum(one.used for one in fleet.replicas) == fleet.used_blocks
        assert sum(one.prefill_blocks for one in fleet.replicas) == fleet.prefill_blocks
        assert fleet.waiting_tokens >= 0
        assert fleet.states.counts == Counter(one.state for one in fleet.replicas)
        olds = fleet.states.counts[ReplicaState.OLD_PREFILL]
        loads = sum(fleet.states.counts[state] for state in LOADS)
        assert olds == loads - fleet.states.unpaired_loads + fleet.states.credit, "V11"
        limits = self.limits
        assert limits is not None
        for role, (least, most) in ((CountsAs.PREFILL, limits.prefill), (CountsAs.DECODE, limits.decode)):
            assert least <= fleet.states.count(role) <= most, "V6"

    def check_end(self) -> None:
        """V1, V17: all rooms end once, and nothing is left."""
        fleet = self.fleet
        assert fleet.finished
        finished = Counter(record[2] for record in self.records if record[1] == LoggedEvent.FINISHED)
        left_out = Counter(record[2] for record in self.records if record[1] == LoggedEvent.TOO_LARGE)
        assert len(left_out) == fleet.requests.too_large
        assert finished + left_out == Counter(range(len(fleet.requests.arrival)))
        joined = Counter(record[2] for record in self.records if record[1] == LoggedEvent.JOINED)
        assert all(count == 1 for count in joined.values())
        assert fleet.used_blocks == fleet.waiting_tokens == sum(one.running_rooms for one in fleet.replicas) == 0
        assert fleet.waiting_requests == 0
        times = [record[0] for record in self.records]
        assert times == sorted(times)


def check_run(seed: int, policy: ScalingPolicyName, loading: LoadPlan) -> int:
    shape, trace, settings = drawn(seed, policy, loading)
    found = CheckedFleet(shape, trace, settings)
    found.check_end()
    run = simulate(shape, trace, settings)
    assert run.digest == simulate(shape, trace, settings).digest, "V18"
    assert run.events == len(found.records)
    assert found.chosen or not settings.gate
    spent = [0, 0, 0]
    since: dict[int, tuple[ReplicaState, int]] = {
        number: (
            ReplicaState.PREFILL if number < 2 else ReplicaState.DECODE if number < 4 else ReplicaState.INACTIVE,
            0,
        )
        for number in range(10)
    }
    ends = [(number, run.end_ns) for number in range(10)]
    for number, time_ns, target in [
        *((one.replica, one.time_ns, one.target) for one in run.changes),
        *((number, end_ns, ReplicaState.INACTIVE) for number, end_ns in ends),
    ]:
        state, begun = since[number]
        kind = SPENT_ON[state]
        if kind is not None:
            spent[kind] += time_ns - begun
        since[number] = (target, time_ns)
    assert list(run.gpu_time) == [each / SECOND for each in spent], "GPU time is the integral of the changes"
    for one, arrived, first, end in zip(
        trace.requests, run.requests.arrival_ns, run.requests.first_token_ns, run.requests.end_ns, strict=True
    ):
        assert (first < 0 and end < 0) or arrived < first <= end
        assert end < 0 or (end - first) >= (one.output_tokens - 1) * 10**7, "a step takes 10 ms"
    return len(run.changes)


@for_each("loading", list(LoadPlan))
def test_invariants_hold_while_blitz_scales(loading: LoadPlan) -> None:
    changes = [check_run(seed, ScalingPolicyName.BLITZ, loading) for seed in range(3, 6)]
    assert min(changes) > 5, "it has scaled"


@for_each("policy", OTHERS)
def test_invariants_hold_under_every_other_policy(policy: ScalingPolicyName) -> None:
    for seed in range(20, 22):
        check_run(seed, policy, LoadPlan.LIVE if seed % 2 else LoadPlan.PEER)


def test_no_decode_is_chosen_while_it_is_gated() -> None:
    """V14, where a tenth of the answers are many times as long as the others."""
    trace = make_request_trace("decode-skew:rate=12,long=0.1,longer=30,duration=60,output=40,prompt=200", 4)
    one = profile(kv_blocks=150, decode_batch_rooms=12)
    settings = SimulationSettings(
        routing=RequestRouting.ROUND_ROBIN, limits=Limits(prefill=(1, 6), decode=(1, 6), gpus=10)
    )
    shape = FleetShape(2, 5, 7, one, one)
    CheckedFleet(shape, trace, replace(settings, gate=True)).check_end()
    assert simulate(shape, trace, settings).digest != simulate(shape, trace, replace(settings, gate=True)).digest
