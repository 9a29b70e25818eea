"""Lines of which a part is missing, and those that only look strange."""

from __future__ import annotations

from pdctl.logs.event import is_incomplete
from tests.cases import for_each

ROUTER = (
    b"\x1b[2m2026-11-22 20:02:00\x1b[0m \x1b[32m INFO\x1b[0m \x1b[1mhttp_request\x1b[0m\x1b[1m{\x1b[0m\x1b[3mmethod"
    b"\x1b[0m\x1b[2m=\x1b[0mPOST \x1b[3mrequest_id\x1b[0m\x1b[2m=\x1b[0m\"gnt-V6O6Hq\"\x1b[1m}\x1b[0m\x1b[2m:\x1b[0m "
    b"\x1b[2msmg::request\x1b[0m\x1b[2m:\x1b[0m started processing request"
)  # fmt: skip
ENGINE = b"[2026-11-22 20:02:41 DP0 TP1] Prefill bootstrap failed for request rank=0 req.bootstrap_room=7849029245"
STACKED = b"Initializing workers for routing mode: PrefillDecode { prefill_urls: [("


@for_each(
    "line",
    [
        b"20", b"[20", b"2026-11-2", b"[2026-11-22 20:01:", b"\x1b[2m2026-11-22 20:0", b"[2026-11-22 20:02:41] ",
        ROUTER[: ROUTER.index(b"POST")], ROUTER[: ROUTER.index(b"V6O6")], ROUTER[:-30], b"\x1b[2m20",
        b"[2026-11-22 20:02:41] " + STACKED, b"2026-11-22T20:02:41Z  INFO smg::server: " + STACKED,
        ENGINE + b" with exception KVTransferError(bootstrap_room=78490", ENGINE + b"\x00\x00", b"\xfe\xfd\x80",
        b'{"log": "[2026-11-22 20:02:41] Prefill boots', b'{"log": "[2026-11-22 20:02:41] f(\\n", "stream": "stdout"}',
    ],
)  # fmt: skip
def test_a_part_is_missing(line: bytes) -> None:
    assert is_incomplete(line)


@for_each(
    "line",
    [
        ROUTER, ENGINE, b"", b"    at src/main.rs:20", b'Prefill nodes: [("http://10.0.0.1:30000", None),',
        b'{"log": "[2026-11-22 20:02:41] f()\\n", "stream": "stdout"}', "[2026-11-22 20:02:41] … é".encode(),
        b"Traceback (most recent call last):", b'  File "x.py", line 3, in f',
    ],
)  # fmt: skip
def test_nothing_shows_that_a_part_is_missing(line: bytes) -> None:
    assert not is_incomplete(line)


def test_half_of_a_line_with_a_style_or_a_bracket_shows() -> None:
    """Cut anywhere within its head, a line of a router's is known to be cut."""
    behind = ROUTER.index(b"\x1b[1m}")
    shown = [at for at in range(2, behind) if is_incomplete(ROUTER[:at])]
    assert len(shown) > 0.9 * (behind - 2)
