"""What is asked, of whom, how often; and what the answers of real servers come to, by the real probes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.catalogue.entry import Needs
from pdctl.doctor import check_run, selection
from pdctl.doctor import request as asking
from pdctl.doctor.check import CheckStatus, Depth, Facts
from pdctl.doctor.gather import gather
from pdctl.doctor.request import Progress, Request
from pdctl.errors import ExitCode, UsageError
from pdctl.layout.planner import plan_topology
from pdctl.topology.resolve import load
from tests.cases import for_each
from tests.doctor.replay import Replay, replay

SGL23, SGL08 = "0.5.23-2p1d", "0.5.8-2p1d-router-without-ports"
TOPOLOGIES = Path(__file__).resolve().parents[2] / "topologies"
ROUTER, METRICS = 8000, 29100


def behind(servers: Replay, **fields: object) -> Request:
    """Everything learnt from the router."""
    return Request(router=servers.url(ROUTER), router_metrics=servers.url(METRICS), **fields)  # type: ignore[arg-type]


def codes(facts: Facts, severity: str = "error") -> list[tuple[str, str]]:
    return [(one.code, one.instance) for one in check_run.run(facts).findings if one.severity.value == severity]


def test_a_healthy_deployment_behind_its_router() -> None:
    with replay(SGL23) as servers:
        facts = gather(behind(servers))
    assert [one.name for one in facts.endpoints] == ["prefill-0", "prefill-1", "decode-0"]
    assert all(one.info and one.loads for one in facts.engines)
    assert [(one.prefill, one.port, one.claimed_by) for one in facts.bootstraps] == [
        ("prefill-0", servers.port[8998], ("server_info", "router")),
        ("prefill-1", servers.port[8999], ("server_info", "router")),
    ]
    assert all(rank.reached for one in facts.bootstraps for rank in one.ranks)
    assert facts.router is not None
    assert facts.router.breakers_known
    assert facts.asked == (Needs.ENDPOINT, Needs.ROUTER, Needs.HOST)
    report = check_run.run(facts)
    assert [one for one in report.findings if one.severity.value == "error"] == []
    assert [row.odd for row in report.ports] == ["", ""]
    assert [one.code for one in report.checks if one.status is CheckStatus.UNKNOWN] == ["PD804"]  # no run is named
    assert check_run.exit_code(report, selection.EVERYTHING.fail_on) is ExitCode.OK


def test_a_router_without_ports_names_the_pair_that_will_fail() -> None:
    """Real sglang 0.5.8 and sglang-router 0.3.2, started without bootstrap ports."""
    with replay(SGL08) as servers:
        facts = gather(behind(servers))
    (found,) = [one for one in check_run.run(facts).findings if one.code == "PD201"]
    assert found.instance == "prefill-1"
    assert any("prefill-1 → decode-0 will fail" in line for line in found.evidence)
    assert any("prefill-0 → decode-0 works by luck" in line for line in found.evidence)
    for url, port in ((30000, 8998), (30001, 8999)):
        assert f"--prefill {servers.url(url)} {servers.port[port]}" in found.fix
    assert found.fix.endswith(f"--decode {servers.url(30002)}")
    assert [row.router for row in check_run.run(facts).ports] == ["null", "null"]
    assert codes(facts) == [("PD201", "prefill-1")]


def test_each_place_is_asked_once() -> None:
    """Four claims and every decode's own port name two bootstrap servers."""
    with replay(SGL08) as servers:
        gather(behind(servers))
    assert servers.asked["8998 /health"] == 1
    assert servers.asked["8999 /health"] == 1
    assert servers.asked["30000 /server_info"] == 1


def test_only_what_is_needed_is_asked() -> None:
    with replay(SGL23) as servers:
        given = asking.given_endpoints((f"{servers.url(30000)},{servers.port[8998]}",), (servers.url(30002),))
        wanted = check_run.needed(selection.read(select=["PD302"]), Depth.LIVE)
        facts = gather(Request(endpoints=given, router=servers.url(ROUTER)), wanted)
    assert facts.asked == (Needs.ENDPOINT,)
    assert facts.router is None
    assert facts.host is None
    assert not [asked for asked in servers.asked if asked.startswith(f"{ROUTER} ")]


def test_addresses_given_by_hand() -> None:
    with replay(SGL23) as servers:
        given = asking.given_endpoints((f"{servers.url(30000)},{servers.port[8998]}",), (servers.url(30002),))
        facts = gather(Request(endpoints=given))
        report = check_run.run(facts)
    assert [(row.flag, row.router, row.odd) for row in report.ports] == [(str(servers.port[8998]), None, "")]
    assert {one.code: one.status for one in report.checks}["PD201"] is CheckStatus.SKIPPED
    assert codes(facts) == []


def test_a_port_that_was_given_wrong() -> None:
    with replay(SGL23) as servers:
        given = asking.given_endpoints((f"{servers.url(30000)},{servers.port[8999]}",), (servers.url(30002),))
        facts = gather(Request(endpoints=given))
    assert codes(facts) == [("PD202", "prefill-0")]
    (found,) = [one for one in check_run.run(facts).findings if one.code == "PD202"]
    assert "a bootstrap server of no prefill given listens there" in found.evidence[1]


def test_a_bootstrap_port_that_is_the_decodes_http_port() -> None:
    with replay(SGL23) as servers:
        given = asking.given_endpoints((f"{servers.url(30000)},{servers.port[30002]}",), (servers.url(30002),))
        facts = gather(Request(endpoints=given))
    (found,) = [one for one in check_run.run(facts).findings if one.code == "PD202"]
    said = f"port {servers.port[30002]} answers HTTP as decode-0, not as a bootstrap server"
    assert said in found.evidence[1]


def test_an_http_port_as_bootstrap_port_of_a_server_that_tells_nothing() -> None:
    with replay(SGL23, without=(30000,)) as servers:
        given = asking.given_endpoints((f"{servers.url(30000)},{servers.port[30000]}",), (servers.url(30002),))
        facts = gather(Request(endpoints=given))
    (found,) = [one for one in check_run.run(facts).findings if one.code == "PD206"]
    assert found.headline.endswith("that is its HTTP port, the bootstrap server listens on another one")
    assert found.fix.endswith(",PORT")


@pytest.mark.parametrize("gone", [30002, 30001])
def test_a_dead_instance_is_one_red_finding(gone: int) -> None:
    with replay(SGL23, without=(gone, *((8999,) if gone == 30001 else ()))) as servers:
        facts = gather(behind(servers))
    name = "decode-0" if gone == 30002 else "prefill-1"
    assert codes(facts) == [("PD604", name)]
    unknown = [one.code for one in check_run.run(facts).checks if one.status is CheckStatus.UNKNOWN]
    assert "PD302" in unknown, "what needs the dead side is unknown, not ok"


def test_a_bootstrap_server_that_could_not_bind() -> None:
    with replay(SGL23, without=(8999,)) as servers:
        facts = gather(behind(servers))
    assert codes(facts) == [("PD205", "prefill-1")]


def test_a_page_size_that_differs() -> None:
    def edit(path: str, body: str) -> str:
        return body.replace('"page_size":1,', '"page_size":16,') if path == "30002 /server_info" else body

    with replay(SGL23, edit=edit) as servers:
        assert codes(gather(behind(servers))) == [("PD302", "decode-0")]


def test_roles_the_router_has_the_wrong_way_round() -> None:
    def edit(path: str, body: str) -> str:
        return body.replace('"worker_type":"decode"', '"worker_type":"prefill"') if path == "8000 /workers" else body

    with replay(SGL23, edit=edit) as servers:
        facts = gather(behind(servers))
    assert ("PD301", "prefill-2") in codes(facts)
    (found,) = [one for one in check_run.run(facts).findings if one.code == "PD301"]
    assert found.fix.endswith(f"--decode {servers.url(30002)}")


def test_nobody_is_there() -> None:
    with replay(SGL23, without=(30000, 30001, 30002, 8000, 8998, 8999, 29100)) as servers:
        facts = gather(behind(servers))
        report = check_run.run(facts)
    assert [one.code for one in report.findings] == ["PD602"]
    assert "does not answer" in report.findings[0].headline
    assert check_run.exit_code(report, selection.EVERYTHING.fail_on) is ExitCode.NOT_PROBED


def test_a_topology_alone_asks_nobody() -> None:
    topology = load([TOPOLOGIES / "2p1d.yaml"], (), {})
    facts = gather(Request(depth=Depth.STATIC, topology=topology, plan=plan_topology(topology)))
    assert facts.asked == (Needs.TOPOLOGY,)
    assert facts.engines == ()
    assert [one.name for one in facts.endpoints] == ["prefill-0", "prefill-1", "decode-0"]


def test_progress_is_told() -> None:
    told: list[Progress] = []
    with replay(SGL23) as servers:
        gather(behind(servers, progress=told.append))
    assert {one.what for one in told} == {"router", "instances", "bootstrap servers", "this host"}
    assert all(one.done == one.total for one in {one.what: one for one in told}.values())


@for_each("text", ["http://h:30000,", "http://h:30000,99999", "http://h:30000,x"])
def test_a_bootstrap_port_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="is no bootstrap port"):
        asking.given_endpoints((text,), ())


@for_each("text", ["", "ftp://h:1", "http://", "h:99999"])
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        asking.url(text)


def test_an_address_without_a_scheme() -> None:
    assert asking.url("10.0.0.1:30000/") == "http://10.0.0.1:30000"
    assert asking.given_endpoints(("10.0.0.1:30000,8998",), ())[0].bootstrap_port == 8998
