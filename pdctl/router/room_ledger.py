"""Which room went where, and how often: every request in flight, the last ones that ended, and counters."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SCHEMA = "pdctl.router.rooms/1"
LINE_BYTES = 32 * 1024  # of the rooms and rids in one log line: pdctl's own reader keeps 64 KiB of a line
ROOM_BYTES = 18  # of a room below 2^53, and two commas
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class RoomLedger:
    """Bounded by rooms, not requests: a batch of a thousand counts a thousand. Requests in flight are never dropped."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._running: dict[int, Record] = {}
        self._ended: OrderedDict[int, Record] = OrderedDict()

    def open(self, record: Record) -> None:
        for room in record.rooms:
            self._running[room] = record

    def close(self, record: Record, outcome: AttemptOutcome, status: int) -> None:
        record.outcome, record.status, record.ended = outcome, status, time.monotonic()
        for room in record.rooms:
            self._running.pop(room, None)
            self._ended[room] = record
        while len(self._ended) > self._size:
            self._ended.popitem(last=False)

    def find(self, room: int) -> Record | None:
        return self._running.get(room) or self._ended.get(room)

    def holds(self, rooms: tuple[int, ...]) -> bool:
        """Return whether one of these rooms is in use: rooms are random, and two requests must never share one."""
        return not self._running.keys().isdisjoint(rooms)

    @property
    def running(self) -> int:
        """Rooms in flight."""
        return len(self._running)

    def rid_in_flight(self, rid: str, but: Record) -> bool:
        """Return whether another request in flight has a rid that starts with this one."""
        return any(
            other.startswith(rid) for record in self._running.values() if record is not but for other in record.rids
        )

    def records(self) -> Iterator[Record]:
        """Yield each record once: those in flight, then those that ended, newest first."""
        seen: set[int] = set()
        for record in (*self._running.values(), *reversed(self._ended.values())):
            if id(record) not in seen:
                seen.add(id(record))
                yield record


class Record:
    """One attempt of one request: one pair, new rooms. `started` is wall time, the others monotonic, 0 if unset."""

    __slots__ = (
        "attempt",
        "began",
        "bootstrap",
        "decode",
        "decode_leg",
        "ended",
        "first_byte",
        "outcome",
        "path",
        "prefill",
        "prefill_leg",
        "request_id",
        "rids",
        "rooms",
        "started",
        "status",
        "stream",
    )

    def __init__(
        self,
        *,
        rooms: tuple[int, ...],
        request_id: str,
        rids: tuple[str, ...],
        path: str,
        stream: bool,
        attempt: int,
        prefill: str,
        decode: str,
        bootstrap: str,
    ) -> None:
        self.rooms, self.request_id, self.rids, self.path, self.stream = rooms, request_id, rids, path, stream
        self.attempt, self.prefill, self.decode, self.bootstrap = attempt, prefill, decode, bootstrap
        self.started = time.time()
        self.began = time.monotonic()
        self.first_byte = self.ended = 0.0
        self.outcome = AttemptOutcome.RUNNING
        self.status = 0
        self.prefill_leg = LegRecord()
        self.decode_leg = LegRecord()

    def where(self) -> list[str]:
        """The part of a log line that says which request this is and which way it went.

        A large batch has several, with some of the rooms and their rids each: readers of logs cut long lines.
        """
        way = f"request_id={self.request_id} attempt={self.attempt} prefill={self.prefill} decode={self.decode}"
        rooms, rids = self.rooms, self.rids
        if len(rooms) == 1 and len(rids) < 2:
            return [f"room={rooms[0]} rid={rids[0] if rids else self.request_id} {way}"]
        count = LINE_BYTES // (ROOM_BYTES + 4 * max(map(len, rids), default=0))  # 4: the most bytes of a character
        paired = len(rids) == len(rooms)  # otherwise the engines refuse the rids, and some of them are enough
        found = []
        for at in range(0, len(rooms), count):
            rid = ",".join(rids[at : at + count] if paired else rids[:count]) or self.request_id
            found.append(f"room={','.join(map(str, rooms[at : at + count]))} rid={rid} {way}")
        return found

    def document(self) -> dict[str, object]:
        """Return the record for JSON; rooms are below 2^53, so that every JSON reader preserves them."""
        legs = {"prefill": self.prefill_leg.document(self.began), "decode": self.decode_leg.document(self.began)}
        return {
            "room": self.rooms[0],
            "rooms": list(self.rooms),
            "request_id": self.request_id,
            "rid": ",".join(self.rids) or None,
            "path": self.path,
            "stream": self.stream,
            "attempt": self.attempt,
            "prefill": self.prefill,
            "decode": self.decode,
            "bootstrap": self.bootstrap,
            "started": self.started,
            "age_ms": None if self.ended else milliseconds(self.began, time.monotonic()),
            "outcome": self.outcome.value,
            "status": self.status or None,
            "first_byte_ms": milliseconds(self.began, self.first_byte),
            "total_ms": milliseconds(self.began, self.ended),
            "legs": legs,
        }


class LegRecord:
    """Monotonic times; 0 for what has not happened yet."""

    __slots__ = ("answered", "ended", "problem", "status")

    def __init__(self) -> None:
        self.status = 0
        self.answered = self.ended = 0.0
        self.problem = ""

    def document(self, began: float) -> dict[str, object]:
        return {
            "status": self.status or None,
            "answered_ms": milliseconds(began, self.answered),
            "ended_ms": milliseconds(began, self.ended),
            "problem": self.problem or None,
        }


class AttemptOutcome(str, Enum):
    """How an attempt ended."""

    RUNNING = "running"
    OK = "ok"
    REFUSED = "refused"  # a leg answered 4xx: the client's own fault, passed on
    FAILED = "failed"  # a leg failed before the client had a byte
    BROKEN = "broken"  # decode failed after the client had the first byte
    GONE = "client_gone"


def milliseconds(began: float, then: float) -> float | None:
    """Return the milliseconds between two monotonic times; None for what has not happened."""
    return round((then - began) * 1000, 3) if then else None


class RouterStats:
    """`requests` by (path, status): paths are the router's own routes, so the number of series is bounded."""

    __slots__ = ("client_gone", "requests", "retries")

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.retries = 0
        self.client_gone = 0


class PairStats:
    """`attempts` by outcome; `leg_failures` by (leg, cause)."""

    __slots__ = ("attempts", "duration", "first_byte", "leg_failures")

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.leg_failures: Counter[tuple[str, str]] = Counter()
        self.first_byte = Histogram()
        self.duration = Histogram()


class Histogram:
    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> Iterable[str]:
        total = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum:.6f}"
        yield f"{name}_count{{{labels}}} {total}"
