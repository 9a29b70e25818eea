"""trace-room and rooms as a user types them, on logs of real SGLang."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from pdctl.cli.trace_room import RoomForm
from pdctl.launch import preflight
from pdctl.launch.run_opening import open_run
from pdctl.launch.run_record import State
from tests.cli.verb import BROKEN, DATA, FAILED, FINE, Verb, shell
from tests.launch.conftest import DEADLINE, QUICK, deploy
from tests.render.trace.schema import SCHEMA


@pytest.mark.parametrize("form", list(RoomForm), ids=lambda form: form.value)
@pytest.mark.parametrize(("room", "code"), [(FAILED, 1), (FINE, 0), ("123456789012", 5)])
def test_every_form_ends_with_the_same_code(form: RoomForm, room: str, code: int, verb: Verb) -> None:
    assert verb("trace-room", room, BROKEN, "-o", form.value) == code
    assert verb.out
    assert ("no line of these logs names room 123456789012" in verb.err) == (code == 5)


def test_every_verb_says_which_log_was_left_out(tmp_path: Path, verb: Verb) -> None:
    for log in BROKEN.glob("*.log*"):
        shutil.copy(log, tmp_path)
    (tmp_path / "prefill2.log").write_text("INFO a log of another machine\n", "utf-16")
    left_out = f"{tmp_path}/prefill2.log is UTF-16, not UTF-8: it was left out"
    for words in (["rooms"], ["trace-room", FINE], ["trace-room", "123456789012"], ["trace-room", "--rid", "nobody"]):
        verb(*words, tmp_path, "--no-index")
        said = [line.partition("note")[2].removeprefix(":").strip() for line in (verb.out + verb.err).splitlines()]
        assert said.count(left_out) == 1, words


@pytest.mark.parametrize(("typed", "read"), [("abc", "2748 (`abc` read as hex)"), ("0x1F", "31 (`0x1F` read as hex)")])
def test_a_room_no_line_names_is_said_first_and_how_it_was_read(typed: str, read: str, verb: Verb) -> None:
    assert verb("trace-room", typed, BROKEN) == 5
    lines = verb.out.splitlines()
    assert lines[0] == f"no line of these logs names room {read}"
    assert len(lines) < 8
    assert f"no line of these logs names room {read}" in verb.err


def test_that_no_line_names_it_comes_before_why_that_may_be() -> None:
    """On a terminal both streams are one."""
    command = [sys.executable, "-m", "pdctl", "trace-room", "123456789012", str(DATA / "pdctl-killed-decode")]
    seen = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
    lines = seen.stdout.splitlines()
    assert lines[0] == "no line of these logs names room 123456789012"
    assert any(line.startswith("note: decode-0 died") for line in lines[1:])


def test_the_seed_incident_is_named_and_its_fix_is_one_line(verb: Verb) -> None:
    assert verb("trace-room", FAILED, BROKEN, "--tz", "UTC") == 1
    lines = verb.out.splitlines()
    assert lines[0] == f"room {FAILED}  0x46ee530dd613d2ce  ✗ failed"
    assert lines[1] == "prefill1 → decode0, 2026-11-21 01:34:20 – 01:34:40 UTC, in whole seconds"
    assert [line for line in lines if line.startswith("✗ PD201 bootstrap-port-null: ")]
    (fix,) = (line for line in lines if line.startswith("fix: "))
    assert "--prefill http://127.0.0.1:30000 8998 --prefill http://127.0.0.1:30001 8999" in fix
    assert [line for line in lines if "TransferInfo ─▶ prefill0" in line]


def test_hex_and_decimal_are_one_room(verb: Verb) -> None:
    verb("trace-room", FAILED, BROKEN, "-o", "json")
    decimal = json.loads(verb.out)
    verb("trace-room", "46ee530dd613d2ce", BROKEN, "-o", "json")
    assert json.loads(verb.out) == decimal
    jsonschema.validate(decimal, SCHEMA)


def test_the_answer_goes_to_a_file_and_the_cost_to_stderr(verb: Verb, tmp_path: Path) -> None:
    page = tmp_path / "room.html"
    assert verb("trace-room", FAILED, BROKEN, "-o", "html", "--output-file", page, "-v") == 1
    assert verb.out == ""
    assert re.fullmatch(r"4 logs of [\d.]+ kB, answered in [\d.]+ m?s: [\d.]+ kB read .* lines hit.*\n", verb.err)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_window_in_time_leaves_out_the_rest(verb: Verb) -> None:
    assert verb("trace-room", FAILED, BROKEN, "--tz", "UTC", "--until", "2026-11-21T01:34:30", "-o", "json") in (1, 4)
    phases = {event["phase"] for event in json.loads(verb.out)["events"]}
    assert "handshake" in phases
    assert "timed_out" not in phases
    assert verb("trace-room", FAILED, BROKEN, "--tz", "UTC", "--since", "-1s") == 5
    assert verb("trace-room", FAILED, BROKEN, "--since", "01:35:00", "--until", "01:34:00", "--tz", "UTC") == 2


@pytest.mark.parametrize(
    "argv",
    [
        ("no-room", BROKEN),
        (FAILED, BROKEN / "prefil0.log"),
        (FAILED, BROKEN, "--run", "blue"),
        (FAILED, BROKEN, "--tz", "Mars"),
        (FAILED, BROKEN, "--rid", "x", "--slowest", "3"),
        ("--slowest", "3", BROKEN, "-o", "mermaid"),
        (FAILED, "-", "--follow"),
        ("--last-failed", BROKEN, "--follow"),
        (),
    ],
    ids=lambda argv: " ".join(str(word) for word in argv).replace(str(DATA), ""),
)
def test_what_cannot_be_ends_with_2_and_a_way_out(argv: tuple[str | Path, ...], verb: Verb) -> None:
    assert verb("trace-room", *argv) == 2
    assert verb.out == ""
    assert re.search(r"\nerror: .*\n  fix: ", "\n" + verb.err)


@pytest.mark.parametrize("named", [True, False])
def test_paths_are_as_they_were_typed_or_within_the_run(verb: Verb, tmp_path: Path, named: bool) -> None:
    opened = open_run(tmp_path / "home", "blue", deploy(), QUICK, check=preflight.check, argv=("pdctl", "launch"))
    for name, source in (("prefill-0", "prefill0.log"), ("decode-0", "decode0.log")):
        shutil.copy(BROKEN / source, opened.directory.log(name))
    opened.directory.save(replace(opened.run, state=State.STOPPED))
    for form in ("text", "json", "jsonl", "mermaid", "perfetto", "html"):
        assert verb("trace-room", FINE, *(("--run", "blue") if named else ()), "-o", form) in (0, 4)
        assert str(tmp_path) not in verb.out
        assert "blue/logs/decode-0.log" in verb.out or form == "mermaid"


def test_the_lanes_of_a_run_have_its_names(verb: Verb, tmp_path: Path) -> None:
    opened = open_run(tmp_path / "home", "blue", deploy(), QUICK, check=preflight.check, argv=("pdctl", "launch"))
    os.close(opened.lock)
    for name, source in (("prefill-0", "prefill0.log"), ("decode-0", "decode0.log")):
        shutil.copy(BROKEN / source, opened.directory.log(name))
    assert verb("trace-room", FINE, "--run", "blue", "-o", "json") in (0, 4)
    assert json.loads(verb.out)["decode"] == "decode-0"
    opened.directory.save(replace(opened.run, state=State.STOPPED))
    assert verb("trace-room", FINE, "-o", "json") in (0, 4)  # the latest run, none being alive
    assert verb("trace-room", FINE, "--run", "green") == 5


def test_a_log_may_come_through_a_pipe(tmp_path: Path) -> None:
    with (BROKEN / "decode0.log").open("rb") as log:
        asked = shell("trace-room", FAILED, "-", BROKEN / "prefill0.log", "-o", "json", cache=tmp_path, stdin=log)
        out, err = asked.communicate(timeout=DEADLINE)
    assert asked.returncode == 1, err
    told = json.loads(out)
    assert {event["file"] for event in told["events"] if event["instance"] == "stdin"} == {"stdin"}
    assert told["prefill_contacted"] == "prefill0"


def grow(log: Path, source: Path, room: str, upto: int) -> None:
    """What `source` had written when its line number `upto` was there."""
    lines = source.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    assert any(room in line for line in lines[:upto])
    log.write_text("".join(lines[:upto]), encoding="utf-8")


def test_a_room_is_followed_to_its_end(tmp_path: Path) -> None:
    log = tmp_path / "decode0.log"
    grow(log, BROKEN / "decode0.log", FAILED, 70)
    asked = shell("trace-room", FAILED, log, "--follow", "--timeout", "60s", "--tz", "UTC", cache=tmp_path)
    assert asked.stdout is not None
    first = asked.stdout.readline()
    assert "handshake" in first
    assert f"bootstrap room {FAILED}" in first
    shutil.copy(BROKEN / "decode0.log", log)
    rest, err = asked.communicate(timeout=DEADLINE)
    assert asked.returncode == 1, err
    assert rest.count(f"Request {FAILED} waiting_timeout") >= 1
    assert f"room {FAILED}" in rest
    assert "✗ failed" in rest


def test_a_room_is_not_followed_for_a_reader_that_left(tmp_path: Path) -> None:
    log = tmp_path / "decode0.log"
    grow(log, BROKEN / "decode0.log", FAILED, 70)
    asked = shell("trace-room", FAILED, log, "--follow", cache=tmp_path)
    assert asked.stdout is not None
    assert asked.stdout.readline()
    asked.stdout.close()
    with asked:
        try:
            assert asked.wait(timeout=DEADLINE) == 0
        finally:
            asked.kill()


def test_ctrl_c_shows_what_is_known_and_ends_by_the_signal(tmp_path: Path) -> None:
    log = tmp_path / "decode0.log"
    grow(log, BROKEN / "decode0.log", FAILED, 70)
    asked = shell("trace-room", FAILED, log, "--follow", cache=tmp_path)
    assert asked.stdout is not None
    asked.stdout.readline()
    asked.send_signal(signal.SIGINT)
    rest, _ = asked.communicate(timeout=DEADLINE)
    assert asked.returncode == -signal.SIGINT
    assert f"room {FAILED}" in rest


def test_a_room_nobody_names_is_waited_for_until_the_deadline(verb: Verb) -> None:
    assert verb("trace-room", "123456789012", BROKEN, "--follow", "--timeout", "10ms") == 5
    assert "no line named 123456789012 within 0.01 s" in verb.err


def test_rooms_can_index_every_room_of_every_log(verb: Verb, tmp_path: Path) -> None:
    assert verb("rooms", BROKEN, "--no-index") == 0
    assert not list((tmp_path / "cache").rglob("*.rooms"))
    assert verb("rooms", BROKEN, "--build-index") == 0
    assert len(list((tmp_path / "cache").rglob("*.rooms"))) == len(list(BROKEN.glob("*.log*")))
    assert verb("trace-room", FAILED, BROKEN) == 1


def test_rooms_lists_them_with_pair_phase_outcome_and_cause(verb: Verb) -> None:
    assert verb("rooms", BROKEN, "--tz", "UTC") == 0
    head, *rows = (line.split("\t") for line in verb.out.splitlines())
    assert head[0] == "room"
    told = {row[0]: row[1:] for row in rows}
    assert set(told) == {FAILED, FINE, "691649334573594741", "8454906648683667359"}
    assert told[FAILED] == ["2026-11-21T01:34:20.000Z", "prefill1", "decode0", "handshake", "20", "failed", "PD201", ""]
    assert told[FINE][-3:] == ["ok", "", ""]


@pytest.mark.parametrize(
    ("argv", "left"),
    [
        (("--outcome", "failed"), 2),
        (("--filter", "cause=PD2*", "--prefill", "prefill1"), 2),
        (("--prefill", "prefill0"), 2),
        (("--decode", "decode1"), 0),
        (("--min-duration", "15s"), 2),
        (("--limit", "1"), 1),
        (("--since", "01:35:30", "--tz", "UTC"), 1),
    ],
    ids=lambda argv: " ".join(argv) if isinstance(argv, tuple) else str(argv),
)
def test_rooms_can_be_chosen(argv: tuple[str, ...], left: int, verb: Verb) -> None:
    assert verb("rooms", BROKEN, "-o", "json", *argv) == 0
    told = json.loads(verb.out)
    assert told["schema"] == "pdctl.rooms/1"
    assert len(told["rooms"]) == left


def test_rooms_can_be_ordered(verb: Verb) -> None:
    assert verb("rooms", BROKEN, "-o", "jsonl", "--sort", "duration", "--reverse") == 0
    rooms = [json.loads(line) for line in verb.out.splitlines()]
    assert [room["seconds"] for room in rooms] == sorted((room["seconds"] for room in rooms), reverse=True)
    assert rooms[0]["outcome"] == "failed"


def test_rooms_that_cannot_be_asked_for(verb: Verb) -> None:
    for argv in (("--filter", "colour=red"), ("--outcome", "great"), ("--min-duration", "long"), ("--run", "blue")):
        assert verb("rooms", BROKEN, *argv) == 2
        assert "fix: " in verb.err


def test_a_room_by_its_request_and_by_its_fate(verb: Verb) -> None:
    assert verb("trace-room", "--rid", "67bb508ed39b4c6c9db20b4beddf121a", BROKEN, "-o", "json") == 1
    assert json.loads(verb.out)["room"] == int(FAILED)
    assert verb("trace-room", "--last-failed", BROKEN, "-o", "json") == 1
    assert json.loads(verb.out)["room"] == 691649334573594741
    assert verb("trace-room", "--rid", "nobody", BROKEN) == 5
    assert verb("trace-room", "--last-failed", DATA / "2p1d-healthy-debug-sgl058") == 5


def test_several_rooms_one_after_the_other(verb: Verb) -> None:
    assert verb("trace-room", "--slowest", "2", BROKEN) == 1
    heads = [line.split()[1] for line in verb.out.splitlines() if line.startswith("room ")]
    assert heads == [FAILED, "691649334573594741"]
    assert verb("trace-room", "--slowest", "3", BROKEN, "-o", "json") == 1
    told = json.loads(verb.out)
    assert told["schema"] == "pdctl.room-list/1"
    assert [room["outcome"] for room in told["rooms"]][:2] == ["failed", "failed"]
    assert verb("trace-room", "--slowest", "3", BROKEN, "-o", "jsonl") == 1
    assert len(verb.out.splitlines()) == 3
    assert verb("trace-room", "--slowest", "2", BROKEN, "-o", "html") == 1
    assert verb.out.count('<section class="room">') == 2
