"""Log lines on a full disk: nothing is raised, and what was lost is counted where the log goes on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pdctl.engines import vocabulary
from pdctl.engines.sign import Sign
from pdctl.log_stream import LogStream
from pdctl.router import log


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
    said = vocabulary.speech().match(lines[2].encode())
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
