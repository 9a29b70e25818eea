"""Text that pdctl opens has an encoding: the locale's own may be ASCII, as under cron or in a bare container."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
# The place of the mode and of the encoding among the arguments.
PLACES = {"open": (1, 3), "fdopen": (1, 3), "NamedTemporaryFile": (0, 2), "TemporaryFile": (0, 2)}
BINARY = ("NamedTemporaryFile", "TemporaryFile")  # if no mode is given
METHOD = (0, 2)  # Path.open, if it has a mode: without one nothing tells it from a method of another class
TEXTS = {"read_text": 0, "write_text": 1, "TextIOWrapper": 1}
PROCESSES = ("run", "Popen", "check_output")  # whose output is text


def without_encoding(text: str) -> Iterator[int]:
    """The lines that open text and leave its encoding to the locale."""
    for call in ast.walk(ast.parse(text)):
        if isinstance(call, ast.Call) and _is_text(call) and "encoding" not in {each.arg for each in call.keywords}:
            yield call.lineno


def _is_text(call: ast.Call) -> bool:
    """Whether it opens text without a positional encoding."""
    method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = {each.arg: each.value for each in call.keywords}
    if None in given:  # `**form`
        return False
    if name in TEXTS:
        return len(call.args) <= TEXTS[name]
    if name in PROCESSES:
        return bool(given.keys() & {"text", "universal_newlines"})
    if name not in PLACES:
        return False
    mode_at, encoding_at = METHOD if name == "open" and method else PLACES[name]
    mode = given.get("mode") or (call.args[mode_at] if len(call.args) > mode_at else None)
    if mode is None:
        return name not in BINARY and not (name == "open" and method)
    return isinstance(mode, ast.Constant) and "b" not in str(mode.value) and len(call.args) <= encoding_at


@for_each("folder", ["pdctl", "tools"])
def test_no_text_is_opened_in_the_encoding_of_the_locale(folder: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line in without_encoding(file.read_text("utf-8"))
    ]
    assert wrong == []
