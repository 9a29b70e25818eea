"""The static checks as a whole, and what they say of the topologies and samples at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.catalogue.book import ENTRIES, entry
from pdctl.catalogue.entry import PLACEHOLDER, Needs, Severity
from pdctl.doctor.check import Facts, Finding, Skipped, Unknown, finding
from pdctl.doctor.check_run import WRITTEN_CHECKS
from pdctl.doctor.static import server_sources
from pdctl.layout.planner import plan_topology
from pdctl.manifests import read
from pdctl.topology.resolve import load
from tests.cases import for_each
from tests.doctor.written import ROOT, embedded, pods, topology

WRITTEN = Path(__file__).parent / "written"
SHIPPED = sorted((ROOT / "topologies").glob("*.yaml"))
INCIDENTS = ROOT / "topologies" / "incidents"
BY_OTHERS = {"PD902"}  # decided from the arguments of the command, before any topology is read


def shipped(path: Path) -> Facts:
    found = load([path], (), {})
    return Facts(topology=found, plan=plan_topology(found))


def everything(facts: Facts) -> list[Finding]:
    judged = (check.judge(facts) for check in WRITTEN_CHECKS)
    return [each for verdict in judged if not isinstance(verdict, (Skipped, Unknown)) for each in verdict]


def errors(facts: Facts) -> set[str]:
    return {each.code for each in everything(facts) if each.severity is Severity.ERROR}


def test_what_a_check_declares_is_what_its_code_needs() -> None:
    for check in WRITTEN_CHECKS:
        assert check.needs == (Needs.TOPOLOGY,)
        assert Needs.TOPOLOGY in entry(check.code).needs


def test_every_code_a_file_can_show_is_looked_for() -> None:
    wanted = {each.code for each in ENTRIES if Needs.TOPOLOGY in each.needs and not each.unseen}
    assert {check.code for check in WRITTEN_CHECKS} == wanted - BY_OTHERS


def test_without_a_topology_and_a_manifest_there_is_nothing_to_ask() -> None:
    for check in WRITTEN_CHECKS:
        verdict = check.judge(Facts())
        assert isinstance(verdict, Skipped)
        assert verdict.reason == "no topology and no manifest was given"


@for_each("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_topologies_have_no_errors(path: Path) -> None:
    assert not errors(shipped(path))


@for_each(
    ("name", "codes"),
    [
        ("missing-bootstrap-port", {"PD201"}),
        ("wrong-bootstrap-port", {"PD202"}),
        ("swapped-bootstrap-ports", {"PD203"}),
        ("page-size-mismatch", {"PD302"}),
    ],
)
def test_rehearsed_incidents_are_seen_before_they_start(name: str, codes: set[str]) -> None:
    assert errors(shipped(INCIDENTS / f"{name}.yaml")) == codes


@for_each(
    ("name", "codes"),
    [
        ("lws.yaml", {"PD213", "PD216", "PD302"}),
        ("rbg.yaml", {"PD216"}),
        ("start.sh", {"PD201"}),
    ],
)
def test_samples_as_they_are_published(name: str, codes: set[str]) -> None:
    assert errors(Facts(manifest=read.load([str(WRITTEN / name)]))) == codes


@for_each("name", ["lws.yaml", "rbg.yaml", "start.sh"])
def test_every_finding_about_a_file_names_its_place_and_a_way_out(name: str) -> None:
    path = str(WRITTEN / name)
    for each in everything(Facts(manifest=read.load([path]))):
        assert each.evidence
        assert each.headline
        assert each.fix
        if each.severity is Severity.ERROR:
            assert any(f"{path}:" in line for line in each.evidence), each


def test_a_finding_is_in_the_catalogues_words() -> None:
    said = finding("PD202", "prefill-0", "9999", "8998", ["here"], url="http://a:1", port=8998)
    assert said.headline == "the router sends bootstrap port 9999 for prefill-0, which listens on 8998"
    assert said.fix == "start the router with --prefill http://a:1 8998"
    assert (said.code, said.slug, said.severity) == ("PD202", "bootstrap-port-wrong", Severity.ERROR)
    assert (said.instance, said.observed, said.expected, said.evidence) == ("prefill-0", "9999", "8998", ("here",))
    assert finding("PD202", severity=Severity.INFO).severity is Severity.INFO


def test_the_same_words_about_several_servers_are_one_finding_that_names_them() -> None:
    """Of one exported variable there is one line to change, however many engines read it."""
    facts = Facts(manifest=read.load([str(WRITTEN / "start.sh")]))
    (said,) = [each for each in everything(facts) if each.code == "PD606"]
    assert said.instance == ""
    assert said.headline.startswith(
        "prefill:30000, prefill:30001 and decode:30002: SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
    )
    assert said.evidence == (f"{WRITTEN}/start.sh:4: SGLANG_DISAGGREGATION_WAITING_TIMEOUT=100000",)


@for_each("facts", [topology(), embedded(), pods()], ids=["topology", "embedded", "pods"])
def test_no_placeholder_is_left_open(facts: Facts) -> None:
    for each in everything(facts):
        assert not PLACEHOLDER.search(each.headline + each.fix)


def test_a_shape_that_cannot_be_placed_is_an_error_and_the_rest_unknown() -> None:
    facts = topology("roles.decode.tp=3")
    assert errors(facts) == {"PD316"}
    verdict = next(check.judge(facts) for check in WRITTEN_CHECKS if check.code == "PD302")
    assert isinstance(verdict, Unknown)
    assert verdict.reason.startswith("the plan places nothing: decode: 64 attention heads")


def test_hundreds_of_instances_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty checks share one reading of the plan's commands."""
    calls: list[str] = []
    real = server_sources.from_plan
    monkeypatch.setattr(server_sources, "from_plan", lambda *given: calls.append("read") or real(*given))
    facts = topology("roles.prefill.instances=256", "roles.decode.instances=2", "targets.slurm.partition=gpu")
    assert not errors(facts)
    assert calls == ["read"]
