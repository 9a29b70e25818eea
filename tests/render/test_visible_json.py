"""On a terminal: what steers it, or turns a line around, is written as an escape; a value in JSON stays the same."""

from __future__ import annotations

import io
import json

import pytest

from pdctl.cli import exits
from pdctl.errors import UsageError
from pdctl.fleet.completion_stream import Piece, Summary
from pdctl.render import answer
from pdctl.render.term import Term, as_json, visible
from tests.cases import for_each


@for_each("text", ["\x9b31m", "a\u202eb", "\u2066x\u2069", "\x85", "\ud800", "\u200b\ufeff", "\U000e0001", "\x1b[2J"])
def test_nothing_steers_the_terminal(text: str) -> None:
    document = as_json({"Zoë 模型": ["résumé", text]})
    assert document.replace("\n", "").isprintable()
    assert json.loads(document) == {"Zoë 模型": ["résumé", text]}
    assert "Zoë 模型" in document
    document.encode()


def test_a_byte_of_a_name_that_is_not_text_is_shown_as_that_byte() -> None:
    assert visible("rou\udcffter.log") == r"rou\xffter.log"


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


HOSTILE = "a\x1b]0;pwn\x07b\x1b[2Jc\x9b31md\u202ee\rf\x1b]8;;http://x\x1b\\g"
SAFE = r"a\x1b]0;pwn\x07b\x1b[2Jc\x9b31md\u202ee\x0df\x1b]8;;http://x\x1b\g"


def test_no_line_that_is_written_steers_a_terminal() -> None:
    screen = Screen()
    Term(screen).write(f"\x1b[31m{HOSTILE}\x1b[0m\n\ttwo")
    assert screen.getvalue() == f"\x1b[31m{SAFE}\x1b[0m\n\ttwo\n"


def test_an_answer_of_a_server_does_not_steer_a_terminal_and_a_pipe_gets_all_of_it() -> None:
    summary = Summary("stop", 1, 1, HOSTILE, "decode0", "1", 0.1, 0.2)
    parts = [Piece("one\n\t👩\u200d💻 "), Piece(HOSTILE), summary]
    screen, details, pipe = Screen(), Screen(), io.StringIO()
    answer.show(parts, Term(screen), Term(details))
    answer.show(parts, Term(pipe), None)
    assert screen.getvalue() == f"one\n\t👩\u200d💻 {SAFE}\n"
    assert f"x-pd-prefill {SAFE}\n" in details.getvalue()
    assert pipe.getvalue() == f"one\n\t👩\u200d💻 {HOSTILE}\n"


def test_an_error_that_names_what_was_typed_does_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    exits._say(UsageError(f"`{HOSTILE}` is not a room", f"not {HOSTILE}"))
    assert capsys.readouterr().err == f"error: `{SAFE}` is not a room\n  fix: not {SAFE}\n"
