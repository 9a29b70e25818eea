"""How long each part took, from the words of every release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.trace import pasted
from tests.trace.engines import at, engine, received

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.trace.room import Duration, Room

ROOM = 7707449254856086911
RID = "2bfafc2472b4467383402a55ee1d31d5"

OLD = f"rid={RID}, bootstrap_room={ROOM}, input len=5, output len=8"
NEW = f"rid={RID}, bootstrap_room={ROOM}, input_len=5, cached_input_len=0, output_len=8"

# Release → the prefill's line, the decode's line, and what they mean: (name, instance) → seconds.
RELEASES = {
    "0.5.3": (
        f"Req Time Stats({OLD}, type=prefill): bootstrap_duration=12.10ms, queue_duration=0.41ms, "
        "forward_duration=88.20ms, start_time=42.123",
        f"Req Time Stats({OLD}, type=decode): prealloc_duration=1.10ms, transfer_duration=92.41ms, "
        "queue_duration=0.10ms, forward_duration=310.22ms, start_time=42.123",
        {
            ("bootstrap wait", "prefill"): 0.0121, ("queue", "prefill"): 0.00041,
            ("prefill forward", "prefill"): 0.0882, ("prealloc", "decode"): 0.0011, ("transfer", "decode"): 0.09241,
            ("decode queue", "decode"): 0.0001,
            ("decode", "decode"): 0.31022,
        },
    ),
    "0.5.8": (
        f"Req Time Stats({OLD}, type=prefill): bootstrap_queue_duration(20.00ms) = alloc_wait(5.00ms) + "
        "bootstrap(14.00ms) + other(1.00ms); queue_duration=0.41ms, forward_duration=88.20ms, start=1795291968.913, "
        "transfer_speed=0.50GB/s, transfer_total=2.00MB",
        f"Req Time Stats({OLD}, type=decode): prealloc_queue_duration(7.00ms) = alloc_wait(2.00ms) + bootstrap(4.00ms) "
        "+ other(1.00ms); transfer_duration=92.41ms; queue_duration=0.10ms, forward_duration=310.22ms, start=1795.1",
        {
            ("bootstrap wait", "prefill"): 0.02, ("queue", "prefill"): 0.00041, ("prefill forward", "prefill"): 0.0882,
            ("transfer", "prefill"): 0.004, ("prealloc", "decode"): 0.007, ("transfer", "decode"): 0.09241,
            ("decode queue", "decode"): 0.0001, ("decode", "decode"): 0.31022,
        },
    ),
    "0.5.18": (
        f"ReqTimeStats({NEW}, type=prefill): bootstrap_duration=20.88ms, queue_duration=0.14ms, "
        "forward_duration=2.50ms, transfer_duration=5.40ms, entry_time=1795290273.746, transfer_speed=0.07 GB/s, "
        "transfer_total=0.03 MB",
        f"ReqTimeStats({NEW}, type=decode): prealloc_queue_duration=13.96ms, transfer_duration=4.60ms, "
        "entry_time=1795290273.752",
        {
            ("bootstrap wait", "prefill"): 0.02088, ("queue", "prefill"): 0.00014,
            ("prefill forward", "prefill"): 0.0025, ("transfer", "prefill"): 0.0054, ("prealloc", "decode"): 0.01396,
            ("transfer", "decode"): 0.0046,
        },
    ),
    "0.5.23": (
        f"ReqTimeStats({NEW}, attempts=0, type=prefill): bootstrap_duration=20.88ms, queue_duration=0.14ms, "
        "forward_duration=2.50ms, transfer_duration=5.40ms, entry_time=1795290273.746",
        f"ReqTimeStats({NEW}, attempts=0, type=decode): bootstrap_duration=37.41ms, alloc_wait_duration=0.31ms, "
        "transfer_duration=6303.08ms, queue_duration=0.21ms, forward_duration=133.52ms, entry_time=1795290273.752",
        {
            ("bootstrap wait", "prefill"): 0.02088, ("queue", "prefill"): 0.00014,
            ("prefill forward", "prefill"): 0.0025, ("transfer", "prefill"): 0.0054, ("handshake", "decode"): 0.03741,
            ("prealloc", "decode"): 0.00031, ("transfer", "decode"): 6.30308, ("decode queue", "decode"): 0.00021,
            ("decode", "decode"): 0.13352,
        },
    ),
}  # fmt: skip


def followed(folder: Path, release: str) -> Room:
    prefill, decode, _ = RELEASES[release]
    return pasted.room(
        folder, ROOM, prefill=[f"[2026-11-21 19:44:34] {prefill}"], decode=[f"[2026-11-21 19:44:41] {decode}"]
    )  # fmt: skip


def one(room: Room, name: str, instance: str) -> Duration:
    (found,) = (each for each in room.durations if (each.name, each.instance) == (name, instance))
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_the_times_of_a_request(tmp_path: Path, release: str) -> None:
    found = {(each.name, each.instance): each.seconds for each in followed(tmp_path, release).durations}
    assert found == pytest.approx(RELEASES[release][-1])


def test_a_prefill_tells_what_it_moved(tmp_path: Path) -> None:
    moved = one(followed(tmp_path, "0.5.18"), "transfer", "prefill")
    assert (moved.bytes, moved.gb_s) == (30_000, 0.07)
    old = one(followed(tmp_path, "0.5.8"), "transfer", "prefill")
    assert (old.bytes, old.gb_s) == (2_000_000, 0.5)


def test_parts_follow_one_another_from_when_the_request_came(tmp_path: Path) -> None:
    """entry_time is a wall clock from 0.5.13 on; the room's first line is at 0 s, in the second of its stamp."""
    room = followed(tmp_path, "0.5.23")
    starts = [
        one(room, name, "decode").start for name in ("handshake", "prealloc", "transfer", "decode queue", "decode")
    ]
    known = [start for start in starts if start is not None]
    assert len(known) == 5
    assert known == sorted(known)
    assert known[2] - known[0] == pytest.approx(0.03741 + 0.00031, abs=1e-4)


def test_older_releases_do_not_say_when_the_parts_began(tmp_path: Path) -> None:
    assert all(each.start is None for each in followed(tmp_path, "0.5.3").durations)


def test_a_time_out_tells_how_long_it_waited(tmp_path: Path) -> None:
    said = (
        f"[2026-11-21 19:50:00] Prefill bootstrap failed for request rank=0 req.rid='{RID}' "
        f"req.bootstrap_room={ROOM} with exception KVTransferError(bootstrap_room={ROOM}): Request {ROOM} timed out "
        "after 300.0s in KVPoll.Bootstrapping"
    )
    room = pasted.room(tmp_path, ROOM, prefill=[said])
    waited = one(room, "bootstrap wait", "prefill")
    assert (waited.start, waited.seconds) == (-300.0, 300.0)
    assert room.gap is not None
    assert room.gap.seconds == 300.0


def test_one_stretch_told_three_times_is_one(tmp_path: Path) -> None:
    """pdctl's own decode says it when the cache arrives, when the room runs, and in its sum."""
    room = pasted.room(
        tmp_path, ROOM,
        decode=[
            f"[2026-11-21 19:44:33] Room step: room={ROOM} rid='{RID}' phase=transfer pages=1 prealloc=0.000888",
            f"[2026-11-21 19:44:47] room={ROOM} KV cache arrived rid='{RID}' pages=27 bytes=884736 "
            "seconds=13.520713 from=127.0.0.1:8998",
            f"[2026-11-21 19:44:47] Room step: room={ROOM} rid='{RID}' phase=running transfer=13.521108",
            f"[2026-11-21 19:44:47] ReqTimeStats({NEW}, type=decode): prealloc_queue_duration=3.49ms, "
            "transfer_duration=13521.11ms, entry_time=1795290273.752",
        ],
    )  # fmt: skip
    moved = one(room, "transfer", "decode")
    assert moved.bytes == 884736
    assert moved.gb_s == pytest.approx(884736 / 13.520713 / 1e9)


def test_an_answer_nobody_logged_is_not_asked_of_a_flag_that_is_on(tmp_path: Path) -> None:
    """With --log-requests a request that was cut short has its times, and no `Finish`: the client left."""
    times = f"{at(12)} {RELEASES['0.5.8'][1]}"
    logged = ", log_requests=True"
    room = pasted.room(
        tmp_path, ROOM,
        p0=engine("prefill", 30000, 8998, received(11, ROOM, RID), more=logged),
        d0=engine("decode", 30002, 8998, received(11, ROOM, RID), times, more=logged),
    )  # fmt: skip
    (said,) = [one for one in room.missing_evidence if one.what.startswith("how the room ended")]
    assert said.what.endswith("had done its part and logged no answer, as for a client that left")
    assert "--enable-request-time-stats-logging" not in str(room.missing_evidence)
