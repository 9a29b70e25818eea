"""Manifests in the shape of published samples, one for each kind of object: their defects are found, at their lines."""

from __future__ import annotations

from pathlib import Path

from pdctl.catalogue.entry import Needs
from pdctl.doctor import check_run
from pdctl.doctor.check import Facts
from pdctl.manifests import read
from tests.cases import for_each

WRITTEN = Path(__file__).parent / "written"

LWS = {
    ("PD213", "ds-prefill", "lws.yaml:79: Service ds-prefill, ports 30000"),
    ("PD207", "ds-prefill", "lws.yaml:77: --prefill http://ds-prefill:30000"),
    ("PD616", "ds-prefill", "lws.yaml:24: MC_TE_METRIC=false"),
    ("PD616", "ds-prefill", "lws.yaml:20: --mem-fraction-static 0.7"),
    ("PD608", "", "lws.yaml:16: image: lmsysorg/sglang:latest"),
    ("PD607", "ds-prefill/leader", "lws.yaml:28: readinessProbe: tcpSocket 30000"),
}
RBG = {
    ("PD216", "pd/router", "rbg.yaml:35: --prefill http://pd-prefill-0.s-pd-prefill:8000"),
    ("PD216", "pd/router", "rbg.yaml:37: --decode http://pd-decode-0.s-pd-decode:8000"),
    ("PD207", "pd/prefill", "rbg.yaml:35: --prefill http://pd-prefill-0.s-pd-prefill:8000"),
    ("PD608", "pd/decode/leader", "rbg.yaml:69: image: lmsysorg/sglang"),
    ("PD616", "pd/decode", "rbg.yaml:70: NCCL_DEBUG=WARN"),
}
SET = {
    ("PD201", "pd/prefill", "disaggregatedset.yaml:52: --prefill http://pd-prefill:40000"),
    ("PD213", "pd/prefill", "disaggregatedset.yaml:35: Service pd-prefill, ports 40000"),
    ("PD216", "router", "disaggregatedset.yaml:52: --prefill http://pd-prefill:40000"),
    ("PD607", "pd/prefill", "disaggregatedset.yaml:20: readinessProbe: tcpSocket 40000"),
    ("PD619", "pd/prefill", "disaggregatedset.yaml:17: HF_TOKEN: $HF_TOKEN"),
}
DYNAMO = {
    ("PD302", "graph/decode", ""),
    ("PD608", "graph/decode", "dynamo.yaml:20: image: nvcr.io/nvidia/ai-dynamo/sglang-runtime:latest"),
    ("PD309", "graph-beta/decode", ""),
}


@for_each(("name", "expected"), [("lws", LWS), ("rbg", RBG), ("disaggregatedset", SET), ("dynamo", DYNAMO)])
def test_its_defects_are_found_where_they_stand(name: str, expected: set[tuple[str, str, str]]) -> None:
    text = (WRITTEN / f"published-{name}.yaml").read_text(encoding="utf-8")
    report = check_run.run(Facts(manifest=read.read_text(text, f"{name}.yaml"), asked=(Needs.TOPOLOGY,)))
    found = {(each.code, each.instance, line) for each in report.findings for line in (*each.evidence, "")}
    found |= {(code, where.partition(",")[0], line) for code, where, line in found}
    assert expected <= found, sorted(expected - found)


def test_a_workers_own_flags_are_no_drift() -> None:
    """Only node 0 serves: the port of the others may stay away, and what the operator sets is never written alike."""
    text = (WRITTEN / "published-lws.yaml").read_text(encoding="utf-8")
    report = check_run.run(Facts(manifest=read.read_text(text, "lws.yaml"), asked=(Needs.TOPOLOGY,)))
    drift = [each.observed for each in report.findings if each.code == "PD616"]
    assert sorted(drift) == [
        "--mem-fraction-static is 0.7 on the leader and 0.75 on the worker",
        "MC_TE_METRIC is false on the leader and true on the worker",
    ]


def test_instances_over_several_pods_have_the_gpus_of_all() -> None:
    """tp 8 over two pods of four GPUs is no contradiction."""
    text = (WRITTEN / "published-dynamo.yaml").read_text(encoding="utf-8")
    report = check_run.run(Facts(manifest=read.read_text(text, "dynamo.yaml"), asked=(Needs.TOPOLOGY,)))
    assert "PD504" not in {each.code for each in report.findings}


def test_a_worker_that_is_never_started_is_no_drift() -> None:
    text = (WRITTEN / "published-lws.yaml").read_text(encoding="utf-8").replace("size: 2", "size: 1")
    report = check_run.run(Facts(manifest=read.read_text(text, "lws.yaml"), asked=(Needs.TOPOLOGY,)))
    assert "PD616" not in {each.code for each in report.findings}


def test_an_image_whose_tag_was_never_filled_in_is_told() -> None:
    text = (WRITTEN / "published-dynamo.yaml").read_text(encoding="utf-8").replace(":latest", ":${VERSION}")
    report = check_run.run(Facts(manifest=read.read_text(text, "dynamo.yaml"), asked=(Needs.TOPOLOGY,)))
    (found,) = [each for each in report.findings if each.code == "PD619"]
    assert (found.instance, found.observed) == ("graph/decode", "`nvcr.io/nvidia/ai-dynamo/sglang-runtime:${VERSION}`")


def test_a_set_is_reached_by_its_name_without_a_service_too() -> None:
    text = (WRITTEN / "published-lws.yaml").read_text(encoding="utf-8").partition("---\napiVersion: v1\n")[0]
    report = check_run.run(Facts(manifest=read.read_text(text, "lws.yaml"), asked=(Needs.TOPOLOGY,)))
    assert ("PD207", "ds-prefill") in {(each.code, each.instance) for each in report.findings}
