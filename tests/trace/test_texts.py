"""What trace-room and diagnose say of all recordings: whole sentences, filled in, and fixes that can be followed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

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


@for_each("scenario", SCENARIOS)
def test_every_fix_of_a_recording_can_be_followed(scenario: str) -> None:
    for each in said(scenario):
        if each.kind == "fix":
            assert not shape.of_fix(each.text), each
            assert UNFILLED.search(each.text) is None, each
        if each.kind == "way":
            assert WAYS.match(each.text), each
