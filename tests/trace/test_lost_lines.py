"""A full disk: logs that say how many of their lines are lost, and when. Nothing follows from those lines' absence."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

from pdctl.cli.diagnose import exit_code
from pdctl.errors import ExitCode
from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.render.diagnosis_view import document
from pdctl.trace.diagnose import diagnose
from pdctl.trace.room import RoomOutcome
from pdctl.trace.summaries import ListNotes, room_summaries
from pdctl.trace.tracer import Tracer
from tests.trace import pasted
from tests.trace.engines import at, engine, sending
from tests.trace.recordings import library, logs

# Began, and went well, and neither its end nor anything of the room after it was written.
STARTED, UNSEEN = 7559917390727085, 3279064760654642
FULL = re.compile(r"\[2026-11-21 21:16:(29|3\d|4[0-2])\]")
SINCE = dt.datetime(2026, 11, 21, 21, 16, 28, tzinfo=dt.timezone.utc).timestamp()


def full_disk(folder: Path) -> tuple[list[str], dict[str, int]]:
    """The logs of a deployment that served while its disk was full for 13 seconds, and the lines each lost."""
    paths, lost = [], {}
    for path in map(Path, logs("pdctl-slow-transfer")):
        lines = path.read_text().splitlines()
        missing = [number for number, line in enumerate(lines) if FULL.match(line)]
        word = f"[2026-11-21 21:16:43.020] WARNING {len(missing)} lines of this log could not be written since "
        lines[missing[0] : missing[-1] + 1] = ["", f"{word}2026-11-21 21:16:29: No space left on device"]
        file = folder / path.name
        file.write_text("\n".join(lines) + "\n")
        paths.append(str(file))
        lost[path.stem] = len(missing)
    return paths, lost


def test_logs_that_lack_lines_prove_nothing_fine(tmp_path: Path) -> None:
    paths, lost = full_disk(tmp_path)
    found = diagnose(library(paths))
    assert {one.instance: one.lines for one in found.lost_lines} == lost
    assert not found.wrong
    assert exit_code(found) is ExitCode.NOT_PROBED
    assert document(found)["verdict"] == "unknown"
    told = [one.what for one in found.unknowns]
    for name, number in lost.items():
        assert any(
            f"{number} lines of {name} between 2026-11-21 21:16:29 and 2026-11-21 21:16:43" in one for one in told
        )


def test_a_room_around_them_is_incomplete(tmp_path: Path) -> None:
    paths, _ = full_disk(tmp_path)
    outcomes = {one.room: one.outcome for one in room_summaries(Tracer(library(paths)))}
    assert outcomes.pop(STARTED) is RoomOutcome.INCOMPLETE
    assert UNSEEN not in outcomes
    assert set(outcomes.values()) == {RoomOutcome.OK}
    room = Tracer(library(paths)).trace(STARTED)
    assert (room.outcome, room.cause) == (RoomOutcome.INCOMPLETE, None)
    assert any("could not be written" in one.what for one in room.missing_evidence)
    assert any("lines of decode-0 between" in one for one in ListNotes(Tracer(library(paths))).lines(listed=True))


def test_a_period_before_the_line_that_reports_them_lacks_them_too(tmp_path: Path) -> None:
    paths, lost = full_disk(tmp_path)
    zone = dt.timezone.utc
    whole, before = (Library(open_logs(paths), tz=zone, until=SINCE + s, index=False) for s in (5.0, -1.0))
    assert {one.instance for one in diagnose(whole).lost_lines} == set(lost)
    assert diagnose(before).lost_lines == ()


def test_a_count_of_pending_requests_hangs_no_room_whose_end_may_be_lost(tmp_path: Path) -> None:
    """A shutdown with one request left, of one room without an end: that room, unless lines are missing."""
    room = 4079256317657669
    drained = (
        f"{at(500)} Gracefully exiting... Remaining number of requests 1. Remaining requests "
        "remaining_rids=['ba39cd33fbb6432d9bfa3c9c3bde30ef']."
    )
    lost = f"{at(30)} WARNING 4 lines of this log could not be written since {at(9)[1:-1]}: No space left on device"
    for name, lines, outcome in (
        ("whole", (sending(8, room), drained), RoomOutcome.HUNG),
        ("lacking", (sending(8, room), lost, drained), RoomOutcome.INCOMPLETE),
    ):
        found = pasted.room(tmp_path / name, room, decode=engine("decode", 30001, 8999, *lines, until=600))
        assert found.outcome is outcome
