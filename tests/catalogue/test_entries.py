"""The catalogue as a whole: numbers that never change, texts a tired person understands, every symptom covered."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from pdctl.catalogue import book
from pdctl.catalogue.entry import PLACEHOLDER, Entry, fill, fill_fix, thread_address
from pdctl.errors import PdctlError
from pdctl.shell_quoting import pasteable
from tests.cases import for_each
from tests.catalogue.survey import SYMPTOMS, Symptom

if TYPE_CHECKING:
    from pathlib import Path

# A code is a promise to scripts: none of these may ever mean something else. New ones are added below theirs.
NUMBERS = """
PD201 bootstrap-port-null PD202 bootstrap-port-wrong PD203 bootstrap-ports-swapped PD204 bootstrap-port-collision
PD205 bootstrap-unreachable PD206 bootstrap-port-is-http PD207 decode-default-port PD208 loopback-across-hosts
PD209 ranks-not-registered PD210 rank-unreachable PD211 stale-rank-addresses PD212 wildcard-registration
PD213 service-hides-bootstrap-port PD214 annotation-missing PD215 annotation-differs PD216 router-misses-instances
PD217 dist-init-host-differs PD218 port-collision PD219 rust-server-port PD220 router-host-not-ip
PD221 service-selects-nothing PD222 service-target-port-closed PD223 router-dials-closed-port
PD224 listens-on-loopback PD225 cannot-listen PD226 router-dials-unknown-host
PD301 roles-swapped PD302 page-size-mismatch PD303 kv-dtype-mismatch PD304 kv-layout-mismatch PD305 attn-tp-mismatch
PD306 attn-tp-mismatch-hybrid PD307 context-length-differs PD308 speculative-differs PD309 backend-differs
PD310 version-differs PD311 model-differs PD312 mamba-dtype-differs PD313 dp-rank-contract
PD314 chunked-prefill-not-page-multiple PD315 pp-mismatch PD316 tp-not-divisible PD317 known-bad-version
PD318 refused-flags PD319 parallel-sampling-shares-room PD320 vllm-side-channel PD321 vllm-handshake-hash
PD322 bootstrap-info-dropped PD323 release-not-read
PD324 decode-context-parallel-mismatch PD325 allocation-policy-mismatch PD326 kv-checksum-one-side
PD401 hca-missing PD402 hca-port-down PD403 roce-gid PD404 memlock-low PD405 no-gpudirect PD406 silent-tcp
PD407 ucx-environment PD408 nixl-missing PD409 transfer-error PD410 page-size-one PD411 dead-transfer-settings
PD412 slow-transfer PD413 mnnvl-settings PD414 ib-devices-differ PD415 nixl-stalls-after-first-chunk
PD416 environment-setting
PD501 decode-capacity PD502 reserved-tokens PD503 deepep-dispatch PD504 multi-node-shape PD505 request-too-long
PD506 prefill-overcommitted PD507 overload-collapse PD508 kv-lease-expired PD509 socket-interface
PD601 breakers-open PD602 router-not-ready PD603 worker-missing-from-router PD604 instance-down PD605 health-lies
PD606 timeouts-neutered PD607 k8s-probe PD608 untagged-image PD609 grace-too-short PD610 canary-failed
PD611 answers-differ PD612 slow-error PD613 queue-leak PD614 public-bind PD615 router-gap
PD616 environment-differs-between-ranks PD617 heartbeat-false-alarm PD618 router-start-refused
PD619 variable-not-expanded PD620 silent-fallback PD621 host-network-dns
PD701 wrong-prefill-contacted PD702 decode-never-announced PD703 leg-missing PD704 decode-died PD705 prefill-died
PD706 client-abort PD707 room-reused PD708 transfer-never-completed PD709 scheduler-crashed PD710 bootstrap-thread-died
PD711 context-corruption PD712 room-id-missing PD713 prefill-refused PD714 decode-refused PD715 router-retried
PD716 room-zero PD717 peer-unresponsive PD718 request-refused PD719 router-deadline
PD720 router-died
PD801 trace-blind PD802 metrics-off PD803 clock-skew PD804 fd-limit PD805 logs-not-collected
PD806 descriptors-run-out PD807 disk-full
PD901 not-reachable-from-here PD902 no-endpoints PD903 not-sglang PD904 api-key-required
PD905 program-not-written
"""

each = for_each("entry", book.ENTRIES, ids=lambda entry: entry.code)


def test_no_code_has_ever_changed() -> None:
    words = NUMBERS.split()
    known = dict(zip(words[::2], words[1::2], strict=True))
    assert {entry.code: entry.slug for entry in book.ENTRIES} == known


def test_codes_stand_in_order_and_slugs_are_unique() -> None:
    codes = [entry.code for entry in book.ENTRIES]
    assert codes == sorted(set(codes))
    assert len({entry.slug for entry in book.ENTRIES}) == len(codes)


@each
def test_a_headline_is_one_line_for_a_person(entry: Entry) -> None:
    assert "\n" not in entry.headline + entry.fix
    assert len(PLACEHOLDER.sub("x", entry.headline)) <= 110
    assert not entry.headline.endswith(".")
    assert not set(fill(entry.headline + entry.fix, {})) & {"\t"}
    assert "{" not in PLACEHOLDER.sub("", entry.headline)


@each
def test_the_text_says_what_happens_and_where_to_look_next(entry: Entry) -> None:
    told, _, after = entry.explain.partition(" Next: ")
    assert len(told.split()) >= 20, "too short to explain anything"
    assert after.endswith(".")
    assert entry.versions
    assert entry.source
    assert entry.fix


@each
def test_what_cannot_be_seen_says_why(entry: Entry) -> None:
    assert bool(entry.needs) is not bool(entry.unseen)
    assert "checkable" not in entry.unseen, "every place that shows the reason says so already"


@each
def test_reports_are_public_threads(entry: Entry) -> None:
    assert len(set(entry.reports)) == len(entry.reports)
    for report in entry.reports:
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", thread_address(report))


@each
def test_nothing_but_public_names_is_shown(entry: Entry) -> None:
    shown = " ".join((entry.headline, entry.explain, entry.fix, entry.versions, entry.source, entry.unseen))
    assert not re.search(r"\b[BCMNRT][0-2]\d\b", shown)


@for_each("symptom", SYMPTOMS, ids=lambda symptom: symptom.what)
def test_every_known_symptom_has_a_code_that_cites_it(symptom: Symptom) -> None:
    cited = {report for code in symptom.codes for report in book.entry(code).reports}
    assert set(symptom.reports) <= cited


def test_eighty_symptoms_are_known() -> None:
    assert len(SYMPTOMS) == len({symptom.what for symptom in SYMPTOMS}) == 80


def test_at_least_forty_of_them_can_be_seen() -> None:
    seen = [symptom for symptom in SYMPTOMS if any(not book.entry(code).unseen for code in symptom.codes)]
    assert len(seen) >= 70


def test_a_report_of_an_unknown_project_is_refused() -> None:
    with pytest.raises(PdctlError, match="elsewhere#1"):
        thread_address("elsewhere#1")


def test_what_nobody_knows_becomes_its_words_or_stands_in_capitals() -> None:
    said = fill('--prefill {url} {other_port} -d {"url": "{url}"}', {"url": "http://a"})
    assert said == '--prefill http://a OTHER-PORT -d {"url": "http://a"}'
    text = "for {instance|a prefill}: {fix|probe: {path: /health}}"
    assert fill(text, {}) == "for a prefill: probe: {path: /health}"
    assert fill(text, {"instance": "prefill-0", "fix": "it"}) == "for prefill-0: it"


HOSTILE = """x'"; touch ran; `touch ran` $(touch ran) & touch ran | touch ran\n touch ran -o y"""
COMPOSED = {"fix", "look", "next"}  # the checks put these together; tests/doctor has them with hostile servers


@for_each("entry", [one for one in book.ENTRIES if {found[1] for found in PLACEHOLDER.finditer(one.fix)} - COMPOSED])
def test_no_value_of_a_fix_runs_in_a_shell_that_it_is_pasted_into(entry: Entry, tmp_path: Path) -> None:
    names = {found[1] for found in PLACEHOLDER.finditer(entry.fix)} - COMPOSED
    said = fill_fix(entry.fix, dict.fromkeys(names, HOSTILE))
    tools = {"PATH": f"{tmp_path}/bin"}  # only the one that must not run can be found
    (tmp_path / "bin").mkdir(exist_ok=True)
    if not (tmp_path / "bin" / "touch").exists():
        (tmp_path / "bin" / "touch").symlink_to("/usr/bin/touch")
    subprocess.run(["/bin/bash", "-c", said], cwd=tmp_path, env=tools, capture_output=True, timeout=60, check=False)
    assert not (tmp_path / "ran").exists(), said


@for_each("usual", ["http://10.0.0.1:30000", "http://[::1]:30000", "prefill-0 and prefill-1", "/var/log/a.log", ""])
def test_a_usual_value_stands_in_a_command_as_it_is(usual: str) -> None:
    assert pasteable(usual) == usual
