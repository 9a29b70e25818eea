"""Facts about routers: recorded answers of sglang-router 0.3.2 and smg 1.13.0, and what is no router."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings

from pdctl.fleet import router_probe
from pdctl.fleet.observations import ObservedRouter
from pdctl.fleet.router_probe import probe_router
from tests.fleet.conftest import ANY_JSON, LONG, Answers, Peer, Serve, closed_port, recorded

OWN = {"schema": "pdctl.router.workers/1", "workers": [], "total": 0}


def probe(serve: Serve, answers: Answers, metrics: Answers | None = None) -> ObservedRouter:
    """With the router's metrics on a port of their own, as sglang-router and smg have them."""
    elsewhere = serve(metrics if metrics is not None else {"/metrics": answers.get("/metrics", (404, ""))})
    return probe_router(serve(answers), LONG, metrics_url=elsewhere, patience=LONG)


def ports(found: ObservedRouter) -> dict[str, tuple[int | None, bool]]:
    assert found.workers is not None
    return {one.url[-5:]: (one.bootstrap_port, one.bootstrap_known) for one in found.workers if one.role == "prefill"}


@pytest.mark.parametrize(
    ("folder", "kind", "first", "second"),
    [
        ("0.5.8-2p1d-router-without-ports", "sglang-router", (None, False), (None, False)),
        ("0.5.23-2p1d", "sglang-router", (8998, True), (8999, True)),
        ("smg-1.13.0-2p1d", "smg", (8998, True), (None, False)),
    ],
)
def test_real_routers(
    serve: Serve, folder: str, kind: str, first: tuple[int | None, bool], second: tuple[int | None, bool]
) -> None:
    found = probe(serve, recorded(folder, "router"))
    assert (found.kind, found.reached, found.reason, found.ready) == (kind, True, "", True)
    assert ports(found) == {"30000": first, "30001": second}
    assert found.workers is not None
    decode = next(one for one in found.workers if one.role == "decode")
    assert (decode.healthy, decode.mode, decode.bootstrap_known) == (True, "decode", False)
    assert found.breakers_known
    assert dict(found.breakers) == dict.fromkeys((f"http://127.0.0.1:{port}" for port in (30000, 30001, 30002)), 0)
    assert found.metrics["smg_worker_health"] == 3.0


def test_an_open_breaker_is_seen_although_the_router_says_ready(serve: Serve) -> None:
    answers = recorded("0.5.23-2p1d", "router")
    state = b'smg_worker_cb_state{worker="http://127.0.0.1:30001"} '
    text = answers["/metrics"][1]
    assert isinstance(text, bytes)
    assert state + b"0" in text
    answers["/metrics"] = (200, text.replace(state + b"0", state + b"1"))
    found = probe(serve, answers)
    assert found.ready
    assert {url[-5:]: value for url, value in found.breakers.items()} == {"30000": 0, "30001": 1, "30002": 0}


def test_metrics_of_another_router_are_not_believed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default port is 29000 for every instance of a host: only a text that names our workers is ours."""
    answers = recorded("0.5.23-2p1d", "router")
    text = answers.pop("/metrics")
    for metrics, known in ((text, True), ((200, 'smg_worker_cb_state{worker="http://other:1"} 1\n'), False)):
        monkeypatch.setattr(
            "pdctl.fleet.router_probe.METRICS_PORT", int(serve({"/metrics": metrics}).rpartition(":")[2])
        )
        found = probe_router(serve(answers), LONG, patience=LONG)
        assert found.breakers_known is known
        assert bool(found.metrics) is known
    monkeypatch.setattr("pdctl.fleet.router_probe.METRICS_PORT", closed_port())
    assert not probe_router(serve(answers), LONG, patience=LONG).breakers_known


def test_routers_without_workers(serve: Serve) -> None:
    """Both say the same on /workers then; sglang-router's summary is its own, smg's a worker's."""
    empty: Answers = {
        "/workers": (200, '{"workers":[],"total":0,"stats":{"prefill_count":0,"decode_count":0,"regular_count":0}}'),
        "/readiness": (503, '{"status":"not ready","reason":"insufficient healthy workers"}'),
    }
    summary: Answers = {"/get_server_info": (200, '{"router_manager":true,"routers_count":1,"workers_count":0}')}
    refused: Answers = {"/get_server_info": (503, '{"error":{"message":"No prefill servers available"}}')}
    ours, theirs = probe(serve, {**empty, **summary}), probe(serve, {**empty, **refused})
    assert (ours.kind, theirs.kind) == ("sglang-router", "smg")
    assert (ours.ready, ours.workers) == (False, ())
    assert ours.readiness is not None
    assert "insufficient healthy workers" in ours.readiness.reason


def test_mini_lb_has_no_list(serve: Serve) -> None:
    found = probe(serve, {"/get_server_info": (200, '{"prefill": [{}], "decode": [{}], "internal_states": []}')})
    assert (found.kind, found.ready, found.workers, found.breakers_known) == ("mini_lb", None, None, False)


def test_pdctls_own_router_has_breakers_of_pairs(serve: Serve) -> None:
    prefill, decode = "http://127.0.0.1:1", "http://127.0.0.1:2"
    entries = [
        {"url": prefill, "worker_type": "prefill", "is_healthy": True, "bootstrap_port": None},
        {"url": decode, "worker_type": "decode", "is_healthy": True},
    ]
    answers: Answers = {
        "/workers": (200, json.dumps({**OWN, "workers": entries})),
        "/readiness": (200, "{}"),
        "/metrics": (200, f'pdctl_router_breaker_state{{prefill="{prefill}",decode="{decode}"}} 1\n'),
    }
    found = probe_router(serve(answers), LONG, patience=LONG)
    assert (found.kind, found.breakers_known) == ("pdctl", True)
    assert dict(found.breakers) == {f"{prefill} {decode}": 1}
    assert found.workers is not None
    assert (found.workers[0].bootstrap_port, found.workers[0].bootstrap_known) == (None, True)


def test_what_is_no_router_says_what_it_is(serve: Serve) -> None:
    engine = recorded("0.5.23-2p1d", "decode0")
    engine["/get_server_info"] = engine["/server_info"]
    found = probe(serve, engine)
    assert (found.kind, found.reason) == ("", "this is an engine (disaggregation_mode decode), not a router")
    locked = probe(serve, {"/workers": (401, "Unauthorized")})
    assert locked.reason == "401 on /workers: the router asks for an API key"
    assert probe(serve, {}).reason == "404 on /workers"
    for body in ('{"workers": "x", "stats": 3}', '{"workers": [], "stats": 3}', '{"stats": {"a": 1}}'):
        assert probe(serve, {"/workers": (200, body)}).kind == "", body
    nobody = probe_router(f"http://127.0.0.1:{closed_port()}", LONG)
    assert (nobody.reached, nobody.reason) == (False, "connection refused")


@pytest.mark.parametrize("entry", [{}, 7, {"url": "http://127.0.0.1:9", "worker_type": "prefill", "labels": {}}])
def test_a_list_without_end_is_not_believed(entry: object, serve: Serve) -> None:
    """Each worker would be asked; of a full one every single entry is."""
    full, more = ({"workers": [entry] * (router_probe.MAX_WORKERS + extra)} for extra in (0, 1))
    assert len(router_probe.listed_workers(full) or ()) == (router_probe.MAX_WORKERS if isinstance(entry, dict) else 0)
    url = serve({"/readiness": (200, "{}"), "/workers": (200, json.dumps(more))})
    said = "/workers lists 2049 workers, and more than 2048 are not believed"
    found = probe_router(url, LONG, metrics_url=url, patience=LONG)
    assert (found.kind, found.reached, found.workers, found.reason) == ("", True, None, said)
    state = router_probe.fetch(url, LONG)
    assert (state.reached, state.ready, state.workers, state.reason) == (True, False, (), said)


def test_a_million_entries_are_more_than_is_read(serve: Serve) -> None:
    entry = b'{"url":"http://127.0.0.1:9"}'
    url = serve({"/workers": (200, b'{"workers":[' + b",".join([entry] * 1_000_000) + b"]}")})
    found = probe_router(url, LONG, metrics_url=url, patience=LONG)
    assert (found.kind, found.workers, found.reason) == ("", None, "its answer is longer than 8192 KiB")


def test_mini_lb_with_servers_without_end_is_not_believed(serve: Serve) -> None:
    url = serve({"/get_server_info": (200, json.dumps({"prefill": [{}] * 2000, "decode": [{}] * 49}))})
    state = router_probe.fetch(url, LONG)
    assert (state.ready, state.workers) == (False, ())
    assert state.reason == "/get_server_info lists 2049 workers, and more than 2048 are not believed"


def test_a_redirect_says_where_to(peer: Callable[..., Peer]) -> None:
    moved = peer(b"HTTP/1.1 302 Found\r\nlocation: http://10.0.0.9:1/\r\ncontent-length: 0\r\n\r\n")
    url = f"http://127.0.0.1:{moved.port}"
    found = probe_router(url, LONG, metrics_url=url, patience=LONG)
    assert found.reason == "/workers redirects to http://10.0.0.9:1/, which is not followed"


def test_router_state_for_launch(serve: Serve) -> None:
    workers = [
        {"url": "http://a:1/", "worker_type": "prefill", "is_healthy": True, "bootstrap_port": 8998, "load": 2},
        {"url": "http://b:2", "worker_type": "decode", "is_healthy": False, "load": 2},
    ]
    url = serve({"/readiness": (503, '{"status": "no decode"}'), "/workers": (200, json.dumps({"workers": workers}))})
    state = router_probe.fetch(url)
    assert (state.reached, state.ready, state.in_flight) == (True, False, 2)
    assert state.reason == "no decode"
    assert state.lists("http://a:1")
    assert not state.lists("http://b:2")  # listed, but not healthy
    assert state.workers[0].bootstrap_port == 8998


def test_mini_lb_is_ready_when_its_workers_answer_through_it(serve: Serve) -> None:
    """It has neither /readiness nor /workers; its summary asks them all."""
    summary = {
        "prefill": [{"host": "127.0.0.1", "port": 30000, "disaggregation_mode": "prefill"}],
        "decode": [{"host": "::1", "port": 30001, "disaggregation_mode": "decode"}],
    }
    state = router_probe.fetch(serve({"/get_server_info": (200, json.dumps(summary))}))
    assert (state.reached, state.ready) == (True, True)
    assert [(one.url, one.role, one.mode, one.bootstrap_known) for one in state.workers] == [
        ("http://127.0.0.1:30000", "prefill", "prefill", False),
        ("http://[::1]:30001", "decode", "decode", False),
    ]
    assert state.lists("http://[::1]:30001")
    down = router_probe.fetch(serve({"/get_server_info": (500, "Internal Server Error")}))
    assert (down.reached, down.ready, down.reason) == (True, False, "/readiness: 404, /get_server_info: 500")


@given(ANY_JSON, ANY_JSON)
@settings(max_examples=50, deadline=None)
def test_any_list_gives_workers_or_none(body: object, value: object) -> None:
    keys = ("url", "worker_type", "is_healthy", "bootstrap_port", "metadata", "labels", "load")
    for told in (body, {"workers": body}, {"workers": [dict.fromkeys(keys, value), value, body]}):
        found = router_probe.listed_workers(told)
        assert found is None or all(isinstance(one.url, str) and isinstance(one.load, int) for one in found)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (
            {"status": "not ready", "total_pairs": 2, "reasons": ["decode-0 is down", "draining"]},
            "decode-0 is down; draining",
        ),
        ({"status": "not ready", "reason": "insufficient healthy workers"}, "insufficient healthy workers"),
        ({"status": "not ready", "reasons": [7], "reason": None}, "not ready"),
        ({"detail": ["x"]}, '{"detail": ["x"]}'),
    ],
)
def test_why_a_router_is_not_ready_is_said_in_words(told: object, reason: str, serve: Serve) -> None:
    url = serve({"/readiness": (503, json.dumps(told)), "/workers": (200, '{"workers": []}')})
    assert router_probe.fetch(url).reason == reason
