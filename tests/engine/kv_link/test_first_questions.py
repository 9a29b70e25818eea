"""Hosts that let a rank wait keep it from no other host."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pdctl.engine.kv_link.first_questions import FirstQuestions
from pdctl.engine.kv_link.kv_loop import FIRST_THREADS, OF_ONE_HOST


@pytest.fixture
def silence() -> Iterator[threading.Event]:
    over = threading.Event()
    yield over
    over.set()


def test_one_silent_host_with_many_ports_delays_nobody_else(silence: threading.Event) -> None:
    questions = FirstQuestions("q", 8, 4)
    stuck = [questions.submit("silent", lambda: silence.wait(60)) for _ in range(1000)]
    assert questions.submit("honest", lambda: 7).result(30) == 7
    assert sum(one.running() for one in stuck) <= 4
    silence.set()
    assert all(one.result(60) for one in stuck)
    questions.close()


def test_hundreds_of_silent_hosts_delay_nobody_else(silence: threading.Event) -> None:
    questions = FirstQuestions("q", FIRST_THREADS, OF_ONE_HOST)
    for number in range(400):
        questions.submit(f"silent-{number}", lambda: silence.wait(60))
    assert questions.submit("honest", lambda: 7).result(30) == 7
    silence.set()
    questions.close()


def test_an_error_goes_to_who_asked_and_the_next_is_asked() -> None:
    questions = FirstQuestions("q", 1, 1)
    with pytest.raises(ZeroDivisionError):
        questions.submit("host", lambda: 1 // 0).result(30)
    assert questions.submit("host", lambda: 7).result(30) == 7
    questions.close()
