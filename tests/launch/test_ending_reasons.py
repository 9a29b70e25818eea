"""Ends and durations in words."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import pytest

from pdctl.doctor.live.running_engines import ended_instance
from pdctl.launch import ending_reasons, preflight, run_choice, run_directory, run_health
from pdctl.launch.run_opening import open_run
from pdctl.launch.run_record import EventKind, Exit, RunEvent, RunOutcome, State, with_process
from tests.cases import for_each
from tests.launch.conftest import QUICK, deploy


@for_each(
    ("exit", "words"),
    [
        (Exit(0, 0, 0.0), "left with exit code 0"),
        (Exit(127, 0, 0.0), "left with exit code 127 (the command cannot be found)"),
        (Exit(1, 0, 0.0, asked=True), "left with exit code 1 (after pdctl asked it to end)"),
        (Exit(0, 0, 0.0, asked=True), "left with exit code 0"),
        (Exit(0, 15, 0.0), "was killed by SIGTERM (from outside)"),
        (Exit(0, 15, 0.0, asked=True), "was killed by SIGTERM (pdctl ended it)"),
        (Exit(0, 6, 0.0, asked=True), "was killed by SIGABRT (it aborted itself, after pdctl asked it to end)"),
        (Exit(0, 3, 0.0, asked=True), "was killed by SIGQUIT (after pdctl asked it to end)"),
        (Exit(0, 99, 0.0, asked=True), "was killed by signal 99 (after pdctl asked it to end)"),
        (Exit(0, 9, 0.0), "was killed by SIGKILL (from outside, or OOM-killed: see dmesg)"),
        (Exit(0, 9, 0.0, asked=True), "was killed by SIGKILL (its own: it was asked to leave)"),
        (Exit(0, 9, 0.0, ours=True, asked=True), "was killed by SIGKILL (pdctl ended it)"),
        (Exit(0, 9, 0.0, ours=True), "was killed by SIGKILL (pdctl ended it)"),
        (Exit(0, 11, 0.0), "was killed by SIGSEGV (it crashed in native code)"),
        (Exit(0, 99, 0.0), "was killed by signal 99"),
    ],
)
def test_ends(exit: Exit, words: str) -> None:
    assert ending_reasons.in_words(exit) == words


@for_each(
    ("seconds", "text"),
    [(0.0412, "0.04 s"), (1.0, "1.0 s"), (99.94, "99.9 s"), (125, "2m05s"), (11220, "3h07m"), (352800, "4d02h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert ending_reasons.span(seconds) == text


def test_last_words_are_not_our_own_questions(tmp_path: Path) -> None:
    directory, run, lock = open_run(tmp_path, "blue", deploy(), QUICK, check=preflight.check, argv=())
    os.close(lock)
    question = '[2026-01-02 10:00:00] INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
    directory.log("decode-0").write_text("out of memory\n" + question * 3)
    assert ending_reasons.telling_lines(directory, run.process("decode-0"), 2) == ("out of memory",)


@pytest.mark.parametrize("ends", ending_reasons.ENDS)
def test_the_reason_given_for_an_end_is_found_behind_the_answers_of_its_clients(tmp_path: Path, ends: str) -> None:
    directory, run, lock = open_run(tmp_path, "blue", deploy(), QUICK, check=preflight.check, argv=())
    os.close(lock)
    why = "rank TP0 cannot go on: its thread kv-transfer-0 ended on KeyError: 7"
    answer = "[2026-01-02 10:00:01.001] Answered POST /generate with 503: The engine lost a rank\n"
    end = f"[2026-01-02 10:00:01.000] {ends}{why}{ending_reasons.START_AGAIN}\n"
    directory.log("decode-0").write_text("one\n" + end + answer * 50)
    assert ending_reasons.own_reason(directory, run.process("decode-0")) == why
    directory.log("decode-0").write_text(answer)
    assert ending_reasons.own_reason(directory, run.process("decode-0")) == ""


HEALTHY = (
    "[2026-11-23 02:55:24.740] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00, "
    "#running-req: 0, #queue-req: 0, #bootstrap-req: 0, #inflight-req: 1, input throughput (token/s): 228.29\n"
    '[2026-11-23 02:55:24.741] INFO:     127.0.0.1:39166 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
)
KILLED = Exit(0, 9, 9.0)


@pytest.mark.parametrize(
    ("exit", "log", "place", "fix"),
    [
        (KILLED, HEALTHY, "", ending_reasons.OOM),
        (KILLED, HEALTHY, "node-3", f"{ending_reasons.OOM}   # on node-3"),
        (KILLED, "MemoryError\n", "", ""),
        (Exit(0, 9, 9.0, ours=True), HEALTHY, "", ""),
        (Exit(0, 9, 9.0, lost="node-3 was lost"), HEALTHY, "", ""),
        (Exit(0, 11, 9.0), HEALTHY, "", ""),
    ],
)
def test_who_was_killed_without_a_line_is_looked_for_in_the_log_of_the_kernel(
    tmp_path: Path, exit: Exit, log: str, place: str, fix: str
) -> None:
    directory, run, lock = open_run(tmp_path, "blue", deploy(), QUICK, check=preflight.check, argv=())
    os.close(lock)
    directory.log("decode-0").write_text(log)
    killed = dataclasses.replace(run.process("decode-0"), exit=exit, place=place)
    (ended,) = run_health.ended(with_process(run, killed), directory)
    found = ended_instance(ended)
    assert (ended.fix, found.fix) == (fix, fix or f"tail -n 50 {ended.log}")


@pytest.mark.parametrize(
    ("exit", "log", "lines", "told"),
    [
        (
            KILLED,
            HEALTHY * 20,
            (),
            "Was it the OOM killer? Ask: sudo dmesg -T",
        ),
        (Exit(0, 11, 9.0), HEALTHY, (), "decode-0.log tells why."),
        (Exit(0, 9, 9.0, ours=True), HEALTHY, (), "decode-0.log tells why."),
        (
            Exit(1, 0, 9.0),
            HEALTHY + "Traceback (most recent call last):\nMemoryError\n" + HEALTHY,
            ("Traceback (most recent call last):", "MemoryError"),
            "",
        ),
        (
            Exit(1, 0, 9.0),
            "[2026-11-23 02:00:00.000] pdctl: decode-0 generation 1: python3 -m sglang.launch_server\nno such option\n",
            ("no such option",),
            "",
        ),
    ],
    ids=["killed", "segfault", "ours", "traceback", "usage"],
)
def test_only_lines_that_may_tell_why_are_shown(
    tmp_path: Path, exit: Exit, log: str, lines: tuple[str, ...], told: str
) -> None:
    directory, run, lock = open_run(tmp_path, "blue", deploy(), QUICK, check=preflight.check, argv=())
    os.close(lock)
    directory.log("decode-0").write_text(log)
    process = run.process("decode-0")
    assert ending_reasons.reasons(directory, process, exit) == lines
    said = ending_reasons.died(directory, process, exit, None, 0).message
    assert ("Prefill batch" in said, "POST /v1" in said) == (False, False)
    assert told in said
    ended = dataclasses.replace(run, state=State.FAILED, outcome=RunOutcome(said, 1))
    assert run_choice.describe_ended(ended) == f"failed: decode-0 {ending_reasons.in_words(exit)} before it was ready"


@for_each(
    ("line", "fix"),
    [
        ("parser.c:2040 UCX ERROR pthread_create() failed: Resource temporarily unavailable", "ulimit -u"),
        ("Resource temporarily unavailable (src/thread.cpp:241)", "ulimit -u"),
        ("sys.c:300 UCX ERROR Failed to write 65536 bytes. File too large", "ulimit -f"),
        ("RuntimeError: unable to mmap 512 bytes from file </dev/shm/x>: Cannot allocate memory (12)", "memory"),
        ("BlockingIOError: Resource temporarily unavailable", ""),
    ],
)
def test_a_limit_that_a_native_library_ran_into_is_named(tmp_path: Path, line: str, fix: str) -> None:
    directory, run, lock = open_run(tmp_path, "blue", deploy(), QUICK, check=preflight.check, argv=())
    os.close(lock)
    directory.log("decode-0").write_text(f"{line}\n")
    found = ending_reasons.died(directory, run.process("decode-0"), Exit(0, 6, time.time()), None, 0)
    assert line in found.message
    assert fix in found.fix
    assert bool(found.fix) == bool(fix)


STAMPS = ("2026-11-23 17:39:00.000", "2026-11-23 17:51:17.000", "2026-11-23 17:51:22.000")
DIED_AT = time.mktime(time.strptime("2026-11-23 17:51:23", "%Y-%m-%d %H:%M:%S"))
WARNINGS = tuple(f"[{stamp}] WARNING Worker prefill http://127.0.0.1:1 not routed to: refused" for stamp in STAMPS)
ERROR = f"[{STAMPS[1]}] RuntimeError: CUDA error: out of memory"

UNCAUGHT = (
    "Traceback (most recent call last):",
    '  File "/srv/run.py", line 1, in <module>',
    "ImportError: no such name",
)


@for_each(
    ("exit", "log", "shown"),
    [
        (Exit(0, 9, DIED_AT), WARNINGS, ()),
        (Exit(0, 9, DIED_AT), (*WARNINGS[:2], ERROR, WARNINGS[2]), (WARNINGS[1], ERROR, WARNINGS[2])),
        (Exit(0, 9, DIED_AT), (WARNINGS[0], "RuntimeError: long ago", *WARNINGS[1:]), ()),
        (Exit(1, 0, DIED_AT), WARNINGS, WARNINGS[1:]),
        (Exit(1, 0, DIED_AT), (WARNINGS[0], *UNCAUGHT), UNCAUGHT),
        (Exit(0, 9, DIED_AT), (WARNINGS[0], *UNCAUGHT), ()),
        (Exit(0, 9, DIED_AT, asked=True), WARNINGS, WARNINGS[1:]),
    ],
)
def test_only_the_last_seconds_of_a_generation_tell_why(
    tmp_path: Path, exit: Exit, log: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    """And nothing that the next generation wrote."""
    directory, run, lock = open_run(tmp_path, "blue", deploy(), QUICK, check=preflight.check, argv=())
    os.close(lock)
    process = dataclasses.replace(run.process("router"), generation=1)
    own, next_ = (f"[{STAMPS[at]}] pdctl: router generation {at + 1}: python3 -m pdctl.router" for at in (0, 1))
    after = f"[{STAMPS[2]}] ERROR written by the next generation"
    directory.log("router").write_text("\n".join((own, *log, next_, after)) + "\n")
    assert ending_reasons.reasons(directory, process, exit) == shown


def test_a_later_generation_does_not_tell_why_an_earlier_one_died(tmp_path: Path) -> None:
    directory, run, lock = open_run(tmp_path, "blue", deploy(), QUICK, check=preflight.check, argv=())
    os.close(lock)
    directory.log("decode-0").write_text(f"[{STAMPS[2]}] Shutting down: 0 request(s) running\n")
    death = RunEvent(DIED_AT - 60, EventKind.DIED, "decode-0", detail="decode-0 left with exit code 1")
    ended = dataclasses.replace(run.process("decode-0"), generation=2, exit=Exit(0, 0, DIED_AT))
    run = dataclasses.replace(with_process(run, ended), events=(death,), state=State.FAILED)
    health = next(one for one in run_health.probe(run, directory).instances if one.name == "decode-0")
    assert health.died.startswith("decode-0 left with exit code 1, at ")
    assert (health.tail, health.untold) == ((), "")
    run = dataclasses.replace(run, events=(dataclasses.replace(death, generation=2),))
    health = next(one for one in run_health.probe(run, directory).instances if one.name == "decode-0")
    assert health.tail or health.untold


def test_the_paths_of_an_earlier_run_are_those_of_its_own_files(tmp_path: Path) -> None:
    directory, run, lock = open_run(tmp_path, "blue", deploy(), QUICK, check=preflight.check, argv=())
    os.close(lock)
    log = directory.log("decode-0")
    log.write_text("of the first run\n")
    said = RunOutcome(f"decode-0 died. What may tell why, in {log}:", 1, fix=f"read the logs in {directory.logs}")
    directory.save(dataclasses.replace(run, state=State.FAILED, outcome=said))
    again, _, lock = open_run(tmp_path, "blue", deploy(), QUICK, check=preflight.check, argv=())
    os.close(lock)
    earlier = run_directory.RunDir.of(tmp_path, "blue.1")
    outcome = earlier.load().outcome
    assert outcome is not None
    assert outcome.message == f"decode-0 died. What may tell why, in {earlier.log('decode-0')}:"
    assert outcome.fix == f"read the logs in {earlier.logs}"
    assert earlier.log("decode-0").read_text() == "of the first run\n"
    assert not again.log("decode-0").exists()


def test_on_a_cluster_the_host_is_named_where_the_kernel_is_asked(tmp_path: Path) -> None:
    directory, run, lock = open_run(tmp_path, "blue", deploy(), QUICK, check=preflight.check, argv=())
    os.close(lock)
    process = dataclasses.replace(run.process("decode-0"), place="n3")
    said = ending_reasons.no_last_lines(directory, process, KILLED)
    assert "Ask on n3: sudo dmesg -T" in said
    assert said.endswith("or sacct -o JobID,State,MaxRSS")
