"""`pdctl diagnose` as a user types it, and the other verbs over logs they must not keep silent about."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import jsonschema
import pytest

from pdctl.launch import preflight, storage
from pdctl.launch.run_opening import open_run
from pdctl.launch.run_record import RunOutcome, State
from pdctl.logs.collector_format import without_colour
from tests.cases import for_each
from tests.cli.verb import BROKEN, DATA, FAILED, Verb, shell, within
from tests.launch.conftest import DEADLINE, QUICK, deploy
from tests.logs import merged
from tests.ports import free_block

if TYPE_CHECKING:
    from pathlib import Path

HEALTHY = DATA / "2p1d-healthy-debug-sgl058"
KILLED, CRASHED, QUIET = (
    DATA / "1p1d-decode-killed-debug-sgl058", DATA / "1p1d-dp-attention-crash-debug-sgl058",
    DATA / "2p1d-healthy-info-sgl0523",
)  # fmt: skip
LINE = {"type": "object", "required": ["instance", "file", "line", "text", "says"]}
ROOM_IDS = {"type": "array", "items": {"type": "string", "pattern": "^[0-9]+$"}}
SCHEMA = {
    "type": "object",
    "required": ["schema", "verdict", "deaths", "findings", "remarks", "rooms", "unknowns", "sources", "notes"],
    "properties": {
        "schema": {"const": "pdctl.diagnose/1"},
        "verdict": {"enum": ["wrong", "fine", "unknown"]},
        "deaths": {
            "items": {
                "required": [
                    "instance", "role", "since", "at", "time", "code", "slug", "why", "room_ids", "evidence", "fix",
                ],
                "properties": {
                    "code": {"pattern": "^PD[0-9]{3}$"}, "room_ids": ROOM_IDS,
                    "evidence": {"items": LINE, "minItems": 1},
                },
            }
        },
        "findings": {
            "items": {
                "required": ["code", "slug", "headline", "why", "instance", "grave", "room_ids", "evidence", "fix"],
                "properties": {"code": {"pattern": "^PD[0-9]{3}$"}, "room_ids": ROOM_IDS},
            }
        },
        "unknowns": {"items": {"required": ["what", "enable_with"]}},
        "sources": {"items": {"required": ["instance", "kind", "role", "files", "lines", "bytes", "said"]}},
    },
}  # fmt: skip


def test_a_killed_decode_is_named_with_time_room_and_line(verb: Verb) -> None:
    assert verb("diagnose", KILLED, "--tz", "UTC") == 1
    assert "decode0 (decode) died between 2026-11-21 01:36:41 and 2026-11-21 01:36:47" in verb.out
    assert "1 room (7179054193972827371)" in verb.out
    assert f"{KILLED}/decode0.log:83" in verb.out


@pytest.mark.parametrize(("logs", "code"), [(KILLED, 1), (QUIET, 0), (BROKEN, 1)], ids=lambda each: str(each)[-20:])
def test_every_form_ends_with_the_same_code_and_keeps_the_contract(logs: Path, code: int, verb: Verb) -> None:
    assert verb("diagnose", logs) == code
    assert verb("diagnose", logs, "-o", "json") == code
    told = json.loads(verb.out)
    jsonschema.validate(told, SCHEMA)
    assert verb("diagnose", logs, "-o", "jsonl") == code
    lines = [json.loads(line) for line in verb.out.splitlines()]
    assert lines[0]["part"] == "verdict"
    assert sum(line["part"] == "source" for line in lines) == len(told["sources"])


def test_nothing_known_is_neither_fine_nor_wrong(verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "nginx.log").write_text("10.0.0.9 GET / 200\n" * 50)
    assert verb("diagnose", tmp_path) == 4
    assert "another program's log" in verb.out
    for line, is_json in (("[2026-01-01 00:00:00] x\n", False), ('{"log": "x"}\n', True), ('[{"log": "x"}]\n', True)):
        (tmp_path / "nginx.log").write_text(line * 50)
        assert verb("diagnose", tmp_path) == 4
        assert ("JSON in which" in verb.out) == is_json, line
    assert verb("diagnose", tmp_path / "nowhere") == 2
    assert verb("diagnose", "--run", "green") == 5


def test_a_router_beside_logs_nobody_could_read_is_not_fine(verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "router.log.gz").write_bytes((HEALTHY / "router.log.gz").read_bytes())
    (tmp_path / "pods.log").write_text("10.0.0.9 GET / 200\n" * 50)
    assert verb("diagnose", tmp_path) == 4
    assert "nothing wrong" not in verb.out
    assert "a router's log alone was understood, not pods" in verb.out


def test_what_was_not_understood_stands_beside_the_good_news(verb: Verb, tmp_path: Path) -> None:
    for path in HEALTHY.glob("*.log*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "nginx.log").write_text("10.0.0.9 GET / 200\n" * 50)
    assert verb("diagnose", tmp_path) == 0
    assert "nothing wrong was found in the logs that were understood; not understood: nginx" in verb.out
    assert "no line of the 50 looked at" in verb.out


def test_several_deployments_in_one_directory_are_judged_one_by_one(verb: Verb, tmp_path: Path) -> None:
    """Two copies of a decode that was killed, merged, were one that nobody misses: nothing wrong was found."""
    for name in ("first", "the second"):
        shutil.copytree(KILLED, tmp_path / name)
    shutil.copytree(QUIET, tmp_path / "third")
    assert verb("diagnose", tmp_path) == 1
    lines = verb.out.splitlines()
    assert lines[0].startswith(
        "3 deployments, by their directories and times, each judged by itself: 2 with something wrong, 1 "
    )
    for name, said in (("first", "decode0 died"), ("the second", "decode0 died"), ("third", "nothing wrong was found")):
        assert any(line.endswith(f" {tmp_path}/{name}: {said}") for line in lines), name
    assert sum(line.startswith("✗ decode0 (decode) died between") for line in lines) == 2
    assert verb("diagnose", tmp_path, "-o", "json") == 1
    told = json.loads(verb.out)
    jsonschema.validate(told, SCHEMA)
    assert [each["verdict"] for each in told["deployments"]] == ["wrong", "wrong", "fine"]
    assert [(each["deployment"], each["instance"]) for each in told["deaths"]] == [
        (f"{tmp_path}/{name}", "decode0") for name in ("first", "the second")
    ]
    assert verb("diagnose", tmp_path, "-o", "jsonl") == 1
    parts = [json.loads(line) for line in verb.out.splitlines()]
    assert [part["deployment"] for part in parts if part["part"] == "death"] == [
        each["deployment"] for each in told["deaths"]
    ]
    for asked in (("rooms",), ("trace-room", "7179054193972827371")):
        verb(*asked, tmp_path)
        said = " ".join(asked)
        assert "these are the logs of 3 deployments by their directories and times" in verb.err
        assert f"pdctl {said} {tmp_path}/first; pdctl {said} '{tmp_path}/the second'" in verb.err
        verb(*asked, tmp_path / "first")
        assert "deployments" not in verb.err


def test_logs_that_contradict_each_other_get_no_tick(verb: Verb, tmp_path: Path) -> None:
    """Copies in one directory: which of them others mean cannot be told."""
    for path in KILLED.glob("*.log*"):
        shutil.copy(path, tmp_path / path.name)
        shutil.copy(path, tmp_path / f"copy-{path.name}")
    assert verb("diagnose", tmp_path) == 4
    assert "✓" not in verb.out
    assert "these logs cannot be judged together: " in verb.out
    assert "are logs of two processes at 127.0.0.1:" in verb.out
    assert verb("diagnose", tmp_path, "-o", "json") == 4
    assert json.loads(verb.out)["verdict"] == "unknown"
    for asked in (("rooms",), ("trace-room", "7179054193972827371")):
        verb(*asked, tmp_path)
        assert "what follows may be wrong: " in verb.err


def test_other_rooms_are_not_denied_where_one_is_not_named(verb: Verb) -> None:
    assert verb("trace-room", "123", HEALTHY) == 5
    assert "no line of these logs names room 123" in verb.err
    assert "names a room" not in verb.err


def test_no_verb_is_silent_over_the_logs_of_a_crash(verb: Verb) -> None:
    assert verb("rooms", CRASHED) == 1
    assert "prefill0 died: `pdctl diagnose`" in verb.err
    assert verb("trace-room", "--last-failed", CRASHED) == 5
    assert "prefill0 died" in verb.err
    assert "pdctl diagnose" in verb.err
    assert verb("rooms", KILLED) == 0
    assert "decode0 died: `pdctl diagnose`" in verb.err


def test_no_verb_is_silent_where_healthy_rooms_leave_no_line(verb: Verb) -> None:
    assert verb("rooms", QUIET) == 0
    assert "no line names a room" in verb.err
    assert "--log-requests" in verb.err


def test_no_verb_is_silent_over_what_is_no_log(verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "core.log").write_bytes(bytes(range(256)) * 300)
    assert verb("rooms", tmp_path) == 4
    assert "binary" in verb.err
    for argv in (("--last-failed",), ("123456789012",)):
        assert verb("trace-room", *argv, tmp_path) == 5
        assert "binary" in verb.err


def test_a_file_that_was_not_read_is_not_called_empty(verb: Verb, tmp_path: Path) -> None:
    with (tmp_path / "sparse.log").open("wb") as file:
        file.truncate(1 << 40)
    verb("diagnose", tmp_path / "sparse.log")
    assert "  sparse: it was not read (see the note)\n" in verb.out
    assert ": it was not read\n" in verb.out + verb.err
    assert "wrote nothing" not in verb.out


def test_a_rid_where_a_room_is_expected_is_understood(verb: Verb) -> None:
    assert verb("trace-room", "67bb508ed39b4c6c9db20b4beddf121a", BROKEN, "-o", "json") == 1
    told = json.loads(verb.out)
    assert told["room_id"] == FAILED == str(told["room"])
    assert verb("rooms", BROKEN, "-o", "jsonl") == 0
    for line in map(json.loads, verb.out.splitlines()):
        assert line["room_id"] == str(line["room"])


def test_a_pipe_is_diagnosed(tmp_path: Path) -> None:
    with (DATA / "1p1d-page-size-debug-sgl058" / "decode0.log").open("rb") as log:
        asked = shell("diagnose", "-", cache=tmp_path, stdin=log)
        out, err = asked.communicate(timeout=DEADLINE)
    assert asked.returncode == 1, err
    assert "Page size mismatch" in out
    assert isinstance(asked, subprocess.Popen)


def test_every_verb_reads_a_merged_stream(verb: Verb, tmp_path: Path) -> None:
    stream = tmp_path / "all.log"
    stream.write_text(merged.kubectl(merged.read(sorted(str(path) for path in BROKEN.glob("*.log*")))))
    assert verb("trace-room", FAILED, stream, "-o", "json") == 1
    told = json.loads(verb.out)
    assert (told["prefill_requested"], told["prefill_contacted"]) == ("prefill1", "prefill0")
    assert {event["file"] for event in told["events"]} == {str(stream)}
    lines = without_colour(stream.read_bytes()).decode().split("\n")
    assert all(event["text"][:40] in lines[event["line"] - 1] for event in told["events"])
    assert verb("rooms", stream, "-o", "json", "--build-index") == 0
    assert {room["cause"] for room in json.loads(verb.out)["rooms"]} == {"PD201", None}
    assert verb("dialect", "check", stream, "-o", "json") == 0
    assert {log["instance"] for log in json.loads(verb.out)["logs"]} == {"decode0", "prefill0", "prefill1", "router"}
    assert verb("trace-room", "123456789012", CRASHED) == 5
    assert "prefill0 died" in verb.err


@for_each("argv", [("diagnose",), ("rooms",), ("trace-room", "5"), ("dialect", "check")])
def test_an_empty_path_is_not_read_as_this_directory(
    verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    """`pdctl diagnose "$LOGS"` with the variable unset."""
    shutil.copy(HEALTHY / "decode0.log", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert verb(*argv, "") == 2
    assert "a path is empty" in verb.err


def test_a_run_is_diagnosed_by_name_or_as_the_latest(verb: Verb, tmp_path: Path) -> None:
    opened = open_run(tmp_path / "home", "blue", deploy(), QUICK, check=preflight.check, argv=("pdctl", "launch"))
    os.close(opened.lock)
    for name in ("prefill-0", "decode-0", "router"):
        shutil.copy(DATA / "pdctl-killed-decode" / f"{name}.log", opened.directory.log(name))
    opened.directory.save(replace(opened.run, state=State.STOPPED))
    for argv in ((), ("--run", "blue")):
        assert verb("diagnose", *argv, "-o", "json") == 1
        told = json.loads(verb.out)
        assert [(death["instance"], death["code"], len(death["room_ids"])) for death in told["deaths"]] == [
            ("decode-0", "PD704", 2)
        ]


def test_nothing_is_called_fine_where_lines_of_the_run_were_lost(verb: Verb, tmp_path: Path) -> None:
    """The supervisor's notice says so: what was written looks healthy."""
    opened = open_run(tmp_path / "home", "blue", deploy(), QUICK, check=preflight.check, argv=("pdctl", "launch"))
    os.close(opened.lock)
    for log, name in (("prefill0", "prefill-0"), ("decode0", "decode-0")):
        shutil.copy(HEALTHY / f"{log}.log", opened.directory.log(name))
    opened.directory.save(replace(opened.run, state=State.STOPPED))
    assert verb("diagnose", "--run", "blue") == 0
    storage.write(opened.directory.path, storage.Notice(1.0, "No space left on device", "/var/log/pdctl"))
    assert verb("diagnose", "--run", "blue") == 4
    assert "nothing wrong was found in what was written" in verb.out
    assert "No space left on device (/var/log/pdctl)" in without_colour(verb.out.encode()).decode()
    # How it failed is known, though no log could tell.
    why = RunOutcome("router was killed by SIGKILL 3.0 s after it became ready", code=1)
    opened.directory.save(replace(opened.run, state=State.FAILED, outcome=why))
    assert verb("diagnose", "--run", "blue") == 1
    assert verb.out.startswith("✗ run blue failed: router was killed by SIGKILL")


def test_a_router_that_found_no_pair_is_quoted_where_nothing_was_answered(verb: Verb, tmp_path: Path) -> None:
    """Usual while a deployment starts, so no finding; but it is what is known of the requests there were."""
    (tmp_path / "router.log").write_text(
        '2026-11-21 01:20:06 ERROR http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-5WSNt6aJlxw98QRXn9UKtFaB"}: smg::routers::http::pd_router: src/routers/http/pd_router.rs:170: '
        "Failed to select PD pair error=No prefill workers available. Please check if prefill servers are configured.\n"
    )
    assert verb("diagnose", tmp_path / "router.log") == 4
    assert "No prefill workers available" in verb.out.split("\n\n")[0]


def test_of_a_start_that_failed_nobody_whom_launch_ended_is_a_cause(tmp_path: Path) -> None:
    """No instance can start with 64 descriptors. The first to say so ends the start, and with it the others."""
    first = free_block(6)  # three of HTTP, two bootstrap ports, one of the router
    words = [f"--set ports.http={first}", f"--set ports.bootstrap={first + 3}", f"--set router.port={first + 5}"]
    start = f"ulimit -n 64; exec {shlex.quote(sys.executable)} -m pdctl launch 2p1d --name few {' '.join(words)}"
    env = {**os.environ, "PDCTL_HOME": str(tmp_path)}
    launched = subprocess.run(["sh", "-c", start], env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert launched.returncode == 1, launched.stderr
    found = within("diagnose", "--run", "few", "-o", "json", env=env)
    assert found.returncode == 1
    told = json.loads(found.stdout)
    ended = {
        line["subject"]: line["detail"]
        for line in json.loads((tmp_path / "runs/few/run.json").read_text())["events"]
        if line["kind"] in ("died", "stopped")
    }
    failed = {name for name, detail in ended.items() if detail == "left with exit code 1"}
    assert failed, ended
    assert {death["instance"] for death in told["deaths"]} == failed
    assert all("the hard limit of open files is 64" in death["why"] for death in told["deaths"])
    assert all(death["fix"].startswith("ulimit -n 65536 ") for death in told["deaths"])
    assert "router" not in json.dumps(told["unknowns"]), "its launch ended before there was one"
    for name in ended.keys() - failed:
        assert any(note.startswith("no cause: ") and name in note for note in told["notes"]), name
