"""What `--watch` prints: deltas only."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from pdctl.doctor import check
from pdctl.doctor.check import Report
from pdctl.render.findings import report_forms
from pdctl.render.term import Term


def test_opened_once_and_resolved_with_its_age(report: Report) -> None:
    first = check.advance(check.begin(), report, 100.0)
    assert [found.code for found in first.opened] == ["PD201", "PD604"], "an accepted finding is not watched"
    again = check.advance(first, report, 105.0)
    assert (again.opened, again.resolved) == ((), ())
    healed = check.advance(again, replace(report, findings=()), 130.0)
    assert [(done.finding.code, done.seconds) for done in healed.resolved] == [("PD201", 30.0), ("PD604", 30.0)]
    stream = io.StringIO()
    report_forms.show_changes(healed, Term(stream))
    assert "resolved after 30 s: PD201 bootstrap-port-null  prefill-1" in stream.getvalue()


def test_the_feed_is_json_lines(report: Report) -> None:
    first = check.advance(check.begin(), report, 0.0)
    events = [json.loads(line) for line in report_forms.change_lines(first).splitlines()]
    assert [(event["event"], event["code"]) for event in events] == [("opened", "PD201"), ("opened", "PD604")]
    assert report_forms.change_lines(check.advance(first, report, 1.0)) == ""
