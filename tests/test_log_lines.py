"""What clients send stays what it is in a log line, and lines on a full disk are counted."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.engines.base import Sign
from pdctl.engines.prefix import SGLANG, split
from pdctl.engines.row_matching import speech
from pdctl.log_lines import LogStream, escaped, rid_problem, traceback_text, word
from pdctl.router import log
from tests.cases import for_each

HOSTILE = (
    "a\n[2026-11-22 21:00:00] Scheduler hit an exception: Traceback",
    "a [2026-11-22 21:00:00.123 TP0] Scheduler hit an exception",
    "a [21:00:00] Scheduler hit an exception",
    "a\r\x1b[2J\x00\x7f\x85\x9b31m\u2028\u202e\ud800\U000e0001",
    "a' phase=aborted b='",
    'a" b',
)


@for_each("rid", [*HOSTILE, "", "x" * 257, "a b", "a\u00a0b", "a\\b", "a{b}", "`a`"])
def test_a_rid_that_could_end_its_place_in_a_line_is_refused(rid: str) -> None:
    assert rid_problem(rid).startswith("rid must be 1 to 256 printable characters without spaces, quotes, brackets")


@for_each("rid", ["a", "x" * 256, "chatcmpl-0f3/1:2@host", "dGVzdA==", "größe-7", "a,b;c#d%20|e~f!"])
def test_rids_of_this_world_are_taken(rid: str) -> None:
    assert rid_problem(rid) == ""


@for_each("text", HOSTILE)
def test_escaped_text_is_one_line_without_a_stamp(text: str) -> None:
    shown = escaped(text)
    assert shown.isprintable()
    assert not any(SGLANG.match(shown[at:].encode()) for at in range(len(shown)))
    assert word(text).split() == [word(text)]


def test_text_that_is_no_attack_stays() -> None:
    for text in ("Decode batch. #running-req: 1", "http://[::1]:30000/generate", "größe: 'a b' [1, 2]", "x[20]"):
        assert escaped(text) == text


def test_a_traceback_s_own_text_is_one_line() -> None:
    try:
        try:
            raise KeyError(HOSTILE[0])
        except KeyError as error:
            raise ValueError(HOSTILE[0]) from error
    except ValueError as error:
        text = traceback_text(error)
    lines = text.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("ValueError: a\\n\\x5b2026")
    assert not any(split(line.encode()).stamp for line in lines)
    assert "direct cause" in text


ENGINE = """
import logging
from pdctl.engine.config import process_log
from pdctl.engine.config.instance_args import ServerArgs
process_log.configure(ServerArgs("m"))
process_log.configure_access(ServerArgs("m"))
log, text = logging.getLogger("pdctl.engine"), {text!a}
log.info("x %s", text)
logging.getLogger("uvicorn").info("x %s", text)
logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', text, "POST", text, "1.1", 200)
try:
    raise ValueError(text)
except ValueError:
    log.exception("x %s", text)
"""
ROUTER = """
from pdctl.router import log
log.configure("info")
text = {text!a}
log.line("x " + text)
log.logger.warning("x %s", text)
try:
    raise ValueError(text)
except ValueError:
    log.logger.exception("x %s", text)
"""


@pytest.mark.parametrize("program", [ENGINE, ROUTER], ids=["engine", "router"])
def test_no_logger_of_ours_writes_what_a_client_chose_as_a_line(program: str) -> None:
    for text in HOSTILE:
        done = subprocess.run(
            [sys.executable, "-c", program.format(text=text)], capture_output=True, check=True, timeout=60
        )
        lines = done.stderr.decode().split("\n")
        assert lines.pop() == ""
        assert all(line.isprintable() for line in lines)
        heads = [at for at, line in enumerate(lines) if SGLANG.match(line.encode())]
        assert heads[0] == 0
        behind = [line for at, line in enumerate(lines) if at not in heads]
        assert [line for line in behind if not line.startswith(" ")] == [
            "Traceback (most recent call last):", "ValueError: " + escaped(text)
        ]  # fmt: skip
        assert not any(SGLANG.match(line[at:].encode()) for line in lines for at in range(1, len(line)))


def test_logging_s_own_traceback_would_not_do() -> None:
    """The reason for `traceback_text`: what logging prints begins lines with what the exception says."""
    try:
        raise ValueError(HOSTILE[0])
    except ValueError as error:
        text = logging.Formatter().formatException((ValueError, error, error.__traceback__))
    assert any(split(line.encode()).stamp for line in text.splitlines())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_what_was_lost_is_told_when_writing_works_again(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    spare = os.dup(handle)
    stream = LogStream(handle)
    stream.write("first\n")
    os.dup2(os.open("/dev/full", os.O_WRONLY), handle)
    for _ in range(3):
        stream.write("lost\nlost too\n")
    os.dup2(spare, handle)
    stream.write("last\n")
    stream.write("and no more of it\n")
    lines = file.read_text().splitlines()
    assert lines[0] == "first"
    assert "WARNING 6 lines of this log could not be written since " in lines[2]
    assert lines[2].endswith(": No space left on device")
    assert lines[3:] == ["last", "and no more of it"]
    said = speech().match(lines[2].encode())
    assert said is not None
    assert said.row.proves == (Sign.LINES_LOST,)
    assert (said.values["lost"], said.values["reason"]) == ("6", "No space left on device")


def test_a_line_that_is_no_utf8_is_written(tmp_path: Path) -> None:
    handle = os.open(tmp_path / "x.log", os.O_WRONLY | os.O_CREAT)
    LogStream(handle).write("half a pair: \ud83d\n")
    assert (tmp_path / "x.log").read_text() == "half a pair: \\ud83d\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_the_router_does_not_log_that_it_cannot_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """It did: each failed write was an error of the event loop, which was logged, for ever."""
    monkeypatch.setattr(log, "_stream", LogStream(os.open("/dev/full", os.O_WRONLY)))
    caught: list[object] = []

    async def lines() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context))
        for _ in range(3):
            log.line("Dispatch room=7")
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(lines())
    assert caught == []
