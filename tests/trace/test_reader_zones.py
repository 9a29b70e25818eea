"""Whatever the reader's zone is, the logs tell the same story."""

from __future__ import annotations

import datetime as dt
import gzip
import itertools
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pdctl.doctor.selection import Selection
from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.trace.diagnose import diagnose
from pdctl.trace.summaries import ListNotes, room_summaries
from pdctl.trace.tracer import Tracer
from tests.cli.verb import Verb
from tests.trace import recordings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pdctl.trace.deployment_report import Diagnosis
    from pdctl.trace.room import RoomSummary

READERS = ("Europe/Berlin", "Asia/Kathmandu", "America/New_York")
WITHOUT_PORTS = "2p1d-missing-ports-debug-sgl058"
WRITERS = [
    next(iter(re.findall("-(?:debug|info|mixed).*", scenario)), "pdctl") for scenario in recordings.SCENARIOS
]  # level and release of each recording
EACH = [
    pytest.param(scenario, zone, marks=[pytest.mark.heavy] if WRITERS[:at].count(WRITERS[at]) > 1 else [])
    for at, (scenario, zone) in enumerate(zip(recordings.SCENARIOS, itertools.cycle(READERS), strict=False))
]
STAMP = re.compile(r"(?<=\[)2026-11-2\d \d\d:\d\d:\d\d")
ACCESS = re.compile(r"(?<=\[)\d\d/Nov/2026:\d\d:\d\d:\d\d \+0000")


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    time.tzset()


def read_in(zone: str, paths: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    return Library(open_logs(list(paths)), index=False)


@pytest.mark.parametrize("zone", ["UTC-25", "UTC+24", "UTC-100DST"])
def test_a_zone_that_cannot_be_is_named(zone: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """POSIX lets TZ be a week from UTC; `datetime` takes less than a day."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    pdctl = Verb(capsys)
    logs = str(recordings.ROOMS / "2p1d-healthy-info-sgl0523")
    for verb in (("rooms",), ("diagnose",), ("trace-room", "1"), ("rooms", "--tz", "local")):
        assert pdctl(*verb, logs) == 2, pdctl.err
        assert f"this machine's time zone (TZ={zone}) is a day or more from UTC" in pdctl.err
        assert pdctl(*verb[: 2 - ("--tz" in verb)], logs, "--tz", "UTC") in (0, 1, 5), pdctl.err
        assert "bug" not in pdctl.err
    assert Selection().date


def told_rooms(rooms: Iterable[RoomSummary]) -> list[tuple[Any, ...]]:
    return sorted(
        (one.room, one.prefill, one.decode, str(one.phase_reached), one.seconds, one.outcome, one.code, one.at_least)
        for one in rooms
    )


def story(rooms: Iterable[RoomSummary], found: Diagnosis) -> tuple[Any, ...]:
    return (
        told_rooms(rooms),
        found.tally,
        [(one.code, one.headline, one.rooms, one.until - one.since) for one in found.findings if one.since],
        [(one.instance, one.code, one.at - one.since) for one in found.deaths],
    )


@pytest.mark.parametrize(("scenario", "zone"), EACH)
def test_every_reader_is_told_the_same(scenario: str, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each zone reads a third of the recordings. By default two of each release and level, and two of our own.

    What happened to the rooms changes no stamp; `-m heavy` for the others.
    """
    told = story(recordings.rows(scenario), recordings.diagnosis(scenario))
    library = read_in(zone, recordings.logs(scenario), monkeypatch)
    assert story(room_summaries(Tracer(library)), diagnose(library)) == told


def copied_east(hours: int, scenario: str, folder: Path, access: bool = True) -> list[str]:
    """The recording as engines write it whose hosts are that far east of UTC; the router writes UTC wherever it is."""
    away = dt.timedelta(hours=hours)

    def stamp(found: re.Match[str]) -> str:
        return (dt.datetime.fromisoformat(found[0]) + away).isoformat(" ")

    def clock(found: re.Match[str]) -> str:
        moment = dt.datetime.strptime(found[0], "%d/%b/%Y:%H:%M:%S %z") + away
        return moment.strftime("%d/%b/%Y:%H:%M:%S ") + f"+{hours:02}00"

    paths = []
    for path in map(Path, recordings.logs(scenario)):
        text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
        if not path.name.startswith("router"):
            lines = text.splitlines(keepends=True)
            text = "".join(line for line in lines if access or not ACCESS.search(line))
            text = STAMP.sub(stamp, ACCESS.sub(clock, text))
        copy = folder / path.name.removesuffix(".gz")
        copy.write_text(text)
        paths.append(str(copy))
    return paths


@pytest.mark.parametrize("access", [True, False])
def test_engines_in_one_zone_and_their_router_in_utc(
    access: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = told_rooms(recordings.rows(WITHOUT_PORTS))
    copies = copied_east(8, WITHOUT_PORTS, tmp_path, access)
    for zone in ("UTC", "America/New_York", "Asia/Shanghai"):
        assert told_rooms(room_summaries(Tracer(read_in(zone, copies, monkeypatch)))) == told, zone


def test_a_zone_that_is_not_the_readers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    library = read_in("Europe/Berlin", recordings.logs(WITHOUT_PORTS), monkeypatch)
    (note,) = library.zone_notes
    assert note.startswith("the logs' times are read as UTC, this machine's zone is UTC+01:00 (--tz overrules): ")
    assert all(name in note for name in ("prefill0", "prefill1", "decode0", "router"))
    room = next(iter(recordings.truth(WITHOUT_PORTS)))
    assert note in Tracer(library).trace(int(room)).notes
    assert note in diagnose(library).notes
    assert note in ListNotes(Tracer(library)).lines(listed=True)


def test_of_the_readers_own_zone_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_in("UTC", recordings.logs(WITHOUT_PORTS), monkeypatch).zone_notes == ()


def test_a_requested_zone_overrules_what_the_logs_show(monkeypatch: pytest.MonkeyPatch) -> None:
    east = dt.timezone(dt.timedelta(hours=8))
    library = Library(open_logs(recordings.logs(WITHOUT_PORTS)), tz=east, index=False)
    first, shown = library.first(), read_in("Europe/Berlin", recordings.logs(WITHOUT_PORTS), monkeypatch).first()
    assert library.zone_notes == ()
    assert first is not None
    assert shown is not None
    assert shown - first == 8 * 3600
