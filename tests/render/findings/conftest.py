"""One report with something of everything: an error with a place in a file, an accepted warning, a hostile text."""

from __future__ import annotations

import pytest

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import BootstrapPortRow, CanaryCell, Checked, CheckStatus, Finding, Report

NULL = Finding(
    "PD201",
    "bootstrap-port-null",
    Severity.ERROR,
    "prefill-1",
    "the router sends no bootstrap port for prefill-1: decode will dial 8998 instead of 8999",
    "bootstrap_port: null",
    "8999",
    ("router.log:7: prefill_urls: [(http://127.0.0.1:30001, None)]", "decode-0: disaggregation_bootstrap_port 8998"),
    "python -m sglang_router.launch_router --prefill http://127.0.0.1:30001 8999",
)
ACCEPTED = Finding(
    "PD410", "page-size-one", Severity.WARNING, "", "KV moves in pages of one token", "1", "64", (), "--page-size 64",
    "a tiny model",
)  # fmt: skip
HOSTILE = Finding(
    "PD604", "instance-down", Severity.WARNING, "decode-0", "decode-0 does not answer",
    "\x1b[2J<b>&\u202e, 50%:\n::error::x", "200", (), "",
)  # fmt: skip


@pytest.fixture
def report() -> Report:
    return Report(
        title="2p1d",
        depth="canary",
        findings=(NULL, ACCEPTED, HOSTILE),
        checks=(
            Checked("PD201", CheckStatus.FINDING),
            Checked("PD202", CheckStatus.OK),
            Checked("PD401", CheckStatus.SKIPPED, "no RDMA device on this host"),
            Checked("PD410", CheckStatus.FINDING),
            Checked("PD501", CheckStatus.UNKNOWN, "decode-0 did not answer"),
            Checked("PD604", CheckStatus.FINDING),
        ),
        ports=(
            BootstrapPortRow("prefill-0", "8998", "8998", "8998", "null", None, "router"),
            BootstrapPortRow("prefill-1", "8999", "8999", "8999", "null", None, "router"),
        ),
        matrix=(
            CanaryCell("prefill-0", "decode-0", True, 0.214, "", 17),
            CanaryCell("prefill-1", "decode-0", False, 5.0, "no answer within 5 s", 18),
        ),
        seconds=1.84,
    )
