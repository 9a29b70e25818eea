"""--since and --until of every verb that reads logs: which lines count is said, and that there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdctl.cli.exits import run
from tests.cases import for_each
from tests.trace.recordings import ROOMS

LOGS = str(ROOMS / "2p1d-healthy-info-log-requests-sgl0523")
VERBS = (["rooms", LOGS], ["trace-room", "--last-failed", LOGS], ["diagnose", LOGS])


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Exit code, and both streams."""
    with pytest.raises(SystemExit) as left:
        run([*argv, "--tz", "UTC"])
    streams = capsys.readouterr()
    return int(left.value.code or 0), streams.out + streams.err


@pytest.fixture(scope="module")
def day() -> str:
    log = next(Path(LOGS).glob("decode*.log"))
    return next(line[1:11] for line in log.read_text(errors="replace").split("\n") if line.startswith("[20"))


@for_each("argv", VERBS, ids=lambda argv: argv[0])
def test_a_window_behind_the_last_line_is_empty_and_not_of_the_day_before(
    argv: list[str], day: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, *argv, "--since", "23:59:58")
    assert code != 0
    assert f"no line was written since {day} 23:59:58" in text


@for_each("argv", VERBS, ids=lambda argv: argv[0])
def test_a_window_before_the_first_line_is_said_to_be_empty(
    argv: list[str], day: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, *argv, "--until", f"{day}T00:00:01")
    assert code != 0
    assert f"no line was written until {day} 00:00:01" in text


@for_each("argv", VERBS, ids=lambda argv: argv[0])
def test_the_window_that_counts_is_named(argv: list[str], day: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = said(capsys, *argv, "--since", f"{day}T00:00:00", "--until", "23:59:59")
    assert f"only lines from {day} 00:00:00 to 23:59:59 count" in text


def test_a_diagnosis_of_an_empty_window_judges_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(["diagnose", LOGS, "--since", "23:59:58", "--tz", "UTC", "-o", "json"])
    assert left.value.code == 4
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "unknown"
    assert document["window"]["empty"] is True


def test_a_room_that_no_line_of_the_window_names_may_be_in_the_logs(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = said(capsys, "rooms", LOGS, "--since", "-0s")
    assert "no line of that time names a room" in text


def test_a_name_that_no_room_has_is_said_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "rooms", LOGS, "--prefill", "nosuch")
    assert code == 0
    assert "no room has prefill nosuch: there are " in text
    assert "prefill" in text.rpartition("there are ")[2]
    _, text = said(capsys, "rooms", LOGS, "--filter", "decode=d*")
    assert "no room has" not in text
    _, text = said(capsys, "rooms", LOGS, "--filter", "cause=PD999")
    assert "no room has cause PD999: none has a cause" in text


def test_a_room_outside_of_the_window_is_not_said_to_be_missing_from_the_logs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["12345"], ["--rid", "nobody"]):
        code, text = said(capsys, "trace-room", *words, LOGS)
        assert (code, "no line of these logs names r" in text) == (5, True)
        code, text = said(capsys, "trace-room", *words, LOGS, "--since", "-0s")
        assert (code, "no line of that time names r" in text) == (5, True)
        assert "no line of these logs names r" not in text.partition("error: ")[0]
