"""What PDCTL_FAULTS may say, what is said about a wrong word, and when a fault fires."""

from __future__ import annotations

import logging
import os

import pytest

from pdctl.engine.config.engine_flags import parse
from pdctl.engine.drill import fault_points
from pdctl.engine.drill.fault_points import ACTIONS, ENV, SELECTORS, STEPS, Armed, arm, read
from tests.engine.scheduler.rig import TINY


def test_every_part_of_a_fault_is_a_value() -> None:
    one, two = read("drop:transfer_info@room%3==1,every=2; delay:in.status=200ms@p=0.25,seed=9,rank=1,first=4;")
    assert (one.action, one.step, one.modulus, one.remainder, one.every) == ("drop", "transfer_info", 3, 1, 2)
    assert (two.action, two.step, two.value, two.chance, two.seed, two.rank, two.first) == (
        ("delay", "in.status", 0.2, 0.25, 9, 1, 4)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("lose:status", "no such action 'lose'; there are drop, delay, stall, duplicate, corrupt, fail, kill"),
        ("drop", "no such step ''; there are register, "),
        ("drop:statuses", "no such step 'statuses'; there are register, "),
        ("fail:status", "status knows drop, delay, stall, duplicate, corrupt, kill, not fail"),
        ("delay:status", "delay takes a duration, such as delay:STEP=200ms"),
        ("delay:status=200", "delay takes a duration, such as delay:STEP=200ms"),
        ("drop:status=3", "drop takes no value"),
        ("kill:status=0", "'0' is no whole number from 1 on"),
        ("drop:status@room%0==0", "'0' is no whole number from 1 on"),
        ("drop:status@rooms%2==0", "no such selector 'rooms%2==0'; there are room%M==R, after=N, every=N"),
        ("drop:status@p=2", "no such selector 'p=2'"),
        ("drop:status@every=x", "'x' is no whole number from 1 on"),
        ("drop:post@room%2==0", "post does not know its room; leave room%2==0 out"),
        ("drop:status@after=3", "status does not count requests; leave after=3 out"),
        ("kill:decode.transfer", "decode.transfer knows end, not kill"),
    ],
)
def test_a_wrong_word_is_named_with_what_may_stand_there(
    word: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=word.replace("%", ".").split("@")[0]) as raised:
        read(f"stall:post=1ms; {word}")
    assert said in str(raised.value)
    monkeypatch.setenv(ENV, word)
    with pytest.raises(SystemExit):
        parse(["--model-path", str(TINY)], {})
    assert f"{ENV}: {word}: " in capsys.readouterr().err


def test_nothing_is_armed_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV, raising=False)
    assert arm() is None
    assert fault_points.asked_for() == []
    assert fault_points.start_lines() == ()


def fired(word: str, rooms: range, rank: int = 0) -> list[int]:
    armed = Armed(read(word), rank)
    return [room for room in rooms if armed.at("status", room) is not None]


def test_selectors(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pdctl.engine")
    rooms = range(1, 13)
    assert fired("drop:status@room%4==1", rooms) == [1, 5, 9]
    assert fired("drop:status@every=5", rooms) == [5, 10]
    assert fired("drop:status@every=2,first=2", rooms) == [2, 4]
    assert fired("drop:status@rank=1", rooms) == []
    assert fired("drop:status@rank=1", rooms, rank=1) == list(rooms)
    assert fired("drop:abort", rooms) == []
    some = fired("drop:status@p=0.5,seed=3", rooms)
    assert some == fired("drop:status@p=0.5,seed=3", rooms)
    assert 0 < len(some) < 12
    assert "REHEARSAL: fault drop:status@room%4==1 fires at status room=5" in caplog.text


def test_a_kill_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    deaths: list[int] = []
    monkeypatch.setattr(fault_points, "kill", lambda: deaths.append(1))
    armed = Armed(read("kill:prefill.after_chunk=3"), 0)
    for room in range(1, 6):
        armed.at("prefill.after_chunk", room)
        assert len(deaths) == (room >= 3)


def test_only_what_comes_after_the_first_requests_is_hit() -> None:
    armed = Armed(read("stall:decode.after_arrival=1us@after=2"), 0)
    for room in (11, 12, 13, 14):
        armed.admitted(room)
    rooms = [0, 11, 12, 13, 14]  # 0: a warm-up, which nobody admitted
    assert [room for room in rooms if armed.at("decode.after_arrival", room)] == [13, 14]


def test_an_end_takes_the_server_along(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: ends.append(pid))
    monkeypatch.setattr(fault_points, "kill", lambda: ends.append(0))
    armed = Armed(read("end:prefill.write@after=0"), 0)
    armed.admitted(7)
    fault = armed.hit("prefill.write", 7)
    assert fault is not None
    assert ends == []  # half of the write comes first
    armed.happen(fault)
    assert ends == [os.getppid(), 0]
    assert "REHEARSAL: this instance ends itself by SIGKILL now" in caplog.text


def test_every_word_is_explained() -> None:
    used = {action for step in STEPS for action in step.actions}
    assert used == {action.name for action in ACTIONS}
    assert all(one.doc for one in (*ACTIONS, *STEPS))
    assert all(SELECTORS.values())
