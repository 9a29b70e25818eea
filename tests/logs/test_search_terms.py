from __future__ import annotations

import pytest

from pdctl.engines.row_matching import speech
from pdctl.errors import UsageError
from pdctl.logs import scan
from tests.cases import for_each

ROOM = 2148025886387619708
HEX = f"{ROOM:x}".encode()


@for_each(
    ("line", "named"),
    [
        (b"room=2148025886387619708 is bootstrapped", True),
        (b"2148025886387619708", True),
        (b"notif 2148025886387619708_kv_0_1_0", True),
        (b"rid-2148025886387619708.", True),
        (b"12148025886387619708", False),
        (b"21480258863876197080", False),
        (b"12148025886387619708 2148025886387619708,", True),
    ],
)
def test_a_decimal_room_stands_apart_from_digits(line: bytes, named: bool) -> None:
    assert any(each.among(line) for each in scan.room_terms(ROOM)) is named


@for_each(
    ("line", "named"),
    [
        (b'"stringValue":"0x' + HEX + b'"', True),
        (b"bootstrap_room: Str(" + HEX + b")", True),
        (b"0x" + HEX + b"0", False),
        (b"trace_id=f" + HEX, False),
        (HEX + b"f", False),
        (b"00x" + HEX, True),
    ],
)
def test_a_hexadecimal_room_stands_apart_from_letters_and_digits(line: bytes, named: bool) -> None:
    assert any(each.among(line) for each in scan.hex_room_terms(ROOM)) is named


def test_hex_digits_that_read_as_decimal_need_the_0x() -> None:
    number = 0x1234567890123456
    (only,) = scan.hex_room_terms(number)
    assert not only.among(b"room=1234567890123456")
    assert only.among(b"room=0x1234567890123456")


def test_a_short_room_counts_only_where_it_is_announced_as_one() -> None:
    wanted = scan.room_terms(7, speech().rows)

    def named(line: bytes) -> bool:
        return any(each.among(line) for each in wanted)

    assert named(b"[2026-11-21 02:00:07] got info room=7 agent_name='x'")
    assert named(b'{"bootstrap_room": 7}')
    assert named(b"[2026-11-21 02:00:00] Request 7 waiting_timeout")  # as a row says
    assert not named(b"[2026-11-21 02:00:07] #running-req: 7")
    assert not named(b"room=77")


def test_every_row_finds_the_room_of_its_own_example() -> None:
    rows = speech().rows
    for row in rows:
        said = speech().match(row.example.encode())
        room = said.values.get("room", "") if said else ""
        if room.isdigit():
            wanted = scan.room_terms(int(room), rows)
            assert any(each.among(row.example.encode()) for each in wanted), row.id


def test_a_request_id_stands_apart_from_words() -> None:
    (wanted,) = scan.request_terms(["req-1"])
    assert wanted.among(b"rid='req-1'")
    assert not wanted.among(b"rid='req-12'")
    assert not wanted.among(b"rid='my-req-1'")
    for bad in ("", "x" * 600, "two\nlines"):
        with pytest.raises(UsageError, match="--rid"):
            scan.request_terms([bad])
