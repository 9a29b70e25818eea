"""What trace-room and diagnose say of all recordings: whole sentences, filled in, and fixes that can be followed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pdctl import trace
from pdctl.catalogue import book
from pdctl.catalogue.entry import PLACEHOLDER
from tests.cases import for_each
from tests.catalogue import shape
from tests.trace.recordings import SCENARIOS, diagnosis, rows, tracer

# How a way to learn more may begin, beside a command: with flags to start an engine with, or with these.
WAYS = re.compile(r"--|`|(?:give|read|what) ")
# What `fill` leaves where nobody gave a value.
NAMES = {name.upper().replace("_", "-") for each in book.ENTRIES for name, _ in PLACEHOLDER.findall(each.fix)}
UNFILLED = re.compile(rf"\b(?:{'|'.join(sorted(NAMES))})\b")


class Text:
    """One sentence and where it came from, so that a failure names it."""

    def __init__(self, of: str, kind: str, text: str) -> None:
        self.of, self.kind, self.text = of, kind, text

    def __repr__(self) -> str:
        return f"{self.kind} of {self.of}: {self.text!r}"


@cache
def said(scenario: str) -> tuple[Text, ...]:
    return (*_of_rooms(scenario), *_of_the_whole(scenario))


def _of_rooms(scenario: str) -> Iterator[Text]:
    for one in rows(scenario):
        room = tracer(scenario).trace(one.room)
        of = f"{scenario} {room.room}"
        if room.cause is not None:
            of = f"{of} {room.cause.code}"
            yield Text(of, "headline", room.cause.headline)
            yield Text(of, "why", room.cause.why)
            yield Text(of, "fix", room.fix)
        yield from (Text(of, "consequence", each) for each in room.consequences)
        yield from (Text(of, "note", each) for each in room.notes)
        yield from (Text(of, "proof", each.says) for each in room.evidence)
        yield from (Text(of, "unknown", each.what) for each in room.missing_evidence)
        yield from (Text(of, "way", each.enable_with) for each in room.missing_evidence)
        if room.gap is not None:
            yield from (Text(of, "gap", each) for each in (room.gap.after, room.gap.before))


def _of_the_whole(scenario: str) -> Iterator[Text]:
    found = diagnosis(scenario)
    for each in (*found.deaths, *found.findings):
        of = f"{scenario} {each.code}"
        yield Text(of, "headline", each.headline)
        yield Text(of, "why", each.why)
        yield Text(of, "fix", each.fix)
    yield from (Text(scenario, "unknown", each.what) for each in found.unknowns)
    yield from (Text(scenario, "way", each.enable_with) for each in found.unknowns)


@for_each("scenario", SCENARIOS)
def test_every_text_is_whole(scenario: str) -> None:
    for each in said(scenario):
        text = each.text
        assert text.strip() == text != "", each
        assert PLACEHOLDER.search(text) is None, each
        if each.kind not in ("why", "consequence", "headline", "gap"):  # these quote lines of logs
            assert "  " not in text.replace("   # ", " # "), each  # a remark behind a command
        assert not text.endswith((":", ";", ",")), each


def _written(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may become, with `x` for each value put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else _put_in(part) for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from (*_written(node.body), *_written(node.orelse))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        yield from _written(node.func.value)
    elif isinstance(node, ast.Name) and node.id in CONSTANTS:
        yield CONSTANTS[node.id].format("x")


def _put_in(part: ast.expr) -> str:
    value = part.value if isinstance(part, ast.FormattedValue) else part
    return CONSTANTS.get(value.id, "x") if isinstance(value, ast.Name) else "x"


def _fixes_in(tree: ast.Module) -> Iterator[str]:
    """What is called a fix, what a function with that word in its name returns, and what CauseFinding takes as one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == "fix" for one in node.targets):
            yield from _written(node.value)
        elif isinstance(node, ast.FunctionDef) and "fix" in node.name:
            returned = (one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value is not None)
            yield from (text for value in returned for text in _written(value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "CauseFinding":
            yield from (text for value in node.args[6:7] for text in _written(value))


TREES = {path: ast.parse(path.read_text()) for path in sorted(Path(trace.__path__[0]).rglob("*.py"))}
CONSTANTS = {
    target.id: node.value.value
    for tree in TREES.values()
    for node in tree.body
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    for target in node.targets
    if isinstance(target, ast.Name)
}


def test_every_fix_that_trace_writes_itself_is_a_command_or_one_sentence() -> None:
    """Also those of incidents that no recording has. "": the catalogue's is taken."""
    found = [(path.name, text) for path, tree in TREES.items() for text in _fixes_in(tree) if text]
    assert len(found) > 20
    assert {pair: problem for pair in found if (problem := shape.of_fix(pair[1]))} == {}


@for_each("scenario", SCENARIOS)
def test_every_fix_of_a_recording_can_be_followed(scenario: str) -> None:
    for each in said(scenario):
        if each.kind == "fix":
            assert not shape.of_fix(each.text), each
            assert UNFILLED.search(each.text) is None, each
        if each.kind == "way":
            assert WAYS.match(each.text), each
