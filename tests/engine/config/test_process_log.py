"""What the engine's own lines look like, and that the reader of logs takes them and SGLang's alike."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
import time

import pytest

from pdctl.engine.config.process_log import OneLine, hit_an_exception
from pdctl.engines.prefix import split
from pdctl.log_lines import stamp

SAY = """
import logging
from pdctl.engine.config import process_log
from pdctl.engine.config.instance_args import ServerArgs
args = ServerArgs("m")
process_log.configure(args)
process_log.configure_access(args)
logging.getLogger("pdctl.engine").info("room=7 is bootstrapped")
logging.getLogger("uvicorn").info("Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)")
logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "POST", "/generate", "1.1", 200)
"""
MESSAGES = [
    "room=7 is bootstrapped",
    "Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)",
    '127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK',
]


def test_every_line_of_the_engine_tells_milliseconds() -> None:
    done = subprocess.run([sys.executable, "-c", SAY], capture_output=True, check=True, timeout=60)
    lines = [split(line) for line in done.stderr.splitlines()]
    assert [line.message for line in lines] == MESSAGES
    assert [line.stamp.resolution_s for line in lines if line.stamp] == [pytest.approx(0.001)] * 3


def test_a_stamp_is_the_moment_it_was_written() -> None:
    before, text, after = time.time(), stamp(), time.time()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", text)
    found = time.mktime(time.strptime(text[:19], "%Y-%m-%d %H:%M:%S")) + float(text[19:])
    assert before - 0.002 < found <= after


@pytest.mark.parametrize("ranks", ["", " TP0", " DP0 TP1"])
@pytest.mark.parametrize("fraction", ["", ".123"])
def test_both_forms_are_read(fraction: str, ranks: str) -> None:
    read = split(f"[2026-11-22 15:50:32{fraction}{ranks}] room=7 is bootstrapped".encode())
    assert read.stamp is not None
    assert (read.stamp.second, read.stamp.micro) == (32, 123000 if fraction else 0)
    assert read.stamp.resolution_s == pytest.approx(0.001 if fraction else 1.0)
    assert (read.ranks, read.message) == (ranks.strip(), "room=7 is bootstrapped")


def test_what_ends_a_process_is_said_as_sglang_says_it() -> None:
    """The traceback begins in the line and keeps its lines; the exception's own text, a client's perhaps, is one."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(OneLine("[2026-11-23 00:07:18.983 TP0] %(message)s"))
    log = logging.Logger("end")
    log.addHandler(handler)
    try:
        raise RuntimeError("Page size mismatch\n[2026-11-23 00:07:19] forged")
    except RuntimeError as error:
        hit_an_exception(log, "Scheduler", error)
    first, *rest = written.getvalue().splitlines()
    assert first == "[2026-11-23 00:07:18.983 TP0] Scheduler hit an exception: Traceback (most recent call last):"
    assert rest[0].startswith("  File ")
    assert rest[-1] == "RuntimeError: Page size mismatch\\n\\x5b2026-11-23 00:07:19] forged"
