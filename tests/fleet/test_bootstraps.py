"""Facts about bootstrap servers: three real releases, servers not complete yet, and ports that are something else."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.fleet import bootstrap_probe
from pdctl.fleet.bootstrap_probe import Claim, probe_bootstraps
from pdctl.fleet.observations import Bootstrap
from tests.fleet.conftest import ANY_JSON, LONG, Answers, Peer, Serve, closed_port, port_of, recorded

NOT_YET = "Prefill server not fully registered yet (3 workers registered)."


def probe(port: int, ranks: int | None = None, host: str = "127.0.0.1") -> Bootstrap:
    return probe_bootstraps([Claim("prefill-0", host, port, ("flag",), ranks)], LONG, patience=LONG)[0]


@pytest.fixture
def rank() -> Iterator[int]:
    """The port of a rank that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def place(port: int, ip: str = "127.0.0.1") -> tuple[int, str]:
    return 200, json.dumps({"rank_ip": ip, "rank_port": port})


@pytest.mark.parametrize(
    ("folder", "who", "style"),
    [
        ("0.5.8-2p1d-router-without-ports", "prefill0.bootstrap8998", "old"),
        ("0.5.18-1p", "prefill0.bootstrap8998", "new"),
        ("0.5.23-2p1d", "prefill1.bootstrap8999", "new"),
    ],
)
def test_real_servers_of_one_rank(serve: Serve, rank: int, folder: str, who: str, style: str) -> None:
    answers = recorded(folder, who)
    one = next(path for path, (_, body) in answers.items() if b"rank_ip" in bytes(body))  # type: ignore[arg-type]
    answers[one] = place(rank)
    found = probe(port_of(serve(answers)), 1)
    assert (found.style, found.serves, found.reason) == (style, "bootstrap", "")
    assert (found.registered, found.expected) == (1, 1)
    assert [(one.dp, one.tp, one.port, one.reached) for one in found.ranks] == [(0, 0, rank, True)]
    assert not found.unranked


def test_a_rank_that_is_gone_is_refused(serve: Serve) -> None:
    """The recorded rank's process ended long ago."""
    gone = closed_port()
    answers = recorded("0.5.23-2p1d", "prefill0.bootstrap8998")
    answers[bootstrap_probe.NEW.query(0, 0, 0, 0)] = place(gone)
    found = probe(port_of(serve(answers)))
    assert [(one.port, one.reached, one.reason) for one in found.ranks] == [(gone, False, "connection refused")]


def test_ranks_of_0_5_8_are_counted_one_by_one(serve: Serve, rank: int) -> None:
    """Two DP ranks; the second never registered, which 0.5.8 answers with 500."""
    answers = recorded("0.5.8-prefill-dp2", "prefill0.bootstrap8998")
    answers[bootstrap_probe.OLD.query(dp=0, tp=0, pp=0)] = place(rank)
    answers[bootstrap_probe.OLD.query(dp=1, tp=0, pp=0)] = (
        500,
        "500 Internal Server Error\n\nServer got itself in trouble",
    )
    found = probe(port_of(serve(answers)), 2)
    assert (found.style, found.registered, found.expected) == ("old", 1, 2)
    assert len(found.ranks) == 1
    assert found.unranked == ('dp1 cp0 tp0 pp0: 500 "500 Internal Server Error Server got itself in trouble"',)


def test_ranks_that_have_not_registered(serve: Serve) -> None:
    new = probe(port_of(serve({"/health": (200, "OK"), bootstrap_probe.QUERY: (503, NOT_YET)})), 4)
    assert (new.style, new.registered, new.expected, new.ranks) == ("new", 3, 4, ())
    assert new.reason == f'"{NOT_YET}"'
    nulls = json.dumps(dict.fromkeys(name for name in bootstrap_probe.OLD.sizes if name))
    missing = (400, "Missing inputs for bootstrap server.")
    old = probe(port_of(serve({bootstrap_probe.QUERY: missing, bootstrap_probe.OLD_QUERY: (200, nulls)})), 4)
    assert (old.style, old.registered, old.expected, old.reason) == ("old", 0, 4, "no rank has registered")


def test_every_rank_of_a_wide_layout_is_asked(serve: Serve, rank: int) -> None:
    sizes = {"attn_tp_size": 2, "attn_cp_size": 2, "dp_size": 2, "pp_size": 3}
    answers: Answers = {bootstrap_probe.QUERY: (200, json.dumps(sizes))}
    for dp in range(2):
        for cp in range(2):
            for tp in range(2):
                for pp in range(3):
                    answers[bootstrap_probe.NEW.query(dp, cp, tp, pp)] = place(rank)
    answers[bootstrap_probe.NEW.query(1, 0, 1, 2)] = (404, "Bootstrap info not found for dp_rank=1")
    answers[bootstrap_probe.NEW.query(1, 1, 1, 2)] = (200, '{"rank_ip": "", "rank_port": 70000}')
    found = probe(port_of(serve(answers)))
    assert (found.registered, found.expected, len(found.ranks)) == (24, 24, 22)
    assert found.unranked[0] == 'dp1 cp0 tp1 pp2: 404 "Bootstrap info not found for dp_rank=1"'
    assert found.unranked[1].startswith("dp1 cp1 tp1 pp2: answered without a usable rank_ip and rank_port")


def test_a_layout_that_cannot_be_is_not_walked(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap_probe, "MAX_RANKS", 20)
    sizes = {"attn_tp_size": 1000, "attn_cp_size": 1000, "dp_size": 1000, "pp_size": 1}
    found = probe(port_of(serve({bootstrap_probe.QUERY: (200, json.dumps(sizes))})))
    assert len(found.unranked) == bootstrap_probe.MAX_RANKS + 1
    assert found.unranked[-1] == "999999980 more of a layout of 1000000000 ranks: not asked"


def test_ports_that_are_something_else(serve: Serve, peer: Callable[..., Peer]) -> None:
    engine = probe(port_of(serve(recorded("0.5.23-2p1d", "prefill0"))))
    assert (engine.serves, engine.style, engine.reached) == ("engine", "", True)
    assert engine.reason == "this is the HTTP port of an engine (disaggregation_mode prefill), not a bootstrap server"
    other = probe(port_of(serve({"/health": (200, "OK")})))
    assert (other.serves, other.reason) == ("http", "no bootstrap server: GET /route answered 404")
    proxy = probe(port_of(serve({bootstrap_probe.QUERY: (503, "upstream connect error")})))
    assert proxy.reason == 'no bootstrap server: GET /route answered 503: "upstream connect error"'
    zmq = probe(peer(b"\xff\0\0\0\0\0\0\0\x01\x7f").port)
    assert (zmq.reached, zmq.serves, zmq.reason) == (False, "", "it speaks ZMQ, not HTTP")
    nobody = probe(closed_port())
    assert (nobody.reached, nobody.reason) == (False, "connection refused")


def test_claims_come_back_in_order_with_who_claims_them(serve: Serve) -> None:
    port = port_of(serve({"/health": (200, "OK"), bootstrap_probe.QUERY: (503, NOT_YET)}))
    claims = [Claim(f"prefill-{i}", "127.0.0.1", port, ("router", "flag")) for i in range(5)]
    found = probe_bootstraps(claims, LONG, at_once=2)
    assert [one.prefill for one in found] == [claim.prefill for claim in claims]
    assert found[0].claimed_by == ("router", "flag")


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, "{}", bootstrap_probe.RankRegistration(True, True, 4)),
        (503, NOT_YET, bootstrap_probe.RankRegistration(True, False, 3, NOT_YET)),
    ],
)
def test_registration(serve: Serve, status: int, body: str, expected: bootstrap_probe.RankRegistration) -> None:
    port = port_of(serve({bootstrap_probe.QUERY: (status, body)}))
    assert bootstrap_probe.registration("127.0.0.1", port, 4) == expected


@pytest.mark.parametrize(
    ("size", "named", "expected"),
    [
        (None, (), bootstrap_probe.RankRegistration(True, False, 0)),
        (2, (0,), bootstrap_probe.RankRegistration(True, False, 1)),
        (2, (0, 1), bootstrap_probe.RankRegistration(True, True, 2)),
    ],
)
def test_registration_of_sglang_before_0_5_13_is_counted_rank_by_rank(
    serve: Serve, size: int | None, named: tuple[int, ...], expected: bootstrap_probe.RankRegistration
) -> None:
    sizes = json.dumps({"prefill_attn_tp_size": size, "prefill_dp_size": 1, "prefill_pp_size": 1})
    answers = {
        bootstrap_probe.QUERY: (400, "Missing inputs for bootstrap server."),
        bootstrap_probe.OLD_QUERY: (200, sizes),
    }
    answers |= {bootstrap_probe.OLD.query(0, 0, rank, 0): (200, '{"rank_ip": "h", "rank_port": 1}') for rank in named}
    assert bootstrap_probe.registration("127.0.0.1", port_of(serve(answers)), 2) == expected


@given(ANY_JSON, ANY_JSON)
@settings(max_examples=50, deadline=None)
def test_any_answers_make_a_server_without_ranks(layout: object, size: object) -> None:
    for style in (bootstrap_probe.NEW, bootstrap_probe.OLD):
        told = {**dict.fromkeys(style.sizes, size), "x": layout}
        found = style.layout(told)
        assert found is None or all(0 < one < bootstrap_probe.MAX_SIZE for one in found)


@given(st.text(max_size=100))
@settings(max_examples=50, deadline=None)
def test_a_count_is_a_number_or_none(text: str) -> None:
    assert bootstrap_probe.counted(text) is None
    assert bootstrap_probe.counted(text + NOT_YET.replace("3", str(len(text)))) == len(text)
    assert bootstrap_probe.counted(NOT_YET.replace("3", "9" * 5000)) is None
