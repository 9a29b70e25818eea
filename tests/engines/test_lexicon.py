"""Every shipped row is proved by its own example, and keeps to the rules that make matching safe and fast."""

from __future__ import annotations

import re
from collections import Counter

from pdctl.catalogue import book
from pdctl.engines.base import Row, Speaker
from pdctl.engines.pattern import weaknesses
from pdctl.engines.prefix import split
from pdctl.engines.row_matching import ROWS, heads, lead, speech
from pdctl.engines.versions import SGLANG
from tests.cases import for_each

ROLES = {"prefill", "decode", "router", ""}
BACKENDS = {"nixl", "mooncake", "mori", "ascend", ""}
NEEDS = {"", "--log-level debug", "--log-requests", "--enable-request-time-stats-logging"}
# Names of groups that mean one thing everywhere; what a row adds of its own is not listed.
NUMBERS = ("room", "rank_port", "seconds", "bytes", "pages", "attempt")
MOST_FLOATING = 15  # rows without a fixed beginning are tried on every line


@for_each("row", ROWS, ids=lambda row: row.id)
def test_the_example_is_its_own_row(row: Row) -> None:
    for speakers in (None, frozenset({row.speaker})):
        said = speech().match(row.example.encode(), speakers)
        assert said is not None
        assert said.row.id == row.id


@for_each("row", ROWS, ids=lambda row: row.id)
def test_the_pattern_is_safe_and_has_its_literal(row: Row) -> None:
    assert weaknesses(row.pattern, row.literal) == []
    assert row.literal in row.example.encode()


def test_ids_are_unique() -> None:
    assert [name for name, count in Counter(row.id for row in ROWS).items() if count > 1] == []
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row.id) for row in ROWS)


def test_values_of_fields_are_known() -> None:
    for row in ROWS:
        assert row.role in ROLES, row.id
        assert row.backend in BACKENDS, row.id
        assert row.needs in NEEDS, row.id
        if row.speaker is Speaker.SGLANG:
            assert any(row.span.holds(version) for version in SGLANG), row.id
        if row.role == "router":
            assert row.speaker not in (Speaker.SGLANG, Speaker.PDCTL_ENGINE), row.id


def test_every_cause_is_in_the_catalogue() -> None:
    known = {entry.code for entry in book.ENTRIES}
    assert {row.cause for row in ROWS if row.cause} - known == set()


def test_agreed_groups_read_what_they_say() -> None:
    """`room` and the other numbers are digits in every example that has them."""
    for row in ROWS:
        said = speech().match(row.example.encode())
        assert said is not None
        for name in NUMBERS:
            value = said.values.get(name, "0")
            assert re.fullmatch(r"\d+(\.\d+)?", value), f"{row.id}: {name}={value}"


def test_a_row_with_a_phase_names_a_room_or_a_request() -> None:
    for row in ROWS:
        if row.phase is None or row.role == "router":
            continue
        assert re.search(r"\?P<(room|rid|rids)>", row.pattern), row.id


def test_few_rows_are_tried_on_every_line() -> None:
    assert len([row for row in ROWS if not heads(row.pattern)]) <= MOST_FLOATING


def test_examples_have_prefixes_that_are_read() -> None:
    """An example is a whole line: its message is what the pattern begins with."""
    for row in ROWS:
        message = split(row.example.encode()).message
        assert re.match(row.pattern, message), row.id
        head = lead(row.pattern).decode()
        assert message.startswith(head), row.id


def test_sglang_rows_leave_no_release_without_the_core() -> None:
    """In every known release the failure lines of a room, its times and its requests are among the rows."""
    wanted = {
        "prefill-bootstrap-timed-out", "decode-transfer-timed-out", "prefill-transfer-failed",
        "decode-handshake-failed", "request-received", "request-finished", "transfer-info-arrived", "room-bootstrapped",
        "uvicorn-running", "ready",
    }  # fmt: skip
    times = ({"prefill-times-old", "decode-times-old"}, {"prefill-times", "decode-times"})
    for version in SGLANG:
        there = {row.id for row in ROWS if row.span.holds(version)}
        assert wanted <= there
        assert sum(names <= there for names in times) == 1
