"""One line for every switch that was tried, so that what it cost can be looked up."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.switch.order import Order, Result

SCHEMA = "pdctl.role-switch/1"
FILE = "switches.jsonl"


def document(order: Order, result: Result) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "at": round(time.time(), 3),
        "instance": result.name,
        "url": result.url,
        "routers": list(order.routers),
        "from": result.old_role,
        "to": result.new_role,
        "standing": result.standing.value,
        "problem": result.problem,
        "fix": result.fix,
        "bootstrap_port": result.bootstrap_port,
        "seconds": {step: round(seconds, 3) for step, seconds in result.durations},
    }


def append(directory: Path, order: Order, result: Result) -> None:
    with (directory / FILE).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(document(order, result)) + "\n")
