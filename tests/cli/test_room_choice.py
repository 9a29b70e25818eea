"""Which room, which logs, which part of them: what the command line of trace-room says, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.cli.log_sources import Sources, earlier, sources
from pdctl.cli.trace_room import chosen, exit_code, number
from pdctl.errors import ExitCode, NotFoundError, UsageError
from pdctl.render.term import to_file
from pdctl.trace.room import RoomOutcome
from tests.cases import for_each
from tests.render.trace import samples


@for_each(
    ("text", "room"),
    [
        ("5111113946003395278", 5111113946003395278),
        ("0x46ee530dd613d2ce", 5111113946003395278),
        ("46EE530DD613D2CE", 5111113946003395278),
        ("0", 0),
        ("18446744073709551615", 2**64 - 1),
        ("1234", 1234),  # digits alone are decimal
    ],
)
def test_a_room_as_logs_or_spans_write_it(text: str, room: int) -> None:
    assert number(text) == room


@for_each(
    "text",
    ["", "-1", "1.5", "0x", "logs/decode.log", "18446744073709551616", "٣", "1_000", " 7", "0x1ffffffffffffffff"],
)
def test_what_is_no_room_is_said_so(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        number(text)
    assert "pdctl rooms" in caught.value.fix


def test_a_flag_that_chooses_the_room_leaves_every_word_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="room 7 and --rid choose different rooms"):
        chosen(["7", "logs/"], "abc", False, None)
    (tmp_path / "7").mkdir()
    wanted, paths = chosen(["7", "logs/"], "abc", False, None)
    assert (wanted.rid, paths) == ("abc", ["7", "logs/"])
    wanted, paths = chosen(["7", "logs/"], None, False, None)
    assert (wanted.room, paths) == (7, ["logs/"])
    assert chosen([], None, False, 3)[0].several
    assert not chosen([], None, True, None)[0].several


@pytest.mark.parametrize(
    "given", [([], None, False, None), (["7"], "abc", True, None), (["7"], None, True, 3)], ids=str
)
def test_no_choice_or_two_are_refused(given: tuple[list[str], str | None, bool, int | None]) -> None:
    with pytest.raises(UsageError):
        chosen(*given)


def test_run_and_paths_exclude_each_other() -> None:
    with pytest.raises(UsageError):
        sources(["logs/"], "blue")
    with pytest.raises(UsageError):
        sources(["-", "-"], None)
    assert sources(["a.log", "-"], None).paths == ("a.log", "-")


def test_without_a_run_there_is_nothing_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_HOME", str(tmp_path))
    with pytest.raises(NotFoundError):
        sources([], None)


def test_the_earlier_runs_of_a_name_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A room that no line of the run names may be in the logs of an earlier one."""
    monkeypatch.setenv("PDCTL_HOME", str(tmp_path))
    for name in ("blue", "blue.1", "blue.2", "blue.old", "bluebell.3"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    path = str(tmp_path / "runs/blue/logs/router.log")
    chosen_run = Sources((path,), {path: "router"}, {path: "blue/logs/router.log"})
    assert earlier(chosen_run) == ["blue.2", "blue.1"]
    assert earlier(Sources(("router.log",), {})) == []


@for_each(
    ("outcomes", "code"),
    [
        ([RoomOutcome.OK], ExitCode.OK),
        ([RoomOutcome.FAILED], ExitCode.FINDINGS),
        ([RoomOutcome.HUNG], ExitCode.FINDINGS),
        ([RoomOutcome.INCOMPLETE], ExitCode.FINDINGS),
        ([RoomOutcome.UNKNOWN], ExitCode.NOT_PROBED),
        ([RoomOutcome.OK, RoomOutcome.UNKNOWN], ExitCode.NOT_PROBED),
        ([RoomOutcome.UNKNOWN, RoomOutcome.FAILED, RoomOutcome.OK], ExitCode.FINDINGS),
    ],
)
def test_the_exit_code_is_that_of_the_worst_room(outcomes: list[RoomOutcome], code: ExitCode) -> None:
    assert exit_code([samples.blind()._replace(outcome=outcome) for outcome in outcomes]) is code


def _break_off(file: Path) -> None:
    with to_file(file) as stream:
        stream.write("half")
        raise KeyError


def test_an_output_file_is_whole_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / "room.html"
    with to_file(file) as stream:
        stream.write("é")
        assert not file.exists()
    assert file.read_text(encoding="utf-8") == "é\n"
    with pytest.raises(KeyError):
        _break_off(file)
    assert file.read_text(encoding="utf-8") == "é\n"
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(UsageError), to_file(tmp_path / "no" / "room.html"):
        pass
