"""Minutes of real load while instances are killed: nothing wrong, nothing late, nothing left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak.plan import Plan
from tests.soak.soak import run

MINUTES = float(os.environ.get("PDCTL_TEST_SOAK_MINUTES", "20"))


@pytest.mark.heavy
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_every_request_ends_and_nothing_leaks(tmp_path: Path) -> None:
    outcome = run(Plan(seconds=MINUTES * 60, prefills=2, decodes=2), tmp_path, say=print)
    (tmp_path / "soak.json").write_text(outcome.as_json(), encoding="utf-8")
    assert not outcome.problems, outcome.summary
    assert outcome.kills
    assert outcome.tally.ends["aborted"]
