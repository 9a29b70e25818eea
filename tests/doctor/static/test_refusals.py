"""Flags that the parser of an engine or a router refuses, whatever release runs."""

from __future__ import annotations

import re
from pathlib import Path

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Facts, Finding
from pdctl.doctor.static.refused_flags import refused
from pdctl.doctor.static.server_sources import read as servers_of
from pdctl.doctor.static.servers import Servers
from pdctl.engines.sglang.arguments import arguments
from pdctl.engines.versions import NEWEST, SGLANG, spell
from pdctl.errors import PdctlError
from pdctl.manifests import read
from tests.cases import for_each
from tests.doctor.written import DECODE, ENGINE, PREFILL, ROOT, ROUTER, doubt, found, manifest, pair, pods, topology

SERVE = f"sglang serve {PREFILL} --model-type llm"


def unknown(facts: Facts) -> list[tuple[str, str, str, str]]:
    return [(each.instance, each.severity.value, each.expected, each.fix) for each in found(facts, "PD318")]


@for_each(
    ("written", "right"),
    [
        ("disaggregaton-transfer-backend", "disaggregation-transfer-backend"),
        ("disagregation-ib-device", "disaggregation-ib-device"),
        ("mem-fraction-statik", "mem-fraction-static"),
        ("enable-dp-atention", "enable-dp-attention"),
        ("tensor-paralell-size", "tensor-parallel-size"),
    ],
)
def test_a_typing_error_is_told_whatever_release_runs(written: str, right: str) -> None:
    fix = f"write --{right} instead of --{written}"
    expected = ("prefill:30000", "error", f"--{right}", fix)
    assert unknown(pair(f"--{written} 2")) == [expected]
    assert unknown(pods(f"--{written} 2")) == [("prefill", *expected[1:])]
    assert unknown(pods(f"--{written} 2", image="sglang:v9.9.9")) == [("prefill", "warning", *expected[2:])]


def test_a_flag_that_resembles_none_is_a_warning() -> None:
    assert unknown(pair("--warp-drive 9")) == [
        ("prefill:30000", "warning", "a flag that its parser takes", "drop --warp-drive")
    ]


def test_where_the_release_has_not_been_read_a_strange_flag_may_be_one_of_its() -> None:
    assert not unknown(pods("--warp-drive 9", image="sglang:v9.9.9"))


def test_it_is_found_at_the_line_of_its_value() -> None:
    text = "kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n    - image: sglang\n      command:\n" + "".join(
        f"        - {word}\n" for word in [*ENGINE.split(), *PREFILL.split(), "--disaggregaton-ib-device", "mlx5_0"]
    )
    (one,) = found(manifest(text), "PD318")
    at = len(text.splitlines())
    assert one.evidence == (f"deploy.yaml:{at}: --disaggregaton-ib-device mlx5_0",)


def test_the_flags_of_a_worker_are_looked_at_too() -> None:
    text = (Path(__file__).parent / "written" / "published-lws.yaml").read_text(encoding="utf-8")
    at = text.rindex("--mem-fraction-static")
    told = unknown(manifest(text[:at] + "--mem-fracton-static" + text[at + len("--mem-fraction-static") :]))
    assert [fix for _, _, _, fix in told] == ["write --mem-fraction-static instead of --mem-fracton-static"]


@for_each("more", ["--tp_size 2", "--trust_remote_code", "--tp_size=2"])
def test_underscores_are_refused(more: str) -> None:
    (told,) = unknown(pair(more))
    name = more.partition("=")[0].split()[0]
    assert told == (
        "prefill:30000",
        "error",
        name.replace("_", "-"),
        f"write {name.replace('_', '-')} instead of {name}",
    )


@for_each(
    "more",
    [
        "--disaggregation-transfer nixl",  # a beginning that one flag alone has
        "--mem-fraction 0.8 --tp 2 --tensor-parallel 2",
        "--help",
        "--$FLAG 3 --${NAME}-size 3 $MORE --<flag> 3 --{{flag}} 2",
        "--disaggregation-decode-tp 2",  # one that only some releases have
    ],
)
def test_what_a_parser_takes_or_nobody_can_know_is_nothing_to_tell(more: str) -> None:
    assert "nobody says which release runs" in doubt(pair(more), "PD318")


def test_an_ambiguous_beginning_names_what_begins_so() -> None:
    (one,) = found(pair("--disaggregation-decode 2"), "PD318")
    assert re.search(r"\d+ flags begin so: --disaggregation-decode-\S+, ", one.observed)


def test_a_beginning_counts_as_the_flag_it_stands_for() -> None:
    assert not found(pair("--disaggregation-transfer nixl", "--disaggregation-transfer-backend nixl"), "PD309")
    (one,) = found(pair("--disaggregation-transfer nixl"), "PD309")
    assert one.expected == "nixl"


def test_every_flag_of_every_release_is_known_there() -> None:
    """Each as a release's own parser takes it; a release is a tag of the image."""
    for version in (SGLANG[0], SGLANG[len(SGLANG) // 2], NEWEST):
        line = " ".join(
            f"--{name}" for name, rows in arguments().items() if any(row.span.holds(version) for row in rows)
        )
        told = [each.observed for each in found(pods(line, image=f"sglang:v{spell(version)}"), "PD318")]
        assert not [each for each in told if " has no " in each or "no sglang" in each]


@for_each(
    ("router", "severity", "fix"),
    [
        ("--polcy random", "error", "write --policy instead of --polcy"),
        ("--prefil-policy random", "error", "write --prefill-policy instead of --prefil-policy"),
        ("--request_timeout_secs 3", "error", "write --request-timeout-secs instead of --request_timeout_secs"),
        ("--warp-drive 9", "warning", "drop --warp-drive"),
        ("--request-timeout 3 --service-discovery-p 80", "", ""),
    ],
)
@for_each("program", ["python3 -m sglang_router.launch_router", "smg launch", "sglang-router launch"])
def test_routers_are_asked_as_well(program: str, router: str, severity: str, fix: str) -> None:
    text = f"#!/bin/bash\n{ENGINE} {PREFILL} &\n{ENGINE} {DECODE} &\n{program} {ROUTER} {router}\n"
    told = found_or_none(manifest(text, "run.sh"))
    assert [(each.instance, each.severity.value, each.fix) for each in told] == (
        [("router", severity, fix)] if fix else []
    )


def found_or_none(facts: Facts) -> list[Finding]:
    """Without those that are about a combination; [] where no release is known."""
    servers = servers_of(facts)
    assert isinstance(servers, Servers)
    verdict = refused(servers)
    return [each for each in verdict if isinstance(each, Finding)] if isinstance(verdict, list) else []


def test_pdctls_own_router_in_a_topology_has_the_same_code() -> None:
    (one,) = found(topology("router.kind=pdctl", "router.args.polcy=random"), "PD318")
    assert (one.instance, one.severity) == ("router", Severity.ERROR)
    assert "did you mean --policy?" in one.observed


@for_each(
    ("more", "router", "fix"),
    [
        ("--disaggregation-transfer-backend nixel", "", "write --disaggregation-transfer-backend nixl instead of "
         "--disaggregation-transfer-backend nixel"),
        ("--disaggregation-transfer nixl", "", ""),
        ("--disaggregation-transfer-backend $BACKEND", "", ""),
        ("--kv-cache-dtype float4", "", "write one of them behind --kv-cache-dtype"),
        ("", "--policy randm", "write --policy random instead of --policy randm"),
        ("", "--policy random --decode-policy power_of_two", ""),
    ],
)  # fmt: skip
def test_a_value_the_parser_does_not_list_is_refused_whatever_release_runs(more: str, router: str, fix: str) -> None:
    told = found_or_none(pair(more, more, f"{ROUTER} {router}"))
    assert {each.fix for each in told} == ({fix} if fix else set())
    assert all(each.severity is Severity.ERROR and each.expected.startswith("one of ") for each in told)


def test_of_a_flag_that_came_later_the_release_is_named() -> None:
    (one,) = found(pods("--attn-dp-size 2", image="sglang:v0.5.18"), "PD318")
    assert (one.expected, one.fix) == ("SGLang 0.5.22 or newer", "update SGLang to 0.5.22, or drop --attn-dp-size")


def test_of_another_router_in_a_topology_too() -> None:
    (one,) = found(topology("router.args.cache-treshold=0.5"), "PD318")
    assert one.fix == "write --cache-threshold instead of --cache-treshold"


def test_sglang_serve_has_a_flag_of_its_own_and_dynamo_many() -> None:
    dynamo = (
        f"python3 -m dynamo.sglang {PREFILL} --dyn-tool-call-parser hermes --endpoint dyn://a.b.c --migration-limit 3"
    )
    for line in (SERVE, dynamo):
        assert not found_or_none(manifest(f"#!/bin/bash\n{line}\n", "run.sh"))


def test_no_file_of_this_repository_is_accused() -> None:
    """Samples, documents and examples: whatever starts an engine or a router there is right."""
    looked = 0
    for folder in ("docs", "topologies", "tests/doctor/static/written", "tests/imports/written", "tests/data"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".sh", ".yaml", ".yml", ".md") or path.stat().st_size > 60_000:
                continue
            try:
                servers = servers_of(Facts(manifest=read.load([str(path)])))
            except PdctlError:
                continue
            if isinstance(servers, Servers) and (servers.engines or servers.routers):
                looked += 1
                assert not [
                    each
                    for each in found_or_none(Facts(manifest=servers.manifest))
                    if each.expected.startswith(("--", "one of"))
                ]
    assert looked >= 8
