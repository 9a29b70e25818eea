"""The judge finds what it is there for: an error, a hang, work that grows too fast; and can show the case again."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pdctl.errors import UsageError
from tests.fuzz import edits, judge, wire
from tests.fuzz.judge import Broken, Target

ROOT = Path(__file__).resolve().parents[2]


def target(body: judge.Body, **fields: object) -> Target:
    return Target("x", body, lambda: (b'{"a": [1, 2]}', b"room=7 host=h"), **fields)  # type: ignore[arg-type]


def raises(data: bytes) -> None:
    if b"room" in data:
        raise KeyError("room")


def refuses(data: bytes) -> None:
    raise UsageError("this is wrong", "do that")


def mute(data: bytes) -> None:
    raise UsageError("this is wrong")


def spins(data: bytes) -> None:
    while True:
        with contextlib.suppress(Exception):  # the worst a reader could do
            time.monotonic()


def waits(data: bytes) -> None:
    threading.Event().wait()


def test_an_error_nobody_declared_is_a_finding() -> None:
    with pytest.raises(Broken, match=r"KeyError: 'room' in tests/fuzz/test_judge.py:\d+ \(raises\)") as caught:
        judge.judge(target(raises), b"a room")
    assert repr(b"a room") in str(caught.value)
    judge.judge(target(raises), b"a")


def test_a_declared_error_must_say_what_to_do() -> None:
    judge.judge(target(refuses, errors=(UsageError,)), b"")
    with pytest.raises(Broken, match="the fix ''"):
        judge.judge(target(mute, errors=(UsageError,)), b"")
    with pytest.raises(Broken, match="UsageError"):
        judge.judge(target(refuses), b"")


def test_work_without_end_is_a_finding_even_if_errors_are_swallowed() -> None:
    with pytest.raises(Broken, match=r"took more than its CPU time .* \(spins\)"):
        judge.judge(target(spins, base=0.05), b"")


def test_a_warning_is_a_finding() -> None:
    def warns(data: bytes) -> None:
        re.compile("[[a]")

    with pytest.raises(Broken, match="FutureWarning"):
        judge.judge(target(warns), b"")


def test_waiting_without_end_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "WALL", 0.2)
    with pytest.raises(Broken, match=r"took more than 0 s"):
        judge.judge(target(waits), b"")


def test_timers_of_others_run_on() -> None:
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    handler = signal.getsignal(signal.SIGALRM)
    judge.judge(target(raises), b"")
    assert bool(signal.getitimer(signal.ITIMER_REAL)[0]) is bool(left)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_a_finding_is_shortened_and_can_be_had_again() -> None:
    found = judge.survive(target(raises), 5000, 3)
    (broken,) = found.broken
    assert broken.data == b"room"
    assert b"room" in judge.case(target(raises).seeds(), 3, found.cases)
    clean = judge.survive(target(lambda data: None), 50, 3)
    assert (clean.cases, clean.broken) == (50, ())


def test_edits_are_the_same_each_time_and_bounded() -> None:
    seeds = target(raises).seeds()
    made = [judge.case(seeds, 7, number) for number in range(3000)]
    assert made == [judge.case(seeds, 7, number) for number in range(3000)]
    assert len(set(made)) > len(made) / 2, "cases that come again test nothing"
    assert max(map(len, made)) < 5 * edits.LONGEST
    assert any(data.startswith(b"{") and json.loads(data) for data in made if data.endswith(b"}") and b"8998" in data)


def test_no_case_leaves_the_process() -> None:
    """Whatever address a case names: the wire answers, nobody is dialled and no name is looked up."""
    from pdctl.fleet import bootstrap_probe, http_client

    with wire.told(lambda host, port, path: b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"):
        assert http_client.get("http://no.such.host.invalid:1/x", 1.0).body == b"hi"
        assert bootstrap_probe.dial("no.such.host.invalid", 4, None) == "no.such.host.invalid: connection refused"
    assert not http_client.get("http://127.0.0.1:1/", 1.0).reached


def test_the_command_tells_what_it_did() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "framing", "--cases", "200", "--plain"],
        capture_output=True, text=True, timeout=100, cwd=ROOT, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("framing: 200 cases of seed 1 in ")
    assert "no findings" in done.stdout
