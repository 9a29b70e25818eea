"""Which codes run, which findings are accepted and for how long, and what fails a run."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from pdctl.catalogue.book import ENTRIES
from pdctl.catalogue.entry import Severity
from pdctl.doctor import check_run, selection
from pdctl.doctor.check import CheckStatus, Facts
from pdctl.doctor.selection import Selection
from pdctl.errors import ExitCode, UsageError
from tests.cases import for_each
from tests.doctor.fixtures import recorded as real

TODAY = datetime.date(2026, 11, 21)


def broken() -> Facts:
    """Two causes that have nothing to do with each other."""
    return real.info(real.null(real.healthy(), "prefill-0", "prefill-1"), "decode-0", page_size=16)


def seen(chosen: Selection) -> set[str]:
    return {one.code for one in check_run.run(broken(), chosen).findings}


def test_everything_by_default() -> None:
    assert seen(selection.read()) == {"PD201", "PD302"}


@for_each(
    ("select", "ignore", "expected"),
    [
        (["PD2"], [], {"PD201"}),
        (["bootstrap-port-null"], [], {"PD201"}),
        (["PD201,PD302"], [], {"PD201", "PD302"}),
        (["PD2", "page-size-*"], ["PD201"], {"PD302"}),
        ([], ["pd3"], {"PD201"}),
    ],
)
def test_by_code_beginning_slug_and_glob(select: list[str], ignore: list[str], expected: set[str]) -> None:
    assert seen(selection.read(select, ignore)) == expected


def test_what_is_not_selected_is_said_to_be_so() -> None:
    report = check_run.run(broken(), selection.read(["PD2"]))
    assert len(report.checks) == len(ENTRIES)
    (check,) = [one for one in report.checks if one.code == "PD302"]
    assert (check.status, check.reason) == (CheckStatus.SKIPPED, "not selected")


def test_an_unknown_code_is_a_usage_error_with_the_nearest() -> None:
    with pytest.raises(UsageError) as error:
        selection.read(select=["PD2O1"])
    assert "did you mean PD201" in error.value.fix
    with pytest.raises(UsageError, match="no severity"):
        selection.read(fail_on="fatal")


@for_each(
    ("word", "severity", "code"),
    [
        ("error", Severity.ERROR, ExitCode.FINDINGS),
        ("warn", Severity.WARNING, ExitCode.FINDINGS),
        ("info", Severity.INFO, ExitCode.FINDINGS),
        ("never", None, ExitCode.OK),
    ],
)
def test_fail_on(word: str, severity: Severity | None, code: ExitCode) -> None:
    chosen = selection.read(fail_on=word)
    assert chosen.fail_on is severity
    assert check_run.exit_code(check_run.run(broken(), chosen), chosen.fail_on) is code


def test_a_warning_alone_passes_unless_asked() -> None:
    facts = real.info(real.healthy(), "decode-0", tp_size=2)
    report = check_run.run(facts)
    assert [one.code for one in report.findings] == ["PD305"]
    assert check_run.exit_code(report, Severity.ERROR) is ExitCode.OK
    assert check_run.exit_code(report, Severity.WARNING) is ExitCode.FINDINGS


def test_what_could_not_be_looked_at_is_not_a_failure_of_the_deployment() -> None:
    facts = real.healthy()
    for name in real.URLS:
        facts = real.down(facts, name, "no connection within 5 s")
    report = check_run.run(facts)
    assert {one.code for one in report.findings} == {"PD901"}
    assert check_run.exit_code(report, Severity.ERROR) is ExitCode.NOT_PROBED


def accepted(code: str, where: str = "*", until: str = "") -> Selection:
    rule = selection.suppression(code, "known until the next image", where, until)
    return replace(selection.read(suppressions=[rule]), today=TODAY)


def test_an_accepted_finding_stays_visible_and_does_not_fail() -> None:
    chosen = accepted("PD302")
    report = check_run.run(broken(), chosen)
    (one,) = [each for each in report.findings if each.code == "PD302"]
    assert one.suppressed == "known until the next image"
    assert [each.code for each in selection.failing(report, Severity.ERROR)] == ["PD201"]


def test_it_is_accepted_where_it_was_said_only() -> None:
    report = check_run.run(broken(), accepted("PD302", where="prefill-*"))
    assert not any(one.suppressed for one in report.findings)
    report = check_run.run(broken(), accepted("page-size-mismatch", where="decode-0"))
    assert [one.code for one in report.findings if one.suppressed] == ["PD302"]


@pytest.mark.parametrize(("until", "holds"), [("2026-11-21", True), ("2026-11-20", False)])
def test_it_runs_out_after_its_last_day(until: str, holds: bool) -> None:
    report = check_run.run(broken(), accepted("PD302", until=until))
    (one,) = [each for each in report.findings if each.code == "PD302"]
    assert bool(one.suppressed) is holds
    assert any("that day has passed" in line for line in one.evidence) is not holds
    assert check_run.exit_code(report, Severity.ERROR) is ExitCode.FINDINGS


@for_each(
    ("code", "because", "until", "message"),
    [
        ("PD302", " ", "", "without a reason"),
        ("PD3O2", "known", "", "no code or slug"),
        ("PD302", "known", "next week", "is not a day"),
    ],
)
def test_a_rule_that_cannot_be(code: str, because: str, until: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        selection.suppression(code, because, until=until, place="topology.yaml:12")
    assert str(error.value).startswith("topology.yaml:12: ")
