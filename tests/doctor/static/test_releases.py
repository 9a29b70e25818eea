"""Faults by release, and what each release refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.book import entry
from pdctl.catalogue.entry import Severity
from pdctl.doctor.gather import HARM
from pdctl.doctor.release_faults import numbers
from pdctl.doctor.static.refused_flags import TERM, in_words
from pdctl.engines.sglang.faults import ATTENTION_DP, FAULTS, NIXL_131, SPECULATION, RunningRelease, hits
from pdctl.engines.sglang.refusals import REFUSALS, Refusal
from pdctl.engines.versions import NEWEST, SGLANG, spell
from tests.cases import for_each
from tests.doctor.written import ENGINE, doubt, embedded, found, manifest, pair, pods, topology

if TYPE_CHECKING:
    from pdctl.doctor.check import Facts


def reports(version: str, role: str, backend: str, *features: str, component: str = "sglang") -> set[str]:
    known = numbers(version)
    assert known is not None
    return {hit.fault.report for hit in hits(RunningRelease(known, role, backend, frozenset(features), component))}


@for_each(
    ("version", "role", "backend", "expected"),
    [
        ("0.5.3", "prefill", "nixl", {"sglang 0.5.11 source", "sglang#34692", "sglang#25125"}),
        ("0.5.3", "decode", "nixl", {"sglang 0.5.3 source", "sglang#36033", "sglang#35049", "sglang#31144"}),
        ("0.5.8", "decode", "nixl", {"sglang#36033", "sglang#32267", "sglang#35049", "sglang#31144"}),
        ("0.5.8", "prefill", "mooncake", {"sglang 0.5.12 source", "sglang#25125"}),
        ("0.5.13", "prefill", "nixl", {"sglang#34692", "sglang#30352", "sglang#30551"}),
        ("0.5.13", "prefill", "mooncake", {"sglang#30551"}),
        ("0.5.13", "decode", "nixl", {"sglang#36033", "sglang#32267", "sglang#35049", "sglang#31144"}),
        ("0.5.18", "prefill", "nixl", {"sglang#30551"}),
        ("0.5.18", "decode", "nixl", {"sglang#36033", "sglang#35049"}),
        ("0.5.18", "decode", "mooncake", {"sglang#35049"}),
        ("0.5.21", "decode", "nixl", set()),
        ("0.5.22", "prefill", "nixl", set()),
        ("0.5.22", "decode", "nixl", set()),
        ("0.5.23", "prefill", "nixl", set()),
        ("0.5.23", "decode", "nixl", set()),
    ],
)
def test_the_faults_of_each_release(version: str, role: str, backend: str, expected: set[str]) -> None:
    assert reports(version, role, backend) == expected


def test_a_fault_that_needs_a_feature_waits_for_it() -> None:
    assert "sglang#32209" in reports("0.5.15", "decode", "mooncake", ATTENTION_DP, SPECULATION)
    assert "sglang#32209" not in reports("0.5.15", "decode", "mooncake", ATTENTION_DP)
    assert "sglang#35189" in reports("0.5.17", "prefill", "nixl", NIXL_131)
    assert "sglang#35189" not in reports("0.5.17", "prefill", "nixl")
    assert "sglang#31206" in reports("0.2.4", "", "", component="router")
    assert not reports("0.3.2", "", "", component="router")


def test_a_release_that_was_not_read_is_in_doubt_beside_a_bound() -> None:
    doubts = {hit.fault.report: hit.doubt for hit in hits(RunningRelease((0, 5, 15, 2), "prefill", "nixl"))}
    assert doubts["sglang#30352"] == "between 0.5.15.post1, which has it, and 0.5.16, which has not"
    assert doubts["sglang#30551"] == ""
    for version in SGLANG:
        assert {hit.doubt for hit in hits(RunningRelease(version, "prefill", "nixl"))} <= {""}


def test_a_doubt_is_told_as_one() -> None:
    told = {each.severity for each in found(topology("engine.version=0.5.19.post1"), "PD317")}
    assert told == {Severity.INFO, entry("PD317").severity}
    assert any(
        "0.5.19.post1 (between 0.5.19" in each.headline
        for each in found(topology("engine.version=0.5.19.post1"), "PD317")
    )


def test_0_5_22_has_none_of_the_faults_that_0_5_20_and_0_5_21_ended() -> None:
    assert found(topology("engine.version=0.5.22"), "PD317") == []
    assert {each.severity for each in found(topology("engine.version=0.5.18"), "PD317")} == {entry("PD317").severity}


def test_every_fault_is_cited_by_its_entry() -> None:
    cited = set(entry("PD317").reports)
    for fault in FAULTS:
        assert fault.report in cited or fault.report.endswith(" source") or fault.report == "sglang#25125"
        assert fault.since < fault.until
        assert fault.reported or fault.until in SGLANG


def test_a_topology_that_names_no_release_is_unknown() -> None:
    facts = topology("engine.version=null")
    assert doubt(facts, "PD317") == "nobody says which release prefill, decode-0 runs (engine.version)"
    assert doubt(embedded(), "PD317") == "the embedded engine has no such fault"


def test_an_image_tells_the_release_and_where_it_says_so() -> None:
    told = found(pods(image="lmsysorg/sglang:v0.5.13.post2-cu126"), "PD317")
    assert {each.instance for each in told} == {"prefill", "decode"}
    assert told[0].headline.startswith("prefill: SGLang 0.5.13.post2 has a known fault: ")
    assert told[0].evidence == ("deploy.yaml:13: image: lmsysorg/sglang:v0.5.13.post2-cu126",)


def flags(refusal: Refusal, without: str = "") -> str:
    """A command line that meets every term of a refusal, but for one."""
    words, env = [], []
    for term in refusal.when:
        match = TERM.fullmatch(term)
        assert match is not None, term
        name, sign, value = match["name"], match["sign"], (match["value"] or "").split()
        if term == without or match["not"]:
            continue
        if match["env"]:
            env.append(f"{name}=1")
        elif name == "backend":
            words.append(f"--disaggregation-transfer-backend {value[0] if sign == '=' else 'mori'}")
        elif name == "attention-tp":
            words.append("--tp-size 4")
        elif sign is None:
            words.append(f"--{name} EAGLE" if name == "speculative-algorithm" else f"--{name}")
        else:
            words.append(f"--{name} {int(value[0]) + 1 if sign == '>' else value[0] if sign == '=' else 'OTHER'}")
    return f"{' '.join(env)} {ENGINE} --model-path m {' '.join(words)}"


@for_each("refusal", REFUSALS, ids=lambda refusal: " ".join((*refusal.when, refusal.role)))
def test_each_refusal_holds_in_its_releases_and_roles_only(refusal: Refusal) -> None:
    same = [each for each in REFUSALS if each.when == refusal.when]  # releases may differ in the roles they mean
    for role in ("prefill", "decode"):
        pod = engine_pod(f"{flags(refusal)} --disaggregation-mode {role}")
        for version in SGLANG:
            told = refused_in(pod, spell(version))
            holds = any(each.span.holds(version) and each.role in ("", role) for each in same)
            said = f"sglang {spell(version)} refuses {in_words(refusal.when)}"
            assert (said in told) is holds, (version, role)


@for_each(
    ("terms", "told"),
    [
        (("backend = fake",), "transfer backend fake"),
        (("flag-a", "flag-b"), "--flag-a with --flag-b"),
        (("flag-a = x", "flag-b > 1", "attention-tp > 1"), "--flag-a x with --flag-b above 1 and attention TP above 1"),
        (("flag-a", "backend != nixl mooncake"), "--flag-a with transfer backend other than nixl or mooncake"),
        (("env SGLANG_X", "not flag-a"), "SGLANG_X with no --flag-a"),
    ],
)
def test_a_refusal_is_told_in_words(terms: tuple[str, ...], told: str) -> None:
    assert in_words(terms) == told


@for_each("refusal", [each for each in REFUSALS if len(each.when) > 1], ids=lambda each: str(each.when))
def test_a_refusal_needs_all_of_its_terms(refusal: Refusal) -> None:
    version = next(each for each in SGLANG if refusal.span.holds(each))
    for term in refusal.when:
        if not term.startswith("not "):
            line = f"{flags(refusal, term)} --disaggregation-mode {refusal.role or 'decode'}"
            assert f"sglang {spell(version)} refuses {in_words(refusal.when)}" not in refused(line, spell(version))


def refused(line: str, version: str) -> list[str]:
    """What PD318 says of one engine whose image has this release."""
    return refused_in(engine_pod(line), version)


def engine_pod(line: str) -> Facts:
    text = (
        "kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
        f"    - image: sglang:v0.5.23\n      command: [sh, -c, '{line}']\n"
    )
    return manifest(text)


def refused_in(facts: Facts, version: str) -> list[str]:
    """What PD318 says of the one engine of a manifest if its image has this release."""
    assert facts.manifest is not None
    (pod,) = facts.manifest.pods
    (container,) = pod.containers
    pod = pod._replace(containers=(container._replace(image=f"sglang:v{version}"),))
    return [each.observed for each in found(replace(facts, manifest=facts.manifest._replace(pods=(pod,))), "PD318")]


@for_each(
    ("flag", "version", "said"),
    [
        (
            "--disaggregation-decode-tp 2",
            "0.5.13",
            "sglang 0.5.13 has no --disaggregation-decode-tp (only until 0.5.10)",
        ),
        ("--disaggregation-decode-tp 2", "0.5.8", ""),
        ("--attn-dp-size 2", "0.5.18", "sglang 0.5.18 has no --attn-dp-size (since 0.5.22)"),
        (
            "--optimistic-prefill-retries 2",
            "0.5.18",
            "sglang 0.5.18 has no --optimistic-prefill-retries (only until 0.5.16)",
        ),
        ("--enable-pd-role-switch", "0.5.18", "sglang 0.5.18 has no --enable-pd-role-switch (since 0.5.21)"),
        ("--enable-pd-role-switch", "0.5.23", ""),
    ],
)
def test_flags_a_release_does_not_have(flag: str, version: str, said: str) -> None:
    told = refused(f"{ENGINE} --disaggregation-mode prefill {flag}", version)
    assert [each for each in told if " has no " in each] == ([said] if said else [])


def test_the_plans_own_refusals_have_the_code_too() -> None:
    told = found(topology("engine.args.enable-nsa-prefill-context-parallel=true"), "PD318")
    assert len(told) == 2
    assert all("sglang 0.5.23 has no --enable-nsa-prefill-context-parallel" in each.observed for each in told)


def test_without_a_release_nobody_can_tell_what_it_refuses() -> None:
    assert "nobody says which release runs, and what is refused differs by release" in doubt(pair(), "PD318")


@for_each(
    ("image", "prefill", "decode", "told"),
    [
        ("v0.5.8", "--dp-size 2", "", []),
        ("v0.5.13", "--dp-size 2", "", ["prefill"]),
        ("v0.5.23", "--dp-size 2", "", ["prefill"]),
        ("v0.5.18", "--dp-size 2 --enable-dp-attention --tp-size 2", "", []),
        ("v0.5.23", "--attn-dp-size 2 --tp-size 2", "", []),
        ("v0.5.18", "--dp-size 2 --load-balance-method round_robin", "", []),
        ("v0.5.18", "", "--prefill-round-robin-balance", ["decode"]),
        ("v0.5.3", "", "--prefill-round-robin-balance", []),
    ],
)
def test_which_dp_rank_serves_a_room(image: str, prefill: str, decode: str, told: list[str]) -> None:
    facts = pods(image=f"sglang:{image}", prefill=prefill, decode=decode)
    assert [each.instance for each in found(facts, "PD313")] == told


def test_asking_for_the_rank_on_both_sides_settles_it() -> None:
    force = "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK"
    text = (
        "kind: Pod\nmetadata: {{name: {role}}}\nspec:\n  containers:\n"
        "    - image: sglang:v0.5.18\n      command: [sh, -c, '{line}']\n"
    )
    lines = {
        "prefill": f"{ENGINE} --disaggregation-mode prefill --dp-size 2",
        "decode": f"{ENGINE} --disaggregation-mode decode",
    }
    for forced, told in (((), 1), (("prefill",), 1), (("prefill", "decode"), 0)):
        parts = [
            text.format(role=role, line=f"{force}=1 {line}" if role in forced else line) for role, line in lines.items()
        ]
        assert len(found(manifest("---\n".join(parts)), "PD313")) == told


def test_a_release_that_was_not_read_is_said_so() -> None:
    (told,) = found(topology("engine.version=0.6.0"), "PD323")
    assert f"sglang 0.6.0 is newer than the newest release pdctl has read ({spell(NEWEST)})" in told.headline
    assert told.severity is Severity.INFO
    for version in SGLANG:
        assert found(topology(f"engine.version={spell(version)}"), "PD323") == []


def test_every_fault_has_a_name_of_its_own_and_what_harms_a_prefill_is_one() -> None:
    names = [fault.id for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert set(HARM) <= set(names)
