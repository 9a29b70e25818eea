"""Rooms and the router's attempts: a prefill is named only where every way to pair them names the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.trace import pasted
from tests.trace.engines import decode_timed_out, engine, sending
from tests.trace.routers import D0, P0, P1, answered, backoff, came, left, line, sent, starting

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pdctl.trace.room import Room

FIRST, SECOND = 7707449254856086911, 8463976258232842567


def traced(folder: Path, room: int, router: Iterable[str], decode: Iterable[str]) -> Room:
    return pasted.room(
        folder, room, router=[starting((None, None)), *router], d0=engine("decode", 30002, 8998, *decode),
        p0=engine("prefill", 30000, 8998), p1=engine("prefill", 30001, 8999),
    )  # fmt: skip


def test_one_room_in_the_time_of_one_attempt(tmp_path: Path) -> None:
    router = [came(10, "a"), *sent(10, "a", P1), *answered(31, "a", 500), left(31, "a", 500)]
    found = traced(tmp_path, FIRST, router, [sending(11, FIRST), decode_timed_out(31, FIRST)])
    assert (found.prefill_requested, found.prefill_contacted, found.decode) == ("p1", "p0", "d0")
    assert found.cause is not None
    assert found.cause.code == "PD201"


def test_two_at_once_are_told_apart_by_how_they_ended(tmp_path: Path) -> None:
    router = [
        came(10, "a"), came(10, "b"), *sent(10, "a", P1), *sent(10, "b", P0), *answered(12, "b"), left(12, "b"),
        *answered(31, "a", 500), left(31, "a", 500),
    ]  # fmt: skip
    decode = [sending(11, FIRST), sending(11, SECOND), decode_timed_out(31, SECOND)]
    assert traced(tmp_path, SECOND, router, decode).prefill_requested == "p1"


def test_two_at_once_that_ended_alike_are_not_told_apart(tmp_path: Path) -> None:
    router = [
        came(10, "a"), came(10, "b"), *sent(10, "a", P1), *sent(10, "b", P0), *answered(31, "b", 500),
        *answered(31, "a", 500), left(31, "a", 500), left(31, "b", 500),
    ]  # fmt: skip
    decode = [sending(11, FIRST), sending(11, SECOND), decode_timed_out(31, FIRST), decode_timed_out(31, SECOND)]
    for room in (FIRST, SECOND):
        found = traced(tmp_path, room, router, decode)
        assert found.prefill_requested is None
        assert found.missing_evidence


def test_two_at_once_to_one_prefill_need_not_be_told_apart(tmp_path: Path) -> None:
    router = [
        came(10, "a"), came(10, "b"), *sent(10, "a", P1), *sent(10, "b", P1), *answered(31, "b", 500),
        *answered(31, "a", 500), left(31, "a", 500), left(31, "b", 500),
    ]  # fmt: skip
    decode = [sending(11, FIRST), sending(11, SECOND), decode_timed_out(31, FIRST), decode_timed_out(31, SECOND)]
    for room in (FIRST, SECOND):
        assert traced(tmp_path, room, router, decode).prefill_requested == "p1"


def test_a_retry_has_a_room_of_its_own(tmp_path: Path) -> None:
    router = [
        came(10, "a"), *sent(10, "a", P1), *answered(31, "a", 500), backoff(31, "a"), *sent(31, "a", P0, 1),
        *answered(32, "a"), left(32, "a"), came(40, "b"),  # a log that ends here might lack the attempt that was meant
    ]  # fmt: skip
    decode = [sending(11, FIRST), decode_timed_out(31, FIRST), sending(32, SECOND)]
    first = traced(tmp_path, FIRST, router, decode)
    assert first.prefill_requested == "p1"
    assert any(note.startswith("PD715") for note in first.notes)
    assert traced(tmp_path, SECOND, router, decode).prefill_requested == "p0"


def test_more_rooms_than_attempts_prove_nothing(tmp_path: Path) -> None:
    router = [came(10, "a"), *sent(10, "a", P1), *answered(31, "a", 500), left(31, "a", 500)]
    decode = [sending(11, FIRST), sending(11, SECOND), decode_timed_out(31, FIRST), decode_timed_out(31, SECOND)]
    assert traced(tmp_path, FIRST, router, decode).prefill_requested is None


def test_a_request_still_open_at_info_could_be_any(tmp_path: Path) -> None:
    router = [came(9, "b"), came(10, "a"), *sent(10, "a", P1), *answered(31, "a", 500), left(31, "a", 500)]
    assert traced(tmp_path, FIRST, router, [sending(11, FIRST), decode_timed_out(31, FIRST)]).prefill_requested is None


@pytest.mark.parametrize("until", [9, 1800])
def test_a_prefill_that_was_gone_got_nothing(tmp_path: Path, until: int) -> None:
    """The router's word is where it sent the request; that it arrived takes a sign of life."""
    found = pasted.room(
        tmp_path, FIRST,
        router=[starting((8998, 8999)), came(10, "a"), *sent(10, "a", P1), *answered(31, "a", 500), left(31, "a", 500)],
        d0=engine("decode", 30002, 8998, sending(11, FIRST), decode_timed_out(31, FIRST)),
        p0=engine("prefill", 30000, 8998), p1=engine("prefill", 30001, 8999, until=until),
    )  # fmt: skip
    assert found.prefill_requested == ("p1" if until == 1800 else None)


def test_smg_closes_nothing(tmp_path: Path) -> None:
    """Its 200 says that the decode began to answer, not that the cache had come."""

    def smg(text: str) -> str:
        return text.replace("uri=", "path=")

    router = [
        smg(came(10, "a")), smg(line(10, "a", f"Selected PD pair prefill={P0} decode={D0}")), smg(left(12, "a"))
    ]  # fmt: skip
    found = traced(tmp_path, FIRST, router, [sending(11, FIRST)])
    assert found.prefill_requested == "p0"
    assert found.outcome.value == "unknown"
    sglang = [came(10, "a"), *sent(10, "a", P0), *answered(12, "a"), left(12, "a")]
    assert traced(tmp_path, FIRST, sglang, [sending(11, FIRST)]).outcome.value == "ok"


def test_no_attempt_is_ruled_out_by_a_log_with_half_lines(tmp_path: Path) -> None:
    """Where one line was cut, others may be gone: the room can be an attempt of which nothing is left."""
    router = [came(10, "a"), *sent(10, "a", P1), *answered(31, "a", 500), left(31, "a", 500)]
    router.insert(1, came(10, "b")[:-80] + " {")
    found = traced(tmp_path, FIRST, router, [sending(11, FIRST), decode_timed_out(31, FIRST)])
    assert found.prefill_requested is None


def test_half_of_a_rooms_number_is_no_other_room(tmp_path: Path) -> None:
    """It would take an attempt of its own, and leave the real room another one's."""
    router = [
        came(10, "a"), *sent(10, "a", P1), *answered(31, "a", 500), left(31, "a", 500),
        came(10, "b"), *sent(10, "b", P0), *answered(31, "b", 500), left(31, "b", 500),
    ]  # fmt: skip
    cut = decode_timed_out(31, FIRST).replace(str(FIRST), str(FIRST)[:15])
    decode = [sending(11, FIRST), decode_timed_out(31, FIRST), cut]
    found = traced(tmp_path, FIRST, router, decode)
    assert found.prefill_requested is None
