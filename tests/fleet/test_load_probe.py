"""The load that recorded and broken instances tell: sums over DP ranks, names of every release, reasons for silence."""

from __future__ import annotations

import json

from pdctl.fleet.load_probe import InstanceLoad, probe_loads
from pdctl.fleet.observations import Endpoint
from tests.cases import for_each
from tests.fleet.conftest import LONG, Serve, closed_port, recorded


def probe(url: str, role: str = "prefill") -> InstanceLoad:
    return probe_loads([Endpoint(f"{role}-0", role, url)], LONG, patience=LONG)[0]


def test_a_recorded_prefill_and_decode_of_0_5_23(serve: Serve) -> None:
    prefill = probe(serve(recorded("0.5.23-2p1d", "prefill0")))
    assert (prefill.heard, prefill.reason, prefill.role, prefill.page_size) == (True, "", "prefill", 1)
    assert prefill.queues == dict.fromkeys(
        ("running", "waiting", "bootstrap", "inflight", "prealloc", "transfer", "retracted"), 0
    )
    assert (prefill.pages("used_tokens"), prefill.pages("pool_tokens")) == (0, 4096)
    assert (prefill.figures["prefilled_tokens"], prefill.figures["prefill_busy_us"]) == (14, 972866)
    assert (prefill.traffic["requests"], prefill.traffic["prompt_tokens"], prefill.traffic["cached_tokens"]) == (
        7, 34, 20,
    )  # fmt: skip
    assert 1057 < prefill.traffic["moving_ms"] < 1058
    decode = probe(serve(recorded("0.5.23-2p1d", "decode0")), "decode")
    assert (decode.role, decode.figures["decode_steps"], decode.figures["decode_busy_us"]) == ("decode", 73, 1323139)


def test_dp_ranks_are_added_up_and_old_names_understood(serve: Serve) -> None:
    """0.5.8 says `prealloc` of a prefill's bootstrap queue, and nothing of tokens that wait."""
    load = probe(serve(recorded("0.5.8-prefill-dp2", "prefill0")))
    assert load.heard
    assert load.figures["pool_tokens"] == 2 * 4096
    assert load.queues["bootstrap"] == 0
    assert "waiting_prompt_tokens" not in load.figures


INFO = json.dumps({"disaggregation_mode": "prefill", "page_size": 16})
BROKEN = {
    "no JSON": "<html>",
    "no list": '{"loads": 7}',
    "no numbers": '{"loads": [{"num_running_reqs": "many", "queues": [1], "disaggregation": null}]}',
    "infinite": '{"loads": [{"num_used_tokens": 1e999, "num_running_reqs": true, "decode_moments": {}}]}',
    "unknown": '{"loads": [{"num_used_tokens": -1}]}',
    "huge": '{"loads": [{"num_used_tokens": ' + "9" * 400 + "}]}",
}


@for_each("what", BROKEN)
def test_garbage_is_no_load(serve: Serve, what: str) -> None:
    load = probe(serve({"/server_info": (200, INFO), "/v1/loads": (200, BROKEN[what]), "/metrics": (404, "")}))
    assert not load.heard
    assert load.reason == "/v1/loads answered with something that is no load"
    assert (load.queues, load.pages("used_tokens")) == ({}, None)


def test_a_pool_that_no_machine_has_is_named_by_its_key(serve: Serve) -> None:
    answers = {"/server_info": (200, INFO), "/metrics": (404, "")}
    load = probe(serve({**answers, "/v1/loads": (200, '{"loads": [{"max_total_num_tokens": 5e17}]}')}))
    words = "/v1/loads says that max_total_num_tokens is 5e+17, and more than 1e+11 is absurd"
    assert (load.heard, load.reason) == (False, words)


def test_who_does_not_answer_is_said_so(serve: Serve) -> None:
    load = probe(serve({"/server_info": (200, INFO), "/v1/loads": (500, "out of order"), "/metrics": (404, "")}))
    assert (load.heard, load.reason) == (False, '/v1/loads answered 500: "out of order"')
    gone = probe(f"http://127.0.0.1:{closed_port()}")
    assert not gone.heard
    assert "refused" in gone.reason
