"""Calibration against deployments that answer as they should not: a sentence each, and never a profile of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from random import Random
from typing import Any

import pytest

from pdctl.errors import NotProbedError, PdctlError
from pdctl.fleet.observations import Endpoint
from pdctl.layout.cost_profile import read_profile
from pdctl.simulation.calibration import (
    FRESH_TOKENS,
    SMALLEST_TOKEN,
    CalibrationTarget,
    calibrate,
    draw_prompt,
    miscounted,
)
from tests.cases import for_each
from tests.e2e.conftest import TINY
from tests.fleet.conftest import Server

INFO: dict[str, Any] = {
    "version": "0.5.23",
    "disaggregation_mode": "prefill",
    "internal_states": [{}],
    "context_length": 256,
    "max_total_num_tokens": 4096,
    "page_size": 16,
    "max_running_requests": 2,
}
Fleet = Callable[..., CalibrationTarget]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Starts one server that is router, prefill and decode, with these members of /server_info and this busy time."""
    servers: list[Server] = []

    def start(info: dict[str, Any], busy_us: int = 1000) -> CalibrationTarget:
        counted = {"tokens": 0, "busy": 0}

        class Face(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                load = {"max_total_num_tokens": 4096, "num_used_tokens": 0}
                load |= {"total_prefill_uncached_tokens": counted["tokens"], "total_prefill_busy_us": counted["busy"]}
                self.say(json.dumps({"loads": [load]} if self.path.startswith("/v1/loads") else INFO | info).encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                counted["tokens"] += len(body["input_ids"])
                counted["busy"] += busy_us
                told = {"meta_info": {"completion_tokens": body["sampling_params"]["max_new_tokens"]}}
                self.say(b"data: " + json.dumps(told).encode() + b"\n\ndata: [DONE]\n\n")

            def say(self, body: bytes) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(Server(("127.0.0.1", 0), Face))
        threading.Thread(target=servers[-1].serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()
        url = f"http://127.0.0.1:{servers[-1].server_port}"
        engines = (Endpoint("prefill-0", "prefill", url), Endpoint("decode-0", "decode", url))
        return CalibrationTarget(url, engines, str(TINY), answer_within_s=60.0, longest=256, most_rooms=2)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@for_each(
    ("info", "message"),
    [
        ({"context_length": 3}, "take 3 tokens of context, and 128 are needed"),
        ({"page_size": 10**9}, "`block_tokens` is 1,000,000,000, not a whole number"),
        ({"max_total_num_tokens": 2**62}, "`kv_blocks` is 288,230,376,151,711,744, not a whole number"),
        ({"kv_cache_dtype": "x\x1b[31m\n2026 fake"}, "KV dtype x [31m 2026 fake is unknown"),
        ({"max_total_num_tokens": None}, "does not say how large its KV pool is"),
    ],
)
def test_what_an_engine_says_of_itself_is_not_believed_blindly(
    fleet: Fleet, info: dict[str, Any], message: str
) -> None:
    with pytest.raises(PdctlError) as raised:
        calibrate(fleet(info), read_profile("laptop"), 1, lambda _: None)
    assert message in raised.value.message


def test_a_counter_that_stands_still_is_named(fleet: Fleet) -> None:
    with pytest.raises(NotProbedError, match="counter of busy time stood still while 16 tokens were computed"):
        calibrate(fleet({}, busy_us=0), read_profile("laptop"), 1, lambda _: None)


def test_tokens_that_come_all_at_once_tell_no_decode_step(fleet: Fleet) -> None:
    with pytest.raises(PdctlError, match="come in one piece"):
        calibrate(fleet({}), read_profile("laptop"), 1, lambda _: None)


def test_the_same_seed_sends_prompts_that_no_prefix_cache_has() -> None:
    one, again = (draw_prompt(64, 32_000, Random(7)) for _ in range(2))
    assert one[:FRESH_TOKENS] != again[:FRESH_TOKENS]
    assert one[FRESH_TOKENS:] == again[FRESH_TOKENS:], "the seed chooses the rest"
    assert all(SMALLEST_TOKEN <= token < 32_000 for token in (*one, *again))


def test_fewer_tokens_than_were_sent_are_the_prefix_caches_and_more_are_other_traffic() -> None:
    fewer, more = miscounted("http://r", 32, 16), miscounted("http://r", 32, 48)
    assert fewer.message == (
        "http://r: prompts of 32 tokens were sent, and the prefills computed 16 at a time: "
        "the others were in the prefix cache"
    )
    assert "--disable-radix-cache" in (fewer.fix or "")
    assert "send nothing else" in (more.fix or "")
