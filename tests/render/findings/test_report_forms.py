"""Every form of doctor's report: what scripts rely on, and that hostile text stays text."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from xml.etree import ElementTree

import jsonschema
import pytest

from pdctl.catalogue import book
from pdctl.catalogue.entry import Severity
from pdctl.doctor import check_run
from pdctl.doctor.check import Checked, CheckStatus, Finding, Report
from pdctl.errors import ExitCode
from pdctl.render.findings import ci_forms, report_forms, report_text
from pdctl.render.term import Term
from tests.cases import for_each

CONTRACT = {
    "type": "object",
    "required": ["schema", "findings", "checks", "ports", "matrix"],
    "properties": {
        "schema": {"const": "pdctl.findings/1"},
        "findings": {
            "items": {
                "required": [
                    "code", "slug", "severity", "instance", "headline", "observed", "expected", "evidence", "fix",
                ],
                "properties": {"severity": {"enum": ["error", "warning", "info"]}, "evidence": {"type": "array"}},
            }
        },
        "checks": {
            "items": {
                "required": ["code", "status", "reason"],
                "properties": {"status": {"enum": ["ok", "finding", "skipped", "unknown"]}},
            }
        },
        "matrix": {"items": {"required": ["prefill", "decode", "ok", "seconds", "reason"]}},
    },
}  # fmt: skip
SHOWN = """\
doctor 2p1d  (canary)

✗ PD201 bootstrap-port-null  prefill-1
  the router sends no bootstrap port for prefill-1: decode will dial 8998 instead of 8999
  observed bootstrap_port: null
  expected 8999
  evidence router.log:7: prefill_urls: [(http://127.0.0.1:30001, None)]
           decode-0: disaggregation_bootstrap_port 8998
  fix      python -m sglang_router.launch_router --prefill http://127.0.0.1:30001 8999

! PD410 page-size-one
  KV moves in pages of one token
  ignored  a tiny model

! PD604 instance-down  decode-0
  decode-0 does not answer
  observed \\x1b[2J<b>&\\u202e, 50%:\\x0a::error::x
  expected 200

bootstrap ports
PREFILL\tFLAG\tSERVER_INFO\tBOOTSTRAP\tROUTER
prefill-0\t8998\t8998\t8998\tnull ✗
prefill-1\t8999\t8999\t8999\tnull ✗

canary: one real request per pair
PREFILL\tdecode-0
prefill-0\t✓ 0.21 s
prefill-1\t✗ 5.00 s
  no answer within 5 s

  ✗ Bootstrap servers, ports and addresses  1 with findings, 1 ok
  ✓ The network under the KV cache          1 with findings, 1 skipped
  ? Capacity                                1 unknown
  ! Routers, probes and upkeep              1 with findings
  ? unknown PD501: decode-0 did not answer
  – 1 skipped: it does not apply here (-v says why)
1 error, 1 warning, 1 ignored (4 checks, 1 skipped, 1 unknown, 1.8 s)
"""


class Pipe(io.StringIO):
    encoding = "utf-8"


class Ascii(io.StringIO):
    encoding = "ascii"


def test_text_in_a_pipe(report: Report) -> None:
    stream = Pipe()
    report_text.show(report, Term(stream))
    assert stream.getvalue() == SHOWN


def test_text_where_only_ascii_can_be_shown(report: Report) -> None:
    stream = Ascii()
    report_text.show(report, Term(stream))
    assert stream.getvalue().isascii()
    assert "x PD201" in stream.getvalue()


def test_verbose_tells_every_check(report: Report) -> None:
    stream = Pipe()
    report_text.show(report, Term(stream), verbose=True)
    assert [line for line in stream.getvalue().splitlines() if "PD202 bootstrap-port-wrong" in line]


def test_json_keeps_the_contract(report: Report) -> None:
    told = json.loads(report_forms.to_json(report))
    jsonschema.validate(told, CONTRACT)
    assert [found["suppressed"] for found in told["findings"]] == [None, "a tiny model", None]
    assert told["ports"][0]["odd"] == "router"
    assert told["matrix"][1] == {
        "prefill": "prefill-1", "decode": "decode-0", "ok": False, "seconds": 5.0, "reason": "no answer within 5 s",
        "room": 18,
    }  # fmt: skip


def test_json_lines_hold_the_same(report: Report) -> None:
    lines = [json.loads(line) for line in report_forms.to_lines(report).splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds == ["report"] + ["finding"] * 3 + ["check"] * 6 + ["port"] * 2 + ["cell"] * 2
    assert lines[0]["schema"] == "pdctl.findings/1"


def test_sarif_has_a_rule_and_a_place_for_each_result(report: Report) -> None:
    run = json.loads(ci_forms.to_sarif(report))["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning")
        assert result["message"]["text"]
    for rule in rules:
        assert "|" not in rule["shortDescription"]["text"] + rule["help"]["text"], "a placeholder of the catalogue"
    physical = run["results"][0]["locations"][0]["physicalLocation"]
    assert physical == {"artifactLocation": {"uri": "router.log"}, "region": {"startLine": 7}}
    assert run["results"][1]["suppressions"][0]["justification"] == "a tiny model"


def test_github_commands_cannot_be_forged(report: Report) -> None:
    lines = ci_forms.to_commands(report).splitlines()
    assert len(lines) == 2, "one per active finding: what a server says opens no new command"
    assert lines[0].startswith("::error file=router.log,line=7,title=PD201 bootstrap-port-null::prefill-1: ")
    assert "%0A::error::x" in lines[1]
    assert "50%25" in lines[1]


def test_junit_counts_what_failed(report: Report) -> None:
    root = ElementTree.fromstring(ci_forms.to_xml(report).partition("\n")[2])
    checks, canary = root.findall("testsuite")
    assert (checks.get("tests"), checks.get("failures"), checks.get("errors"), checks.get("skipped")) == (
        "6", "1", "0", "3",
    )  # fmt: skip
    assert (canary.get("tests"), canary.get("failures")) == ("2", "0"), "no finding says that the pair counts"
    unknown = checks.find("testcase[@name='PD501']/skipped")
    assert unknown is not None
    assert unknown.get("message") == "unknown: decode-0 did not answer"
    told = checks.find("testcase[@name='PD604']/system-out")
    assert told is not None
    assert (told.text or "").startswith("warning: decode-0 does not answer")
    failure = checks.find("testcase[@name='PD201']/failure")
    assert failure is not None
    assert "observed: bootstrap_port: null" in (failure.text or "")


def findings(*wanted: tuple[str, Severity, str]) -> tuple[Finding, ...]:
    return tuple(
        Finding(code, "slug", severity, "decode-0", "headline", "a", "b", (), "fix", suppressed)
        for code, severity, suppressed in wanted
    )


ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
CASES = [
    (),
    (("PD605", INFO, ""),),
    (("PD410", WARNING, ""),),
    (("PD201", ERROR, ""), ("PD605", INFO, "")),
    (("PD201", ERROR, "known"), ("PD410", WARNING, "")),
    (("PD610", ERROR, ""),),
    (("PD610", ERROR, "known"),),
    (("PD903", ERROR, ""),),
    (("PD903", ERROR, ""), ("PD410", WARNING, "")),
]


@for_each("fail_on", [ERROR, WARNING, INFO, None])
@for_each("wanted", CASES, ids=lambda case: "+".join(code for code, *_ in case) or "none")
def test_junit_and_sarif_agree_with_the_exit_code(
    report: Report, wanted: tuple[tuple[str, Severity, str], ...], fail_on: Severity | None
) -> None:
    """Red in a pipeline's test view if and only if the command fails; an unknown check and a failed pair included."""
    checks = tuple(Checked(entry.code, CheckStatus.OK) for entry in book.ENTRIES)
    unknown = Checked("PD501", CheckStatus.UNKNOWN, "not read")
    told = dataclasses.replace(report, findings=findings(*wanted), checks=(*checks, unknown))
    code = check_run.exit_code(told, fail_on)
    root = ElementTree.fromstring(ci_forms.to_xml(told, fail_on).partition("\n")[2])
    count = {name: sum(int(suite.get(name) or 0) for suite in root) for name in ("failures", "errors")}
    assert (sum(count.values()) > 0) is (code != 0)
    assert (count["errors"] > 0) is (code is ExitCode.NOT_PROBED)
    run = json.loads(ci_forms.to_sarif(told, fail_on))["runs"][0]
    (invocation,) = run["invocations"]
    assert invocation["exitCode"] == code
    assert invocation["executionSuccessful"] is (code is not ExitCode.NOT_PROBED)
    kinds = {result["ruleId"]: (result["kind"], result["level"]) for result in run["results"]}
    assert kinds.get("PD605", ("informational", "none")) == ("informational", "none")


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_colours_reach_a_terminal_as_colours(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own escapes are printed; those in what was read are drawn."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for verbose in (False, True):
        report_text.show(report, Term(screen := Screen()), verbose=verbose)
        shown = screen.getvalue()
        assert re.findall(r"\\x1b\[.{3}", shown) == [r"\x1b[2J<"]
        assert "\x1b[2J" not in shown
    report_text.show(report, Term(screen := Screen()))
    assert "\x1b[33m?\x1b[0m unknown PD501: decode-0 did not answer" in screen.getvalue()


@pytest.mark.parametrize("verbose", [False, True])
def test_of_skipped_checks_only_what_helps_is_told(report: Report, verbose: bool) -> None:
    """Without -v the reasons that an option or a file would answer; with it each reason once, with its codes."""
    reasons = {
        "PD610": "needs real requests: --canary",
        "PD611": "needs real requests: --canary",
        "PD607": "no pods: this is no manifest",
        "PD609": "no pods: this is no manifest",
        "PD320": "not checkable, because it is vLLM's",
    }
    checks = tuple(Checked(code, CheckStatus.SKIPPED, reason) for code, reason in reasons.items())
    out = Pipe()
    report_text.show(dataclasses.replace(report, findings=(), checks=checks), Term(out), verbose)
    told = [line.strip() for line in out.getvalue().splitlines() if " skipped: " in line]
    if verbose:
        assert sorted(told) == [
            "– 1 skipped: not checkable (pdctl doctor --list-checks says why): PD320",
            "– 2 skipped: needs real requests: --canary: PD610 PD611",
            "– 2 skipped: no pods: this is no manifest: PD607 PD609",
        ]
    else:
        assert told == [
            "– 2 skipped: needs real requests: --canary",
            "– 3 skipped: they do not apply here (-v says why)",
        ]
