"""Real logs under tests/data/rooms, and what really happened to each room in them (made by derive_truth.py)."""

from __future__ import annotations

import datetime as dt
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.trace.diagnose import diagnose
from pdctl.trace.summaries import room_summaries
from pdctl.trace.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.trace.deployment_report import Diagnosis
    from pdctl.trace.room import RoomSummary

ROOMS = Path(__file__).parent.parent / "data" / "rooms"
SCENARIOS = tuple(sorted(path.name for path in ROOMS.iterdir() if (path / "truth.json").exists()))


def truth(scenario: str) -> dict[str, dict[str, Any]]:
    """Room → field → value; `untold` are the fields no line of these logs tells."""
    rooms: dict[str, dict[str, Any]] = json.loads((ROOMS / scenario / "truth.json").read_text())["rooms"]
    return rooms


def logs(scenario: str, without: str = "") -> list[str]:
    paths = sorted(str(path) for path in (ROOMS / scenario).iterdir() if ".log" in path.name)
    return [path for path in paths if not without or without not in Path(path).name]


def library(paths: Sequence[str]) -> Library:
    return Library(open_logs(paths), tz=dt.timezone.utc, index=False)


# What is read once serves every test of a process: files that use these run in one (`TOGETHER` of tests/conftest.py).
@cache
def recording(scenario: str, without: str = "") -> Library:
    return library(logs(scenario, without))


@cache
def tracer(scenario: str, without: str = "") -> Tracer:
    return Tracer(recording(scenario, without))


@cache
def diagnosis(scenario: str, without: str = "") -> Diagnosis:
    return diagnose(recording(scenario, without))


@cache
def rows(scenario: str) -> tuple[RoomSummary, ...]:
    """As `pdctl rooms` lists them."""
    return tuple(room_summaries(Tracer(recording(scenario))))
