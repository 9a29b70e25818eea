"""Which evidence names a place in a file, and which an address that only looks like one."""

from __future__ import annotations

import dataclasses

from pdctl.doctor.check import Report
from pdctl.render.findings.ci_forms import FindingPlace, place
from tests.cases import for_each


@for_each(
    ("line", "expected"),
    [
        ("blue.yaml:12: --page-size 32", FindingPlace("blue.yaml", 12)),
        ("decode-0: /srv/topologies/blue.yaml:5: --page-size 32", FindingPlace("/srv/topologies/blue.yaml", 5)),
        ("decode:30001: run.sh:3: --kv-cache-dtype fp8_e4m3", FindingPlace("run.sh", 3)),
        ("run.sh:5: prefill:30000 is nobody's", FindingPlace("run.sh", 5)),
        ("router.log.1:7: prefill_urls: []", FindingPlace("router.log.1", 7)),
        ("deploy/run:4: --prefill http://127.0.0.1:30000", FindingPlace("deploy/run", 4)),
        ("<stdin>:14: no --enable-metrics", FindingPlace("<stdin>", 14)),
        ("127.0.0.1:8998 is answered by prefill-0", None),
        ("prefill:30000: no --disaggregation-bootstrap-port, so 8998", None),
        ("node.example.com:8998: connection refused", None),
        ("http://127.0.0.1:30000/server_info: connection refused", None),
        ("--set:1: SGLANG_RUST_SERVER=1", None),
        ("x.log:0: nothing stands there", None),
        ("x.log:" + "9" * 5000, None),
        ("", None),
    ],
)
def test_a_place_is_in_a_file(report: Report, line: str, expected: FindingPlace | None) -> None:
    assert place(dataclasses.replace(report.findings[0], evidence=(line,))) == expected


def test_the_place_is_that_of_the_value_which_was_observed(report: Report) -> None:
    """Both sides are in the evidence; the finding is about one of them."""
    both = ("prefill: a.yaml:20: --page-size 64", "decode: a.yaml:46: --page-size 32")
    found = dataclasses.replace(report.findings[0], instance="decode", observed="32", evidence=both)
    assert place(found) == FindingPlace("a.yaml", 46)
    spread = ("a.yaml:12: --prefill http://p:30000 8998", "b.yaml:9: --disaggregation-bootstrap-port 8999")
    found = dataclasses.replace(report.findings[0], instance="prefill-1", observed="8999", evidence=spread)
    assert place(found) == FindingPlace("b.yaml", 9)


def test_the_first_place_counts(report: Report) -> None:
    evidence = ("10.0.0.1:8998 is silent", "a.yaml:1: x", "b.yaml:2: y")
    assert place(dataclasses.replace(report.findings[0], evidence=evidence)) == FindingPlace("a.yaml", 1)
