"""The simulator against what can be worked out: single requests by hand, M/D/1, conservation, the same run again."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pdctl.policy import ScalingPolicyName
from pdctl.policy.constraints import Limits
from pdctl.policy.orders import ReplicaOrder
from pdctl.replica.states import ReplicaState
from pdctl.replica.transitions import ReplicaEvent
from pdctl.simulation.fleet import SimulatedFleet
from pdctl.simulation.fleet_shape import FirstTokenFrom, FleetShape, RequestRouting, SimulationSettings
from pdctl.simulation.kernel import DueEvent, Kernel
from pdctl.simulation.run import simulate
from pdctl.simulation.weight_loads import LoadPlan
from tests.cases import for_each
from tests.simulation.fleets import given, poisson, profile, shape

MS = 10**6
if TYPE_CHECKING:
    from pdctl.simulation.request_trace import RequestTrace

ROUTINGS = [RequestRouting.LEAST_TOKENS, RequestRouting.ROUND_ROBIN, RequestRouting.SHARED_QUEUE]


def run_fleet(shape: FleetShape, trace: RequestTrace, settings: SimulationSettings) -> SimulatedFleet:
    kernel = Kernel()
    fleet = SimulatedFleet(shape, trace, settings, kernel)
    fleet.begin()
    kernel.run(10**15)
    assert fleet.finished
    return fleet


@for_each("routing", ROUTINGS)
def test_one_request_takes_what_its_parts_take(routing: RequestRouting) -> None:
    """110 ms for a pass of 1000 tokens, 1 ms for 1 MB of KV cache, 2 ms to hand over, 3 ms beside; then 4 steps."""
    fleet = shape(request_s=0.003, handover_s=0.002)
    run = simulate(fleet, given((1.0, 1000, 5)), SimulationSettings(routing=routing))
    first = 1000 * MS + (3 + 110 + 1 + 2) * MS
    assert run.requests.first_token_ns[0] == first
    assert run.requests.end_ns[0] == run.end_ns == first + 4 * 10 * MS
    assert run.requests.tbt_ns[0] == 10 * MS
    assert run.kv_bytes == 1000 * 1000
    assert run.gpu_time.total_s == run.gpu_time.serving_s == 2 * run.end_ns / 1e9


def test_steps_grow_with_rooms_and_kv_cache() -> None:
    """A step is 10 ms, 1 ms per room and 1 µs per token of KV cache: 11 ms + 101, 102, 103 µs."""
    fleet = shape(decode_room_s=0.001, decode_token_s=1e-6)
    run = simulate(fleet, given((0.0, 100, 4)), SimulationSettings())
    first = run.requests.first_token_ns[0]
    assert run.requests.end_ns[0] - first == 3 * 11 * MS + (101 + 102 + 103) * 1000
    assert run.requests.tbt_ns[0] == 11 * MS + 103 * 1000


def test_the_first_token_may_come_from_the_prefill() -> None:
    """Then it is there at the end of the pass, and the hand-over is in the first gap: 1 ms and a step."""
    fleet = replace(shape(), first_token=FirstTokenFrom.PREFILL)
    for routing in ROUTINGS:
        run = simulate(fleet, given((0.0, 1000, 3), (1.0, 1000, 1)), SimulationSettings(routing=routing))
        assert list(run.requests.first_token_ns) == [110 * MS, 1110 * MS]
        assert list(run.requests.end_ns) == [131 * MS, 1110 * MS]
        assert list(run.requests.tbt_ns) == [11 * MS, 0]


def test_a_long_prompt_is_computed_in_chunks_that_leave_as_they_are_done() -> None:
    """20,000 tokens in passes of 8192, 8192 and 3616; only the last chunk's 3.616 ms come after the last pass."""
    run = simulate(shape(kv_blocks=10_000), given((0.0, 20_000, 2)), SimulationSettings())
    assert run.requests.first_token_ns[0] == round((3 * 10 + 2000 + 3.616) * MS)
    assert run.kv_bytes == 20_000 * 1000


def test_pairs_of_tokens_count_with_what_is_computed_before() -> None:
    """Chunks of 512 and 488: 512 × 512 + 488 × 1000 pairs of 1 ns."""
    run = simulate(shape(prefill_square_s=1e-9, prefill_batch_tokens=512), given((0.0, 1000, 2)), SimulationSettings())
    passes = 2 * 10 * MS + 100 * MS + 512 * 512 + 488 * 1000
    assert run.requests.first_token_ns[0] == passes + 488 * 1000


def test_a_room_joins_at_the_end_of_the_step_under_way() -> None:
    """The first joins at 111 ms. The second comes within its first step, so that the decode looks at it at 121 ms; its
    KV cache is there at 232 ms, in the thirteenth.
    """
    run = simulate(shape(prefills=2), given((0.0, 1000, 40), (0.113, 1000, 3)), SimulationSettings())
    assert list(run.requests.first_token_ns) == [111 * MS, 241 * MS]
    assert list(run.requests.end_ns) == [501 * MS, 261 * MS]


def test_a_request_that_fits_nowhere_is_not_served_and_the_others_are() -> None:
    run = simulate(shape(kv_blocks=20), given((0.0, 1000, 100), (0.0, 2000, 100), (0.1, 900, 10)), SimulationSettings())
    assert run.too_large == 1
    assert run.requests.first_token_ns[1] == run.requests.end_ns[1] == -1
    assert min(run.requests.end_ns[0], run.requests.end_ns[2]) > 0


@for_each("routing", ROUTINGS)
def test_the_gate_keeps_rooms_away_from_a_decode_that_is_much_fuller(routing: RequestRouting) -> None:
    """One of 60 blocks, and small ones that fill the two slots of each other decode: the next wait for those."""
    fleet = replace(shape(decodes=3, kv_blocks=100, decode_batch_rooms=2), reserved_decode_tokens=800)
    trace = given((0.0, 3040, 800), *[(0.0, 10, 20)] * 140)
    open_, gated = (
        run_fleet(fleet, trace, SimulationSettings(routing=routing, gate=gate)).requests.decode
        for gate in (False, True)
    )
    assert open_[0] in open_[1:]
    assert gated[0] not in gated[1:]


@pytest.mark.parametrize(
    ("count", "within"), [(40_000, 0.03), pytest.param(200_000, 0.01, marks=pytest.mark.heavy)], ids=["some", "many"]
)
@pytest.mark.parametrize("use", [0.3, 0.6])
def test_the_mean_wait_is_that_of_an_m_d_1_queue(use: float, count: int, within: float) -> None:
    """Poisson arrivals, one prompt per pass, all alike: the wait is use / (2 (1 - use)) passes."""
    service = 0.1
    trace = poisson(count, use / service, 2, 900, 1, spread=False)
    fleet = shape(prefill_batch_rooms=1, kv_bytes_per_token=1, nic_bytes_per_s=1e15)
    run = simulate(fleet, trace, SimulationSettings())
    wait = (sum(run.requests.first_token_ns) - sum(run.requests.arrival_ns)) / count / 1e9 - service
    assert abs(wait / (service * use / (2 * (1 - use))) - 1) < within


@for_each("routing", ROUTINGS)
@for_each("one_sender", [False, True])
def test_every_request_ends_and_every_token_is_made(routing: RequestRouting, one_sender: bool) -> None:
    trace = poisson(3000, 40.0, 5)
    run = simulate(shape(4, 4), trace, SimulationSettings(routing=routing, one_sender=one_sender))
    assert min(run.requests.end_ns) > 0
    assert run.kv_bytes == 1000 * sum(one.prompt_tokens for one in trace.requests)
    for at, one in enumerate(trace.requests):
        steps = (run.requests.end_ns[at] - run.requests.first_token_ns[at]) / (10 * MS)
        assert abs(steps - (one.output_tokens - 1)) < 1e-3, "each gap is a step of 10 ms"


def test_a_prompt_of_several_chunks_takes_the_lock_of_its_decode_once() -> None:
    """Two decodes that take one sender each, and prompts whose first chunk is computed while the lock is taken."""
    trace = poisson(600, 40.0, 5, prompt=3000)
    fleet = shape(4, 2, prefill_batch_tokens=512, nic_bytes_per_s=1e8, kv_blocks=4000)
    run = simulate(fleet, trace, SimulationSettings(one_sender=True))
    assert min(run.requests.end_ns) > 0
    assert run.kv_bytes == 1000 * sum(one.prompt_tokens for one in trace.requests)


def test_the_same_seed_gives_the_same_events_in_another_process() -> None:
    code = (
        "from tests.simulation.fleets import poisson, shape; from pdctl.simulation.run import simulate;"
        "from pdctl.simulation.fleet_shape import SimulationSettings;"
        "print(simulate(shape(3, 5, decode_token_s=1e-8), poisson(2000, 30.0, 7), SimulationSettings()).digest)"
    )
    found = set()
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        found.add(done.stdout.strip())
    run = simulate(shape(3, 5, decode_token_s=1e-8), poisson(2000, 30.0, 7), SimulationSettings())
    assert found == {run.digest}
    other = simulate(shape(3, 5, decode_token_s=1e-8), poisson(2000, 30.0, 8), SimulationSettings())
    assert other.digest != run.digest


def test_progress_may_end_a_run() -> None:
    seen: list[int] = []
    run = simulate(
        shape(), poisson(5000, 5.0, 1), SimulationSettings(), lambda now_ns: bool(seen.append(now_ns)) or len(seen) > 1
    )
    assert run.cut_at_ns == seen[-1] == run.end_ns
    assert run.requests.end_ns[-1] == -1


def test_a_run_has_the_same_digest_on_every_python() -> None:
    """Of 3.10 to 3.13; a change of what is logged, or of the order of events, changes it."""
    fleet = shape(3, 5, decode_token_s=3e-8, decode_room_s=1e-5, prefill_square_s=1e-10, handover_s=0.001)
    digests = [simulate(fleet, poisson(500, 30.0, 7), SimulationSettings(routing=one)).digest[:16] for one in ROUTINGS]
    assert digests == ["d19cd006a03ac0a6", "2d792897e08e67e8", "8bf229db55debbaf"]


@for_each("costs", [{"prefill_square_s": 1e-12}, {"prefill_step_s": 1e-9}, {}], ids=str)
def test_a_fleet_knows_a_rate_whatever_a_pass_costs(costs: dict[str, float]) -> None:
    one = profile(**{"prefill_step_s": 0.0, "prefill_token_s": 0.0, **costs})
    assert SimulatedFleet(FleetShape(1, 1, 2, one, one), given(), SimulationSettings(), Kernel()).prefill_rate > 0


def test_a_replica_takes_the_gpus_of_the_role_that_it_loads_for() -> None:
    """1 s for 1 GB; a prefill has one GPU, a decode four."""
    kernel = Kernel()
    fleet = SimulatedFleet(
        FleetShape(1, 1, 4, profile(), profile(gpus=4)), given((20.0, 10, 2)), SimulationSettings(), kernel
    )
    orders = [ReplicaOrder(2, ReplicaEvent.LOAD_DECODE), ReplicaOrder(3, ReplicaEvent.LOAD_PREFILL)]
    kernel.handlers[DueEvent.DECISION] = lambda now_ns, at, _: fleet.perform(now_ns, [orders[at]])
    for at in range(2):
        kernel.schedule((1 + 5 * at) * 1000 * MS, DueEvent.DECISION, at)
    fleet.begin()
    kernel.run(10**15)
    spent = fleet.states.gpu_time(20_000 * MS)
    assert spent.loading_s == 4 * 1 + 1 * 1
    assert spent.serving_s == 20 * (1 + 4) + 4 * (20 - 2) + 1 * (20 - 7)


def test_a_change_of_role_takes_its_time_and_a_load_or_a_return_to_the_old_role_none() -> None:
    """0.1 s to start, 1 s for 1 GB, 0.5 s for a flip; the time to start is until the replica serves."""
    event = ReplicaEvent
    orders = [
        (1, 4, event.LOAD_DECODE),
        (1, 5, event.LOAD_PREFILL),
        (5, 4, event.DRAIN),
        (6, 4, event.REUSE_AS_DECODE),
        (7, 4, event.DRAIN),
        (8, 4, event.REUSE_AS_PREFILL),
        (10, 4, event.MUTATE_TO_DECODE),
        (12, 5, event.DRAIN),
        (13, 5, event.UNLOAD),
        (14, 5, event.LOAD_DECODE),
    ]
    kernel = Kernel()
    settings = SimulationSettings(park_s=100.0)
    fleet = SimulatedFleet(shape(2, 2, 6, start_s=0.1, flip_s=0.5), given((20.0, 10, 2)), settings, kernel)
    started: list[float | None] = []

    def order(now_ns: int, at: int, _token: int) -> None:
        started.append(fleet.startup_s)
        fleet.perform(now_ns, [ReplicaOrder(orders[at][1], orders[at][2])])

    kernel.handlers[DueEvent.DECISION] = order
    for at, (second, _, _) in enumerate(orders):
        kernel.schedule(second * 1000 * MS, DueEvent.DECISION, at)
    fleet.begin()
    kernel.run(10**15)
    serving = (ReplicaState.PREFILL, ReplicaState.DECODE)
    served = [
        (one.time_ns // MS, one.replica, one.target.value) for one in fleet.states.changes if one.target in serving
    ]
    assert sorted(served) == [
        (2100, 4, "decode"),
        (2100, 5, "prefill"),
        (6000, 4, "decode"),
        (8500, 4, "prefill"),
        (10500, 4, "decode"),
        (15100, 5, "decode"),
    ]
    assert started == [None, None] + [1.1] * 8
    assert fleet.startup_s == 1.1


def test_a_live_load_may_end_while_a_layer_of_a_batch_that_was_handed_over_is_computed() -> None:
    one = profile(decode_token_s=3e-8, decode_room_s=1e-5, start_s=0.3, flip_s=0.2)
    settings = SimulationSettings(
        policy=ScalingPolicyName.BLITZ,
        limits=Limits(prefill=(1, 6), decode=(1, 6), gpus=10),
        routing=RequestRouting.SHARED_QUEUE,
        loading=LoadPlan.LIVE,
    )
    run = simulate(FleetShape(2, 2, 10, one, one), poisson(3000, 20.0, 3), settings)
    assert min(run.requests.end_ns) > 0


@for_each("loading", [LoadPlan.PEER, LoadPlan.LIVE])
def test_policies_decide_by_the_rate_of_a_prefill_even_between_the_ends_of_its_passes(loading: LoadPlan) -> None:
    """A token takes 0.1 ms; blitz looks each 0.1 s, and passes take up to 0.8 s."""
    settings = SimulationSettings(
        policy=ScalingPolicyName.BLITZ,
        limits=Limits(prefill=(1, 6), decode=(1, 6), gpus=10),
        routing=RequestRouting.SHARED_QUEUE,
        loading=loading,
    )
    trace = poisson(1500, 15.0, 3, prompt=3000)
    run = simulate(shape(1, 1, 10, prefill_step_s=0.0, kv_blocks=10_000, weight_bytes=4 * 10**9), trace, settings)
    said = {term.because for _, one in run.decisions for term in one.terms if term.name == "prefill_backlog_at_least"}
    assert len(said) > 20
    assert all("(0.7 s × 10 kTok/s)" in words for words in said), said
