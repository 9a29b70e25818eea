"""Cases that broke something once, made as short as they go. None may break it again."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.fuzz.edits import SEPARATOR
from tests.fuzz.judge import judge
from tests.fuzz.targets import TARGETS

DIGITS = b"9" * 5000  # int() takes 4300 of them
ROOM = b"room=" + DIGITS + b" is bootstrapped"
STAMP = b"[2026-11-21 01:34:04] "


class Found(NamedTuple):
    target: str
    what: str
    data: bytes


FOUND = (
    Found("line", "a room of more digits than int() takes", STAMP + ROOM),
    Found("log", "an address without a port", STAMP + b'http://\xb3 "PUT /route HTTP/1.1" 200'),
    Found(
        "log",
        "a port of more digits than int() takes",
        STAMP + b"INFO: Uvicorn running on http://1:" + DIGITS + b" (Press CTRL+C to quit)",
    ),
    Found(
        "log",
        "a superscript is a digit to str.isdigit, and none to int()",
        "[2026-11-21 19:44:26] pdctl: 0 generation 1: p -m pdctl.engine --disaggregation-mode prefill "
        "--disaggregation-bootstrap-port ²\n".encode(),
    ),
    Found("logs", "the same room in a deployment", STAMP + ROOM + SEPARATOR + STAMP + b"room=7 is bootstrapped"),
    Found("metrics", "letters without an equals sign: quadratic", b"a_x{" + b"p" * 60_000 + b"} 1\n"),
    Found(
        "manifest",
        "an annotation of more digits than int() takes",
        b"kind: Deployment\napiVersion: apps/v1\nmetadata: {name: p}\nspec:\n  template:\n    metadata:\n"
        b"      annotations: {sglang.ai/bootstrap-port: '" + DIGITS + b"'}\n    spec:\n      containers:\n"
        b"        - {name: e, command: [python3, -m, sglang.launch_server, --disaggregation-mode, prefill]}\n",
    ),
    Found(
        "manifest",
        "an image whose version has more digits than int() takes",
        b"kind: Pod\napiVersion: v1\nspec:\n  containers:\n    - {name: e, image: 'lmsysorg/sglang:v"
        + DIGITS
        + b".5.23',\n"
        b"       command: [python3, -m, sglang.launch_server, --disaggregation-mode, prefill]}\n",
    ),
    Found(
        "logs",
        "a tp_size of more digits than int() takes",
        STAMP + b"WARNING args.py:2326: KV cache is forced as chunk cache for decode server\n"
        b"[2026-11-21 02:01:15] server_args=ServerArgs(m/s, tp_size=" + DIGITS,
    ),
    Found(
        "dialect",
        "a pattern at which re.compile warns",
        b"- {id: x, speaker: sglang, level: info, literal: 'hello', pattern: 'hello [[a]', example: 'hello a'}\n",
    ),
    Found("bundle", "words joined by dashes: cubic", b"2-" * 8000),
    Found("bundle", "dashes alone", b"-" * 60_000),
    Found("bundle", "lists of ids that never end", b"input_ids=[" * 6000),
)


@pytest.mark.parametrize("found", FOUND, ids=lambda found: f"{found.target}: {found.what}")
def test_what_was_found_once(found: Found) -> None:
    judge(TARGETS[found.target], found.data)
