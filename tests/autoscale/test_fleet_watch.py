"""A fleet made an observation: recorded and invented instances over real sockets, some of them silent or broken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.autoscale.advice import as_members
from pdctl.autoscale.fleet_watch import FleetLook, FleetWatch
from pdctl.doctor.request import listed_endpoints
from pdctl.engines.sglang.loads import LOAD_KEYS, TRAFFIC
from pdctl.fleet.observations import Endpoint
from pdctl.json_records import JsonPlace
from pdctl.policy.observation import ReplicaLoad, read_observation
from pdctl.replica.states import ReplicaState
from tests.fleet.conftest import ANY_JSON, LONG, Answers, Peer, Serve, closed_port, recorded

BRIEF = 0.5  # seconds for a look in which somebody says nothing


class Instance:
    """What it says can be changed between two looks."""

    def __init__(self, serve: Serve, role: str, page: int = 16, pool: int = 1600) -> None:
        self.role, self.pool = role, pool
        info = {"disaggregation_mode": role, "page_size": page, "version": "0.5.23"}
        self.answers: Answers = {"/server_info": (200, json.dumps(info))}
        self.tell()
        self.url = serve(self.answers)

    def tell(self, metrics: dict[str, float] | None = None, **load: Any) -> None:
        sections = {name: load.pop(name) for name in ("disaggregation", "queues") if name in load}
        whole = {"num_used_tokens": 0, "max_total_num_tokens": self.pool, "num_waiting_uncached_tokens": 0}
        entry = {**whole, **load, **sections}
        self.answers["/v1/loads"] = (200, json.dumps({"loads": [entry]}))
        counters = metrics or {"num_requests_total": 0}
        self.answers["/metrics"] = (200, "".join(f"sglang:{name} {value}\n" for name, value in counters.items()))


def watch(*endpoints: Endpoint, router: str = "", timeout: float = LONG) -> FleetWatch:
    return FleetWatch(endpoints, router, listed_endpoints, timeout=timeout)


def ends(prefill: str, decode: str) -> tuple[Endpoint, Endpoint]:
    return Endpoint("prefill-0", "prefill", prefill), Endpoint("decode-0", "decode", decode)


def replicas(look: FleetLook) -> dict[str, ReplicaLoad]:
    assert look.observation is not None
    # What is recorded of it says the same again.
    assert read_observation(json.loads(json.dumps(as_members(look.observation))), JsonPlace("x")) == look.observation
    return {one.name: one for one in look.observation.replicas}


def workers(router: Answers, *listed: tuple[str, str, bool]) -> None:
    entries = [
        {"url": url, "worker_type": role, "is_healthy": healthy, "bootstrap_port": 8998, "metadata": {}}
        for url, role, healthy in listed
    ]
    router["/workers"] = (200, json.dumps({"workers": entries, "stats": {"prefill_count": 1}}))


def test_pages_queues_and_backlog(serve: Serve) -> None:
    prefill, decode = Instance(serve, "prefill"), Instance(serve, "decode", pool=3200)
    queues = {"prefill_bootstrap_queue_reqs": 3, "prefill_inflight_queue_reqs": 2}
    prefill.tell(
        num_used_tokens=33, num_waiting_uncached_tokens=900, num_running_reqs=1, disaggregation=queues,
        queues={"waiting": 4},
    )  # fmt: skip
    queues = {"decode_prealloc_queue_reqs": 5, "decode_transfer_queue_reqs": 6}
    decode.tell(num_used_tokens=1600, num_running_reqs=7, disaggregation=queues)
    look = watch(*ends(prefill.url, decode.url)).look(0.0)
    assert look.notes == ()
    found, now = replicas(look), look.observation
    assert now is not None
    assert (now.prefills, now.decodes, now.waiting_prompt_tokens, now.block_tokens) == (1, 1, 900, 16)
    assert (now.kv_blocks_used, now.kv_blocks_used_on_prefill, now.kv_blocks_per_replica) == (103, 3, 200)
    first, second = found["prefill-0"], found["decode-0"]
    assert (first.state, first.ready, first.kv_blocks, first.running_rooms) == (ReplicaState.PREFILL, True, 100, 1)
    assert (first.queues.bootstrap, first.queues.waiting, first.queues.inflight) == (3, 4, 2)
    assert (second.queues.prealloc, second.queues.transfer, second.running_rooms) == (5, 6, 7)


def test_rates_and_means_are_those_between_two_looks(serve: Serve) -> None:
    prefill, decode = Instance(serve, "prefill"), Instance(serve, "decode")

    def tell(times: int) -> None:
        """Ten requests of 200 tokens each time, a quarter of them cached; 0.1 s to compute them, 0.05 s to move."""
        prefill.tell(
            {
                "num_requests_total": 10 * times, "prompt_tokens_total": 2000 * times,
                "cached_tokens_total": 500 * times, "kv_transfer_latency_ms_sum": 50 * times,
            },
            total_prefill_uncached_tokens=1500 * times, total_prefill_busy_us=100_000 * times,
        )  # fmt: skip
        decode.tell(
            {
                "num_requests_total": 10 * times, "generation_tokens_total": 300 * times,
                "time_to_first_token_seconds_sum": 4 * times, "time_to_first_token_seconds_count": 10 * times,
                "inter_token_latency_seconds_sum": 6 * times, "inter_token_latency_seconds_count": 300 * times,
            },
            decode_moments=[40 * times, 80 * times, 800_000 * times, 0, 0, 0],
        )  # fmt: skip

    seen = watch(*ends(prefill.url, decode.url))
    tell(5)
    first = seen.look(0.0).observation
    assert first is not None
    assert (first.prefill_tokens_per_s, first.kv_ingress_tokens_per_s) == (15_000, 40_000), "since their start"
    assert (first.measured.prompt_tokens, first.measured.output_tokens) == (200, 30)
    assert (first.measured.requests_per_s, first.measured.ttft_s, first.measured.itl_s) == (None, None, None)
    tell(6)
    second = seen.look(2.0)
    now = second.observation
    assert now is not None
    assert now.measured.requests_per_s == 5
    assert (now.measured.cached_share, now.measured.ttft_s, now.measured.itl_s) == (0.25, 0.4, 0.02)
    assert (now.prefill_tokens_per_s, now.kv_ingress_tokens_per_s) == pytest.approx((15_000, 40_000))
    found = replicas(second)
    assert (found["prefill-0"].prefilled_tokens, found["prefill-0"].prefill_busy_s) == (9000, 0.6)
    assert (found["decode-0"].decode_steps, found["decode-0"].decode_busy_s) == (240, 4.8)
    idle = seen.look(4.0).observation
    assert idle is not None
    assert (idle.measured.requests_per_s, idle.measured.ttft_s, idle.measured.itl_s) == (0, None, None)
    assert (idle.prefill_tokens_per_s, idle.measured.prompt_tokens) == (now.prefill_tokens_per_s, 200), "as before"
    tell(1)  # both were started again
    again = seen.look(6.0).observation
    assert again is not None
    assert (again.measured.requests_per_s, again.prefill_tokens_per_s) == (None, now.prefill_tokens_per_s)


def test_a_warm_up_is_no_measurement(serve: Serve) -> None:
    prefill, decode = Instance(serve, "prefill"), Instance(serve, "decode")
    prefill.tell(
        {"num_requests_total": 1, "prompt_tokens_total": 4, "kv_transfer_latency_ms_sum": 900},
        total_prefill_uncached_tokens=14, total_prefill_busy_us=972_866,
    )  # fmt: skip
    now = watch(*ends(prefill.url, decode.url)).look(0.0).observation
    assert now is not None
    assert (now.prefill_tokens_per_s, now.kv_ingress_tokens_per_s, now.measured.prompt_tokens) == (None, None, None)


@pytest.mark.parametrize("says", ["nothing", "garbage", "refused", "too much"])
def test_one_that_cannot_be_read_keeps_its_last_figures_and_is_named(serve: Serve, peer: Any, says: str) -> None:
    prefill, decode = Instance(serve, "prefill"), Instance(serve, "decode")
    decode.tell(num_used_tokens=160, num_running_reqs=3, decode_moments=[4, 4, 4, 4, 4, 4])
    endpoints = ends(prefill.url, decode.url)
    seen = watch(*endpoints)
    assert replicas(seen.look(0.0))["decode-0"].ready
    silent: Peer = peer(hold=True)
    if says == "nothing":
        seen._endpoints = ends(prefill.url, f"http://127.0.0.1:{silent.port}")
        seen._timeout = BRIEF
    elif says == "refused":
        seen._endpoints = ends(prefill.url, f"http://127.0.0.1:{closed_port()}")
    elif says == "garbage":
        decode.answers["/v1/loads"] = (200, b"\x00\xff{" * 100)
    else:
        decode.tell(num_used_tokens=10**14)
    look = seen.look(5.0)
    note, consequence = look.notes
    assert consequence == "no decode is ready: the fleet serves no request"
    assert note.startswith("decode-0 (http://127.0.0.1:")
    assert note.endswith("; its figures are 5 s old")
    assert {"nothing": "no answer within", "refused": "refused", "garbage": "no load", "too much": "in use"}[
        says
    ] in note
    found = replicas(look)
    assert found["prefill-0"].ready
    held = found["decode-0"]
    assert (held.ready, held.kv_blocks_used, held.running_rooms) == (False, 10, 3)
    assert (held.decode_steps, held.decode_busy_s) == (None, None), "old counters would look like an idle decode"


def test_pools_are_those_of_prefills_where_no_decode_was_ever_heard(serve: Serve) -> None:
    prefill = Instance(serve, "prefill", pool=800)
    look = watch(*ends(prefill.url, f"http://127.0.0.1:{closed_port()}")).look(0.0)
    assert look.observation is not None
    assert (look.observation.decodes, look.observation.kv_blocks_per_replica) == (1, 50)
    assert not replicas(look)["decode-0"].ready


def test_nothing_is_made_up_while_nobody_was_heard() -> None:
    dead = f"http://127.0.0.1:{closed_port()}"
    look = watch(*ends(dead, dead)).look(0.0)
    assert look.observation is None
    assert look.notes[-1] == "no instance has told its load yet"
    assert len(look.notes) == 3


def test_a_router_names_the_fleet_and_whom_it_sends_to(serve: Serve) -> None:
    one, other, decode = Instance(serve, "prefill"), Instance(serve, "prefill"), Instance(serve, "decode")
    answers: Answers = {"/readiness": (200, "{}")}
    workers(answers, (one.url, "prefill", True), (other.url, "prefill", True), (decode.url, "decode", True))
    seen = watch(router=serve(answers))
    before = replicas(seen.look(0.0))
    assert {name: load.ready for name, load in before.items()} == {
        "prefill-0": True, "prefill-1": True, "decode-0": True,
    }  # fmt: skip
    first = min((one, other), key=lambda each: int(each.url.rpartition(":")[2]))
    second = other if first is one else one
    second.tell(num_used_tokens=32)
    workers(answers, (second.url, "prefill", False), (decode.url, "decode", True))
    seen.look(1.0)
    look = seen.look(2.0)
    after = replicas(look)
    assert set(after) == {"prefill-1", "decode-0"}, "a name stays with its instance"
    assert (after["prefill-1"].ready, after["prefill-1"].kv_blocks_used) == (False, 2)
    unhealthy = f"prefill-1 ({second.url}): the router calls it unhealthy"
    assert look.notes == (unhealthy, "no prefill is ready: the fleet serves no request")
    del answers["/workers"]
    look = seen.look(3.0)
    assert set(replicas(look)) == {"prefill-1", "decode-0"}, "without a router's list those of before are looked at"
    assert [note.partition(":")[0] for note in look.notes] == ["router http"]


def test_a_router_that_does_not_say_who_is_healthy_is_quoted_so(serve: Serve) -> None:
    prefill, decode = Instance(serve, "prefill"), Instance(serve, "decode")
    router: Answers = {"/readiness": (200, "{}")}
    listed = [{"url": one.url, "worker_type": one.role} for one in (prefill, decode)]
    router["/workers"] = (200, json.dumps({"workers": listed}))
    notes = watch(router=serve(router)).look(0.0).notes
    said = "the router does not say whether it is healthy (`is_healthy` in /workers)"
    assert [note.partition(": ")[2] for note in notes[:2]] == [said, said]


def test_a_worker_that_is_listed_several_times_counts_once(serve: Serve) -> None:
    prefill, decode = Instance(serve, "prefill"), Instance(serve, "decode")
    answers: Answers = {"/readiness": (200, "{}")}
    twice = [(prefill.url, role, True) for role in ("prefill", "decode", "prefill", "regular")]
    workers(answers, *twice, (decode.url, "decode", True), (decode.url + "/", "decode", False))
    router = serve(answers)
    look = watch(router=router).look(0.0)
    assert {name: load.ready for name, load in replicas(look).items()} == {"prefill-0": True, "decode-0": True}
    assert look.notes == (f"router {router}: it lists {prefill.url} and 1 other more than once; each counts once",)


def test_workers_without_an_address_are_left_out_and_no_password_is_kept(serve: Serve) -> None:
    prefill, decode = Instance(serve, "prefill"), Instance(serve, "decode")
    named = prefill.url.replace("://", "://user:sekrit@")
    odd = (
        "file:///etc/passwd",
        "gopher://x:sekrit@y",
        "",
        "http://[::1",
        "http://h:99999",
        "http://h/" + "a" * 100_000,
    )
    answers: Answers = {"/readiness": (200, "{}")}
    workers(answers, (named, "prefill", True), (decode.url, "decode", True), *((url, "decode", True) for url in odd))
    router = serve(answers)
    look = watch(router=router).look(0.0)
    assert set(replicas(look)) == {"prefill-0", "decode-0"}
    left = f"router {router}: 6 of its workers have no http:// or https:// address and are left out, such as "
    assert len(look.notes) == 1
    assert look.notes[0].startswith(left)
    assert "sekrit" not in look.notes[0]
    assert len(look.notes[0]) < 500


def test_a_router_that_hangs_leaves_the_instances_their_time(serve: Serve, peer: Any) -> None:
    prefill, decode = Instance(serve, "prefill"), Instance(serve, "decode")
    router: Peer = peer(hold=True)
    seen = watch(*ends(prefill.url, decode.url), router=f"http://127.0.0.1:{router.port}", timeout=BRIEF)
    look = seen.look(0.0)
    assert all(one.ready for one in replicas(look).values())
    (note,) = look.notes
    assert note.startswith(f"router http://127.0.0.1:{router.port}: ")


def test_many_that_hang_leave_the_others_their_turns(serve: Serve, peer: Any) -> None:
    silent: Peer = peer(hold=True)
    hanging = [Endpoint(f"prefill-{number}", "prefill", f"http://127.0.0.1:{silent.port}") for number in range(60)]
    seen = watch(*hanging, Endpoint("decode-0", "decode", Instance(serve, "decode").url), timeout=6 * BRIEF)
    look = seen.look(0.0)
    assert replicas(look)["decode-0"].ready
    assert len(look.notes) == 61
    assert look.notes[-1] == "no prefill is ready: the fleet serves no request"
    assert look.observation is not None
    assert look.observation.prefills == 60


def test_the_role_of_now_counts(serve: Serve) -> None:
    """It was started as a prefill, and is a decode since a role switch."""
    turned, decode = Instance(serve, "prefill"), Instance(serve, "decode")
    info = {"disaggregation_mode": "prefill", "internal_states": [{"disaggregation_mode": "decode"}], "page_size": 16}
    turned.answers["/server_info"] = (200, json.dumps(info))
    look = watch(*ends(turned.url, decode.url)).look(0.0)
    assert look.observation is not None
    assert (look.observation.prefills, look.observation.decodes) == (0, 2)


def test_recorded_instances_of_0_5_23(serve: Serve) -> None:
    decode = serve(recorded("0.5.23-2p1d", "decode0"))
    seen = watch(*ends(serve(recorded("0.5.23-2p1d", "prefill0")), decode))
    look = seen.look(0.0)
    lacking = "/metrics tells nothing of requests and their lengths; SGLang has it with --enable-metrics"
    assert look.notes == (f"decode-0 ({decode}): {lacking}",), "it was not recorded"
    now = look.observation
    assert now is not None
    assert (now.block_tokens, now.kv_blocks_per_replica, now.waiting_prompt_tokens) == (1, 4096, 0)
    assert replicas(look)["decode-0"].decode_steps == 73
    assert seen.look(1.0).notes == (), "said once"


NUMBER = st.one_of(ANY_JSON, st.integers(-2, 10**20), st.floats(allow_nan=False))
BROKEN = st.fixed_dictionaries(
    {},
    optional={
        **{key.name: st.one_of(NUMBER, st.lists(NUMBER, max_size=6)) for key in LOAD_KEYS if not key.section},
        "queues": st.one_of(ANY_JSON, st.dictionaries(st.just("waiting"), NUMBER)),
        "disaggregation": st.one_of(
            ANY_JSON, st.dictionaries(st.sampled_from([key.name for key in LOAD_KEYS]), NUMBER)
        ),
    },
)
FIGURE = st.integers(0, 10**11)
WHOLE = st.fixed_dictionaries(
    {
        **{key.name: FIGURE for key in LOAD_KEYS if not key.section and key.at is None},
        "max_total_num_tokens": st.just(10**11),
        "total_prefill_busy_us": st.integers(0, 10**15),
        "decode_moments": st.lists(FIGURE, min_size=6, max_size=6),
    }
)
ANY_COUNTER = st.one_of(st.floats(0, 1e24), st.integers(0, 3).map(float))
COUNTERS = st.fixed_dictionaries({one.name: ANY_COUNTER for one in TRAFFIC})


def test_whatever_two_looks_are_told_makes_observations_that_can_be_recorded(serve: Serve) -> None:
    prefill, decode = Instance(serve, "prefill"), Instance(serve, "decode")
    load = st.one_of(st.lists(BROKEN, max_size=2), WHOLE.map(lambda one: [one]))

    @settings(max_examples=100)
    @given(st.lists(st.tuples(load, COUNTERS), min_size=4, max_size=4))
    def check(told: list[tuple[list[dict[str, Any]], dict[str, float]]]) -> None:
        seen = watch(*ends(prefill.url, decode.url))
        for number in range(2):
            for instance, (entries, counters) in zip((prefill, decode), told[2 * number :], strict=False):
                instance.answers["/v1/loads"] = (200, json.dumps({"loads": entries}))
                text = "".join(f"{name} {value!r}\n" for name, value in counters.items())
                instance.answers["/metrics"] = (200, text)
            look = seen.look(float(number))
            if look.observation is not None:
                replicas(look)
            else:
                assert look.notes

    check()


def test_a_release_that_does_not_tell_its_backlog_is_named(serve: Serve) -> None:
    prefill = serve(recorded("0.5.8-prefill-dp2", "prefill0"))
    (note, *_) = watch(*ends(prefill, Instance(serve, "decode").url)).look(0.0).notes
    assert note == (
        f"prefill-0 ({prefill}): this release does not say how many prompt tokens wait; its backlog counts as 0"
    )
