"""Model configs and topologies to plan with."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from pdctl.layout.instance_plan import Plan
from pdctl.layout.planner import plan_topology
from pdctl.topology.resolve import load

MODELS = Path(__file__).resolve().parents[1] / "data" / "models"


TOPOLOGIES = Path(__file__).resolve().parents[2] / "topologies"


class Sheet:
    """A topology of one prefill and one decode that a test changes by `--set`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "sheet.yaml"

    def plan(self, text: str, *sets: str, target: str | None = None) -> Plan:
        self.file.write_text("version: pdctl/v1\n" + dedent(text))
        return plan_topology(load([self.file], sets, {}), target)


@pytest.fixture
def sheet(tmp_path: Path) -> Sheet:
    return Sheet(tmp_path)
