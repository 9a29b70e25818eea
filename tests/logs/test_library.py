from __future__ import annotations

import datetime as dt
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.logs import library as libraries
from pdctl.logs import room_index
from pdctl.logs.library import Library
from pdctl.logs.source import open_logs

MISSING_PORTS = "2p1d-missing-ports-debug-sgl0518"
Real = Callable[..., Library]


def rooms_of(name: str) -> list[int]:
    truth = Path(__file__).parent.parent / "data" / "rooms" / name / "truth.json"
    return [int(room) for room in json.loads(truth.read_text())["rooms"] if int(room)]


def test_a_room_is_found_on_every_side(real: Real) -> None:
    library = real(MISSING_PORTS)
    by_instance: dict[str, list[str]] = {}
    for event in library.of_room(8463976258232842567):
        by_instance.setdefault(event.instance, []).append(event.row.id)
    assert by_instance == {
        "decode0": ["transfer-info-sent", "abort-sent", "decode-transfer-timed-out"],
        "prefill0": ["transfer-info-arrived", "room-bootstrapped", "abort-received"],
        "prefill1": ["prefill-bootstrap-timed-out"],
    }


def test_the_second_time_nothing_is_scanned(real: Real) -> None:
    room = rooms_of(MISSING_PORTS)[0]
    first = real(MISSING_PORTS).of_room(room)
    again = real(MISSING_PORTS)
    assert again.of_room(room) == first
    assert again.stats.scanned == 0
    assert again.stats.remembered == len(again.logs)


@pytest.mark.parametrize("processes", [1, 2])
def test_with_the_index_no_room_needs_a_scan(real: Real, monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    plain = {room: real(MISSING_PORTS, index=False).of_room(room) for room in rooms_of(MISSING_PORTS)}
    if processes > 1:
        monkeypatch.setattr(room_index.scan, "PARALLEL", 0)
        monkeypatch.setattr(room_index.scan, "thread_count", lambda size: processes)
    assert not real(MISSING_PORTS).build_index()
    library = real(MISSING_PORTS)
    assert {room: library.of_room(room) for room in plain} == plain
    assert library.stats.looked_up == len(plain) * len(library.logs)


def test_a_request_is_found_in_one_instance_or_in_all(real: Real) -> None:
    library = real(MISSING_PORTS)
    (event, *_) = (event for event in library.of_room(8463976258232842567) if event.instance == "prefill1")
    assert event.rid
    ever = (float("-inf"), float("inf"))
    found = library.of_requests([event.rid, "another"], "prefill1", *ever)
    assert event in found
    assert all(each in library.of_rid(event.rid) for each in found)
    assert library.of_requests([event.rid], "decode0", *ever) == ()


def test_the_requests_of_large_logs_are_looked_for_near_their_time(tmp_path: Path, environ: dict[str, str]) -> None:
    """One query for all ids of an instance, and not from end to end of a log of days."""
    line = "[2026-11-21 {:02}:{:02}:00] Abort running request. req.rid='{}' {}"
    path = tmp_path / "decode0.log"
    path.write_text(
        "\n".join(
            line.format(n // 60, n % 60, "request-a" if n % 2 else "request-b", "x" * 13_000) for n in range(1400)
        )
    )
    library = Library(open_logs([str(path)]), tz=dt.timezone.utc, environ=environ)
    noon = dt.datetime(2026, 11, 21, 12, tzinfo=dt.timezone.utc).timestamp()
    found = library.of_requests(["request-a", "request-b"], "decode0", noon - 120, noon + 120)
    times = [event.t for event in found if event.t is not None]
    assert {noon + 60 * n for n in range(-2, 3)} <= set(times)
    assert max(times) - min(times) < 600
    assert library.stats.scanned < path.stat().st_size / 10


def test_the_hex_form_is_found_where_spans_are_exported(tmp_path: Path, environ: dict[str, str]) -> None:
    room = 2148025886387619708
    spans = '{"resourceSpans": [{"key": "bootstrap_room", "value": {"stringValue": "%s"}}]}\n'
    (tmp_path / "spans.log").write_text(spans % hex(room) + spans % "0x1")
    (tmp_path / "decode-0.log").write_text(
        f"[2026-11-21 02:02:26] Sending to prefill server with bootstrap room {room} is_dummy=False\n"
    )
    events = Library(open_logs([str(tmp_path)]), environ=environ).of_room(room)
    assert {(event.instance, event.place.line, event.row.id) for event in events} == {
        ("decode-0", 1, "transfer-info-sent"),
        ("spans", 1, ""),
    }


def test_starts_tell_what_each_process_was_started_with(real: Real) -> None:
    starts = real(MISSING_PORTS).starts
    kinds = {(event.instance, event.row.id) for event in starts}
    assert {("prefill0", "server-args"), ("decode0", "server-args"), ("router", "router-starting")} <= kinds


def test_a_later_start_in_the_same_file_is_found_too(tmp_path: Path, environ: dict[str, str]) -> None:
    start = "[2026-11-21 0%d:00:00] server_args=ServerArgs(model_path='m', disaggregation_mode='decode', port=30002)\n"
    traffic = '[2026-11-21 02:00:01] INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK\n' * 2000
    (tmp_path / "d.log").write_text(start % 1 + traffic + start % 3 + traffic)
    starts = Library(open_logs([str(tmp_path)]), tz=dt.timezone.utc, environ=environ).starts
    assert [event.t for event in starts if event.row.id == "server-args"] == [1795222800.0, 1795230000.0]
    assert len(starts) < 1000


@pytest.mark.parametrize(
    ("name", "instance", "clean", "crashed"),
    [
        (MISSING_PORTS, "decode0", True, False),
        (MISSING_PORTS, "router", True, False),
        ("1p1d-decode-killed-debug-sgl058", "decode0", False, False),
        ("1p1d-page-size-debug-sgl058", "decode0", False, True),
        ("1p1d-duplicate-room-debug-sgl058", "prefill0", False, True),
    ],
)
def test_ends_tell_an_order_from_a_crash_from_silence(
    real: Real, name: str, instance: str, clean: bool, crashed: bool
) -> None:
    end = real(name).ends[instance]
    assert (end.clean, end.crashed) == (clean, crashed)
    assert end.last is not None
    assert end.rows


def test_a_crash_is_found_behind_minutes_of_failing_health_checks(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "d.log").write_text(
        "[2026-11-21 02:00:00] Using regular tokenizer for 1 inputs\n"
        "[2026-11-21 02:12:44] Scheduler hit an exception: Traceback (most recent call last):\n"
        + "[2026-11-21 02:20:00] Health check failed. Server couldn't get a response from detokenizer\n"
        * 3000
    )
    end = Library(open_logs([str(tmp_path)]), environ=environ).ends["d"]
    assert (end.clean, end.crashed) == (False, True)
    assert (end.rows[0].row.id, end.rows[0].place.line) == ("scheduler-crashed", 2)


def test_a_small_context_is_everything(real: Real) -> None:
    library = real(MISSING_PORTS, tz=dt.timezone.utc)
    whole = library.context(float("-inf"), float("inf"))
    assert {event.instance for event in whole} == {"decode0", "prefill0", "prefill1", "router"}
    (first, *_) = (event for event in library.of_room(8463976258232842567) if event.t is not None)
    assert first.t is not None
    around = library.context(first.t, first.t + 1)
    assert first in around
    assert all(event.t is None or first.t - 1 <= event.t <= first.t + 1 for event in around)
    assert len(around) < len(whole)
    assert library.notes == ()


def test_a_context_that_is_too_long_is_cut_and_said_to_be(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "WHOLE", 0)
    monkeypatch.setattr(libraries, "LIMIT", 2000)
    library = real(MISSING_PORTS)
    cut = library.context(float("-inf"), float("inf"))
    assert len(cut) < len(real(MISSING_PORTS).context(float("-inf"), float("inf"), limit=1 << 40))
    assert sum("only 1 KiB were read" in note for note in library.notes) == len(library.logs)
    (first, *_) = library.of_room(8463976258232842567)
    assert first.t is not None
    assert first in library.context(float("-inf"), float("inf"), limit=8000, focus=(first.t, first.t))


def test_since_and_until_leave_the_rest_out(real: Real) -> None:
    every = real(MISSING_PORTS, tz=dt.timezone.utc).of_room(8463976258232842567)
    since = max(event.t for event in every if event.t is not None)
    late = real(MISSING_PORTS, tz=dt.timezone.utc, since=since).of_room(8463976258232842567)
    assert late == tuple(event for event in every if event.t is not None and event.t + event.uncertainty_s >= since)
    assert 0 < len(late) < len(every)
    assert real(MISSING_PORTS, tz=dt.timezone.utc, until=since - 1000).of_room(8463976258232842567) == ()


@pytest.mark.parametrize("junk", [bytes(30 << 20), b"\x80" * (30 << 20)], ids=["zeros", "no text"])
def test_a_file_that_is_no_log_does_no_harm(tmp_path: Path, environ: dict[str, str], junk: bytes) -> None:
    (tmp_path / "core.log").write_bytes(junk + b" room=2148025886387619708\n")
    library = Library(open_logs([str(tmp_path)]), environ=environ)
    (event,) = library.of_room(2148025886387619708)
    assert (event.row.id, event.t, event.place.offset) == ("", None, 0)
    assert library.starts == ()
    assert library.ends["core"].last is None
    assert library.context(0.0, 2e9) == ()
    assert list(library.rooms()) == []


def test_signatures_are_the_lines_with_a_cause(real: Real) -> None:
    library = real("1p1d-page-size-debug-sgl058")
    causes = {event.row.cause for event in library.signatures()}
    assert {"PD302", "PD709"} <= causes
    assert {event.row.cause for event in library.signatures("PD302")} == {"PD302"}


def test_compressed_rotated_and_plain_logs_tell_the_same(real: Real, tmp_path: Path, environ: dict[str, str]) -> None:
    library = real(MISSING_PORTS)
    for log in library.logs:
        (part,) = log.parts
        data = Path(part.path).read_bytes()
        data = gzip.decompress(data) if not part.plain else data
        lines = data.splitlines(keepends=True)
        (tmp_path / f"{log.instance}.log.1.gz").write_bytes(gzip.compress(b"".join(lines[: len(lines) // 2])))
        (tmp_path / f"{log.instance}.log").write_bytes(b"".join(lines[len(lines) // 2 :]))
    rotated = Library(open_logs([str(tmp_path)]), environ=environ)
    for room in rooms_of(MISSING_PORTS):
        one, other = library.of_room(room), rotated.of_room(room)
        assert [(e.instance, e.row.id, e.t, e.text) for e in one] == [
            (e.instance, e.row.id, e.t, e.text) for e in other
        ]


def test_pasted_excerpts_without_dates_share_one_day_and_say_so(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "decode.log").write_text(
        "[04:46:19 TP0] Sending to prefill server with bootstrap room 2148025886387619708 is_dummy=False\n"
    )
    (tmp_path / "prefill1.log").write_text("[04:46:20 TP0] room=2148025886387619708 is bootstrapped\n")
    library = Library(open_logs([str(tmp_path)]), environ=environ)
    first, second = library.of_room(2148025886387619708)
    assert first.t is not None
    assert second.t == first.t + 1
    assert (first.uncertainty_s, second.uncertainty_s) == (1.0, 1.0)
    assert any(note.startswith("decode, prefill1: lines carry no date") for note in library.notes)


def test_a_date_that_no_calendar_has_is_not_called_none(tmp_path: Path, environ: dict[str, str]) -> None:
    line = "room=2148025886387619708 is bootstrapped\n"
    (tmp_path / "prefill-0.log").write_text(f"[2026-02-30 10:00:00 TP0] {line}")
    library = Library(open_logs([str(tmp_path)]), environ=environ)
    (event,) = library.of_room(2148025886387619708)
    assert event.t is None
    assert library.notes == ()
    (tmp_path / "prefill-1.log").write_text(f"[10:00:00 TP0] {line}")
    library = Library(open_logs([str(tmp_path)]), environ=environ)
    library.of_room(2148025886387619708)
    (note,) = library.notes
    assert note.startswith("prefill-1: lines carry no date; taken to be of ")


def test_the_zone_is_the_one_asked_for_or_the_one_the_log_betrays(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "prefill.log").write_text(
        "[2026-11-21 04:00:00] room=2148025886387619708 is bootstrapped\n"
        '[2026-11-21 04:00:00] 127.0.0.1 [21/Nov/2026:04:00:00 +0200] "GET /health HTTP/1.1" 200 154 "-" "x"\n'
    )
    for tz, t in ((None, 1795226400.0), (dt.timezone.utc, 1795233600.0)):
        (event,) = Library(open_logs([str(tmp_path)]), tz=tz, environ=environ).of_room(2148025886387619708)
        assert event.t == t
