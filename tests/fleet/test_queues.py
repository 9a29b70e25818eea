"""What engines still hold, from the places where the releases tell it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pdctl.fleet.canary_probe import queues
from pdctl.fleet.observations import Endpoint, HeldRequests
from tests.fleet.conftest import LONG, Answers, Serve, closed_port, recorded
from tests.fleet.engine import Engine, is_silent

ONCE = 0.0  # seconds: one look, and what is held stays held


def one(url: str, deadline: float = LONG) -> HeldRequests:
    return queues([Endpoint("e", "prefill", url)], deadline, patience=LONG)[0]


@pytest.mark.parametrize(("folder", "who"), [("0.5.23-2p1d", "decode0"), ("0.5.8-prefill-dp2", "prefill0")])
def test_real_engines_that_hold_nothing(serve: Serve, folder: str, who: str) -> None:
    assert one(serve(recorded(folder, who))) == HeldRequests("e", {}, True)


def test_the_old_and_the_new_name_of_a_queue(serve: Serve) -> None:
    for folder, name in (
        ("0.5.8-prefill-dp2", "prefill_prealloc_queue_reqs"),
        ("0.5.23-2p1d", "prefill_bootstrap_queue_reqs"),
    ):
        answers = recorded(folder, "prefill0")
        body = json.loads(answers["/v1/loads"][1])
        for load in body["loads"]:
            load["disaggregation"][name] = 2
        answers["/v1/loads"] = (200, json.dumps(body))
        assert one(serve(answers), ONCE).left == {name: 2.0 * len(body["loads"])}


def test_metrics_where_loads_fail_may_be_late(serve: Serve) -> None:
    """0.5.8 answered /v1/loads with 500 in this deployment. A gauge is written now and then: nobody waits for it."""
    answers = recorded("0.5.8-2p1d-router-without-ports", "prefill0")
    answers.pop("/get_load", None)
    assert one(serve(answers)) == HeldRequests("e", {}, True, late=True)
    name = b"sglang:num_prefill_prealloc_queue_reqs{"
    lines = bytes(answers["/metrics"][1]).split(b"\n")  # type: ignore[arg-type]
    held = [line.rpartition(b" ")[0] + b" 1.0" if line.startswith(name) else line for line in lines]
    answers["/metrics"] = (200, b"\n".join(held))
    assert one(serve(answers)) == HeldRequests("e", {"sglang:num_prefill_prealloc_queue_reqs": 1.0}, True, late=True)


def test_a_load_of_now_counts_more_than_a_gauge(serve: Serve) -> None:
    """A gauge that still shows the last request says nothing where the scheduler itself can be asked."""
    answers: Answers = {
        "/get_load": (200, '[{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 9}]'),
        "/metrics": (200, "sglang:num_running_reqs 1.0\n"),
    }
    assert one(serve(answers)) == HeldRequests("e", {}, True)


def test_the_load_of_0_5_3(serve: Serve) -> None:
    answers: Answers = {"/get_load": (200, '[{"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 1, "num_tokens": 9}]')}
    assert one(serve(answers), ONCE).left == {"num_reqs": 3.0, "num_waiting_reqs": 1.0}


def test_what_cannot_be_read_says_so(serve: Serve) -> None:
    assert one(f"http://127.0.0.1:{closed_port()}") == HeldRequests("e", {}, False)
    assert one(serve({"/v1/loads": (200, '{"loads": "none"}'), "/metrics": (200, "x 1\n")})) == HeldRequests(
        "e", {}, False
    )


@pytest.fixture
def draining() -> Iterator[Engine]:
    """Holds a request for three looks."""
    engine = Engine("decode-0", is_silent)
    looks = iter([1, 1, 1])

    class Loads(list):  # type: ignore[type-arg]
        def __bool__(self) -> bool:
            self[:] = [{"num_running_reqs": next(looks, 0)}]
            return True

    engine.loads = Loads()
    yield engine
    engine.close()


def test_it_looks_again_until_nothing_is_left(draining: Engine) -> None:
    assert one(draining.url) == HeldRequests("e", {}, True)
