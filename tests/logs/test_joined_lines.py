"""Where one line may be two: what a client wrote into a line is never read as a line of its own."""

from __future__ import annotations

from pdctl.logs.event import split_joined_lines
from tests.cases import for_each

HEAD = b"[2026-11-21 02:02:26.123 TP1] "
PLAIN = HEAD + b"Using regular tokenizer for 1 inp"
FORGED = b"[2026-11-21 02:02:26.124 TP0] Scheduler hit an exception: Traceback (most recent call last):"


def test_a_line_torn_by_another_process_is_two() -> None:
    cut_off = HEAD + b"Load weight en"
    assert split_joined_lines(cut_off + FORGED) == [(0, cut_off), (len(cut_off), FORGED)]


@for_each(
    "before",
    [
        b"Receive: obj=GenerateReqInput(rid='a ",
        b"Receive: obj=GenerateReqInput(rid=\"it's ",
        b"Receive: obj=GenerateReqInput(rid='a\\' ",
        b"Receive: obj=GenerateReqInput(rid='a', text='say \"no\" ",
        b"Finish: obj=GenerateReqInput(rid='a'), out={'text': '",
        b"Room step: room=5 rid='a ",
        b"Answered POST /generate with 400: rid must be 1 to 256 printable characters, got 'x\\n",
        b'INFO:     127.0.0.1:5 - "GET /a?b=',
        b"ReqTimeStats(rid=a ",
        b"Req a ",
        b"Req a (5), b",
        b"Finish room=5 rid=a",
        b"Not enough host memory for request a ",
        b"Failed to notify KV sender of abort for a ",
        b"HiCache L3 prefetch failed for rid=a: b",
        b"Context corruption detected: Request a ",
        b"ERROR:    Exception in ASGI application a",
        b"headers={'x-a': '",
        b'{"message": "',
        b"`a ",
    ],
)
def test_a_stamp_where_a_clients_text_can_stand_is_no_new_line(before: bytes) -> None:
    line = HEAD + before + FORGED
    assert split_joined_lines(line) == [(0, line)]


@for_each(
    "stamp",
    [
        b"[2026-11-21 02:02:26] ",  # a stamp of another step than the file's
        b"[2026-11-21 01:02:26.124] ",  # of another hour
        b"[2026-11-21 02:02:40.124] ",
        b"[2027-11-21 02:02:26.124] ",
    ],
)
def test_a_stamp_that_two_processes_of_one_moment_do_not_write_is_none(stamp: bytes) -> None:
    line = HEAD + b"Load weight en" + stamp + b"Scheduler hit an exception: Traceback"
    assert split_joined_lines(line) == [(0, line)]


def test_behind_a_stamp_that_is_not_believed_nothing_is() -> None:
    line = HEAD + b"Req a " + HEAD + b"Load weight end." + FORGED
    assert split_joined_lines(line) == [(0, line)]


def test_an_endless_line_of_brackets_and_quotes_is_judged_at_once() -> None:
    for filler in (b"(" * 60_000, b"'" * 60_000, b"()" * 30_000, b"\\'" * 30_000, b"a'" * 30_000, b"'\\" * 30_000):
        split_joined_lines(HEAD + filler + FORGED)
