"""The router's log as attempts: retries, answers, requests that are still open, logs cut in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.trace.observed_deployment import ObservedDeployment
from pdctl.trace.room_events import in_file_order
from pdctl.trace.router_attempts import RouterAttempt, logged_attempts
from tests.trace import pasted
from tests.trace.routers import P0, P1, answered, backoff, came, left, line, sent, starting

if TYPE_CHECKING:
    from pathlib import Path

FAR = "2026-11-21 02:59:00 DEBUG smg::server: server.rs:1: "


def tried(folder: Path, *lines: str) -> tuple[RouterAttempt, ...]:
    library = pasted.library(folder, router=[starting(), *lines])
    lasts = {one.name: one.last for one in ObservedDeployment.of(library).instances.values()}
    return logged_attempts(in_file_order(library.context(float("-inf"), float("inf"))), lasts)


def test_one_request_one_attempt(tmp_path: Path) -> None:
    (one,) = tried(tmp_path, came(5, "a"), *sent(5, "a", P0), *answered(7, "a"), left(7, "a"))
    assert (one.prefill, one.number, one.status, one.closed, one.listed) == (P0, 0, 200, True, True)
    assert one.end is not None
    assert one.end - one.start == 2.0


def test_a_retry_is_an_attempt_of_its_own(tmp_path: Path) -> None:
    first, second = tried(
        tmp_path, came(5, "a"), *sent(5, "a", P1), *answered(25, "a", 500), backoff(25, "a"), *sent(25, "a", P0, 1),
        *answered(26, "a"), left(26, "a"),
    )  # fmt: skip
    assert (first.prefill, first.status, first.closed) == (P1, 500, False)
    assert (second.prefill, second.number, second.status, second.closed) == (P0, 1, 200, True)


def test_an_open_request_is_an_attempt_without_an_end(tmp_path: Path) -> None:
    (one,) = tried(tmp_path, came(5, "a"), *sent(5, "a", P0))
    assert (one.end, one.status, one.closed) == (None, None, False)


def test_at_info_only_that_it_came_and_went_is_known(tmp_path: Path) -> None:
    (one,) = tried(tmp_path, came(5, "a"), left(9, "a"))
    assert (one.listed, one.prefill, one.closed) == (False, "", True)


def test_a_health_check_is_no_request(tmp_path: Path) -> None:
    check = came(5, "a").replace("uri=/generate", "uri=/health").replace("POST", "GET")
    assert tried(tmp_path, check) == ()


def test_a_missing_attempt_may_have_been_anybodys(tmp_path: Path) -> None:
    """`attempt 1` without an attempt 0: lines are lost, and nobody knows how many."""
    found = tried(tmp_path, came(5, "a"), *sent(25, "a", P0, 1), *answered(26, "a"), left(26, "a"))
    assert [one.prefill for one in found if one.listed] == [P0]
    assert [one.number for one in found if not one.listed and not one.lost] == [0]
    assert any(one.lost for one in found)


def test_half_an_attempt_gives_holes_away(tmp_path: Path) -> None:
    whole, half = sent(5, "a", P0), sent(9, "b", P1)[1:]
    later = came(30, "c")
    assert any(one.lost for one in tried(tmp_path, came(5, "a"), *whole, *half, later))


def test_the_last_line_of_a_log_is_no_hole(tmp_path: Path) -> None:
    assert not any(one.lost for one in tried(tmp_path, came(5, "a"), sent(5, "a", P0)[0]))


def test_smg_names_the_pair_in_words_of_its_own(tmp_path: Path) -> None:
    chosen = line(5, "a", f"Selected PD pair prefill={P1} decode=http://127.0.0.1:30002").replace("uri=", "path=")
    came_in = came(5, "a").replace("uri=", "path=")
    over = left(6, "a").replace("uri=", "path=")
    (one,) = tried(tmp_path, came_in, chosen, over, came(50, "b").replace("/generate", "/health"))
    assert (one.prefill, one.listed, one.lost) == (P1, True, False)
