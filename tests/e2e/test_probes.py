"""The probes and canaries against pdctl's own engines and router, started as a user starts them: 2P1D."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pdctl.doctor.live.running_engines import SKEW
from pdctl.fleet.bootstrap_probe import Claim, probe_bootstraps
from pdctl.fleet.canary_probe import Side, extras, matrix, queues
from pdctl.fleet.engine_probe import probe_engines
from pdctl.fleet.observations import Endpoint, ObservedEngine
from pdctl.fleet.router_probe import probe_router
from tests.e2e.conftest import Deployment
from tests.fleet.conftest import LONG, port_of

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Live:
    deployment: Deployment
    endpoints: tuple[Endpoint, ...]
    engines: tuple[ObservedEngine, ...]

    @property
    def prefills(self) -> list[Side]:
        """With the bootstrap address a right router would send."""
        ports = [engine.number("disaggregation_bootstrap_port") for engine in self.engines[:2]]
        return [
            Side(endpoint.name, endpoint.url, LOOPBACK, port)
            for endpoint, port in zip(self.endpoints, ports, strict=False)
        ]

    @property
    def decodes(self) -> list[Side]:
        return [Side(self.endpoints[2].name, self.endpoints[2].url)]


@pytest.fixture(scope="module")
def live(two_prefills: Deployment) -> Live:
    deployment = two_prefills
    names = [("prefill-0", "prefill"), ("prefill-1", "prefill"), ("decode-0", "decode")]
    urls = (*deployment.prefills, *deployment.decodes)
    endpoints = tuple(Endpoint(name, role, url) for (name, role), url in zip(names, urls, strict=True))
    return Live(deployment, endpoints, probe_engines(endpoints, LONG, generate=True))


def test_engines(live: Live) -> None:
    for engine, role in zip(live.engines, ("prefill", "prefill", "decode"), strict=True):
        assert (engine.reached, engine.reason, engine.mode, engine.version) == (True, "", role, "0.5.23")
        assert [reply.status for reply in engine.replies] == [200] * 6
        assert engine.loads[0]["num_running_reqs"] == 0
        assert engine.metrics["sglang:max_total_num_tokens"] > 0
        # One machine, one clock; but a server with too little CPU sends a Date that is older than a second.
        assert engine.clock_offset is not None
        assert abs(engine.clock_offset) <= SKEW


def test_bootstrap_servers_and_their_ranks(live: Live) -> None:
    right = [Claim(side.name, LOOPBACK, side.bootstrap_port or 0, ("server_info",), 1) for side in live.prefills]
    wrong = Claim("prefill-1", LOOPBACK, port_of(live.prefills[1].url), ("flag",), 1)
    first, second, http = probe_bootstraps([*right, wrong], LONG)
    for found in (first, second):
        assert (found.style, found.registered, found.expected, found.reason) == ("new", 1, 1, "")
        assert [rank.reached for rank in found.ranks] == [True]
    assert first.ranks[0].port != second.ranks[0].port
    assert (http.serves, http.style) == ("engine", "")


def test_the_router(live: Live) -> None:
    found = probe_router(live.deployment.router, LONG)
    assert (found.kind, found.ready, found.breakers_known) == ("pdctl", True, True)
    assert found.workers is not None
    ports = {one.url: one.bootstrap_port for one in found.workers if one.role == "prefill"}
    assert ports == {side.url: side.bootstrap_port for side in live.prefills}
    assert set(found.breakers.values()) == {0}


def test_every_pair_answers_alike_and_leaves_nothing(live: Live) -> None:
    cells = matrix(live.prefills, live.decodes, LONG)
    assert [(one.ok, one.reason) for one in cells] == [(True, ""), (True, "")]
    assert len({one.text for one in cells}) == 1
    assert cells[0].text
    assert all(held.read and not held.left for held in queues(live.endpoints, LONG))


def test_a_wrong_pairing_hangs_and_leaves_nothing(live: Live) -> None:
    """The room is announced to prefill-0 while prefill-1 has the request: the incident that doctor is for."""
    first, second = live.prefills
    swapped = Side(second.name, second.url, LOOPBACK, first.bootstrap_port)
    (cell,) = matrix([swapped], live.decodes, LONG, patience=1.0)
    assert cell.reason == "prefill-1: no answer within 1 s; decode-0: no answer within 1 s"
    assert all(held.read and not held.left for held in queues(live.endpoints, LONG))
    assert matrix(live.prefills, live.decodes, LONG)[1].ok  # the prefill is none the worse for it


def test_a_missing_port_is_refused_in_words(live: Live) -> None:
    (cell,) = matrix([Side("prefill-1", live.prefills[1].url, LOOPBACK, None)], live.decodes, LONG)
    assert cell.ok is False
    assert "bootstrap_port is missing" in cell.reason


def test_extras(live: Live) -> None:
    limits = [engine.number("max_req_input_len") or 0 for engine in live.engines]
    found = extras(live.prefills[0], live.decodes[0], LONG, too_long=max(limits) + 1)
    assert [(one.kind, one.ok, one.reason) for one in found] == [
        ("over-length", True, ""),
        ("cancel", True, ""),
        ("n2", True, ""),
        *[("burst", True, "")] * 8,
    ]
    answer = matrix(live.prefills[:1], live.decodes, LONG)[0].text
    assert {one.text for one in found if one.kind in ("n2", "burst")} == {answer}
    assert all(held.read and not held.left for held in queues(live.endpoints, LONG))
