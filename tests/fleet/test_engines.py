"""Facts about engines: recorded answers of real releases over real sockets, and engines that are broken."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from email.utils import formatdate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.fleet import engine_probe, prober
from pdctl.fleet.engine_probe import probe_engines
from pdctl.fleet.http_client import Answer
from pdctl.fleet.observations import Endpoint, ObservedEngine
from tests.cases import for_each
from tests.fleet.conftest import ANY_JSON, LONG, Peer, Serve, closed_port, recorded


def probe(url: str) -> ObservedEngine:
    return probe_engines([Endpoint("prefill-0", "prefill", url)], LONG, patience=LONG)[0]


@pytest.mark.parametrize(
    ("folder", "version", "loads", "queue"),
    [
        ("0.5.8-2p1d-router-without-ports", "0.5.8", 0, "sglang:num_prefill_prealloc_queue_reqs"),
        ("0.5.23-2p1d", "0.5.23", 1, "sglang:num_prefill_bootstrap_queue_reqs"),
    ],
)
def test_real_prefills(serve: Serve, folder: str, version: str, loads: int, queue: str) -> None:
    engine = probe(serve(recorded(folder, "prefill0")))
    assert (engine.reached, engine.reason, engine.version, engine.mode) == (True, "", version, "prefill")
    assert engine.number("disaggregation_bootstrap_port") == 8998
    assert engine.text("disaggregation_transfer_backend") == "nixl"
    assert engine.model["model_type"] == "llama"
    assert len(engine.loads) == loads  # 0.5.8 answered 500 here
    assert engine.metrics[queue] == 0.0
    assert engine.health is not None
    assert engine.health.ok
    assert engine.health_generate is None
    assert [(reply.path, reply.status) for reply in engine.replies] == [
        ("/server_info", 200),
        ("/model_info", 200),
        ("/v1/loads", 200 if loads else 500),
        ("/metrics", 200),
        ("/health", 200),
    ]


def test_dp_ranks_have_a_load_each(serve: Serve) -> None:
    engine = probe(serve(recorded("0.5.8-prefill-dp2", "prefill0")))
    assert sorted(str(load["dp_rank"]) for load in engine.loads) == ["0", "1"]


def test_the_paths_of_0_5_3(serve: Serve) -> None:
    info, model = json.dumps({"version": "0.5.3", "tp_size": 2}), json.dumps({"model_path": "m"})
    engine = probe(serve({"/get_server_info": (200, info), "/get_model_info": (200, model), "/health": (200, "")}))
    assert (engine.version, engine.number("tp_size"), engine.model) == ("0.5.3", 2, {"model_path": "m"})
    assert [reply.status for reply in engine.replies] == [404, 200, 404, 404, 404, 200, 200]


def test_nobody_there_is_asked_once() -> None:
    engine = probe(f"http://127.0.0.1:{closed_port()}")
    assert (engine.reached, engine.reason, len(engine.replies)) == (False, "connection refused", 1)


def test_a_scheduler_that_is_stuck_leaves_what_needs_no_scheduler(serve: Serve, peer: Callable[..., Peer]) -> None:
    stuck = probe_engines([Endpoint("d", "decode", f"http://127.0.0.1:{peer(hold=True).port}")], 10.0, patience=0.2)[0]
    assert (stuck.reached, stuck.reason) == (False, "/server_info: no answer within 0.2 s")
    partly = probe(serve({"/server_info": (503, "starting"), "/health": (200, "")}))
    assert (partly.reached, partly.reason) == (True, "/server_info answered 503: starting")
    assert partly.health is not None
    assert partly.health.ok


@pytest.mark.parametrize("said", [b"\x00\x01\x02", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n[", b""])
def test_garbage_is_a_reason(peer: Callable[..., Peer], said: bytes) -> None:
    engine = probe(f"http://127.0.0.1:{peer(said).port}")
    assert not engine.reached
    assert engine.reason.startswith("/server_info: ")


def test_the_time_for_all_is_kept_and_what_was_not_asked_says_so(peer: Callable[..., Peer]) -> None:
    url = f"http://127.0.0.1:{peer(hold=True).port}"
    found = probe_engines([Endpoint(str(i), "decode", url) for i in range(6)], 0.4, patience=0.3, at_once=2)
    assert found[0].reason == "/server_info: no answer within 0.3 s"
    assert found[-1].reason == "not asked within the 0.4 s granted"


def test_a_key_is_sent_and_health_generate_only_when_asked(peer: Callable[..., Peer]) -> None:
    one = peer(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    url = f"http://127.0.0.1:{one.port}"
    engine = probe_engines([Endpoint("p", "prefill", url)], LONG, patience=LONG, key="secret", generate=True)[0]
    assert engine.health_generate is not None
    assert engine.health_generate.ok
    assert len(one.heard) == 6
    assert all(b"authorization: Bearer secret" in heard for heard in one.heard)


@for_each(("ahead", "least"), [(0.0, 0.0), (60.0, 57.0), (-60.0, -57.0)])
def test_a_clock_is_off_by_at_least(ahead: float, least: float) -> None:
    now = time.time()
    date = formatdate(now + ahead, usegmt=True)
    found = prober.clock_offset(Answer(200, seconds=0.1, ended=now, connected=True, headers={"date": date}))
    assert found is not None
    assert abs(found) >= abs(least)
    assert abs(found - ahead) <= 3.0
    assert prober.clock_offset(Answer(200, headers={"date": "Sat, 99 Nov 2026 02:04:44 GMT"})) is None


def test_the_mode_for_launch(serve: Serve) -> None:
    body = json.dumps({"disaggregation_mode": "prefill", "tp_size": 2})
    for path in ("/server_info", "/get_server_info"):
        assert engine_probe.mode(serve({path: (200, body)})) == "prefill"
    assert engine_probe.mode(serve({"/server_info": (200, "not json")})) is None


@given(ANY_JSON, ANY_JSON, st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_documents_make_an_engine(info: object, loads: object, metrics: bytes) -> None:
    answers = {"/server_info": (200, json.dumps(info)), "/v1/loads": (200, json.dumps({"loads": loads}))}
    answers |= {"/model_info": (200, json.dumps(loads)), "/metrics": (200, metrics.decode("latin-1"))}
    engine = _from(answers)
    assert isinstance(engine.version, str)
    assert engine.number("tp_size") is None or isinstance(engine.number("tp_size"), int)
    assert all(isinstance(load, dict) for load in engine.loads)


def _from(answers: dict[str, tuple[int, str]]) -> ObservedEngine:
    """The probe without its sockets: thousands of cases would cost minutes over them."""
    from pdctl.fleet import engine_probe

    class Told(prober.Prober):
        def ask_all(self, base: str, paths: object) -> tuple[Answer, ...]:
            found = [answers.get(path, (404, "")) for path in paths]  # type: ignore[attr-defined]
            return tuple(Answer(status, text.encode(), connected=True) for status, text in found)

    return engine_probe._probe(Endpoint("p", "prefill", "http://h:1"), Told(None, 1.0), engine_probe.EVERYTHING)  # type: ignore[arg-type]
