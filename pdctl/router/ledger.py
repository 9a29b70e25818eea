"""Which room went where: every request in flight, and the last ones that ended, by room."""

from __future__ import annotations

import time
from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = "pdctl.router.rooms/1"


class Outcome(str, Enum):
    """How an attempt ended."""

    RUNNING = "running"
    OK = "ok"
    REFUSED = "refused"  # a leg answered 4xx: the client's own fault, handed on
    FAILED = "failed"  # a leg failed before the client had a byte
    BROKEN = "broken"  # decode failed after the client had the first byte
    GONE = "client_gone"


class LegRecord:
    """Milliseconds since the attempt began; None while it has not happened."""

    __slots__ = ("answered_ms", "ended_ms", "problem", "status")

    def __init__(self) -> None:
        self.status = 0
        self.answered_ms: float | None = None
        self.ended_ms: float | None = None
        self.problem = ""

    def document(self) -> dict[str, object]:
        return {"status": self.status or None, "answered_ms": self.answered_ms, "ended_ms": self.ended_ms,
                "problem": self.problem or None}  # fmt: skip


class Record:
    """One attempt of one request: one pair, fresh rooms."""

    __slots__ = (
        "attempt", "bootstrap", "decode", "decode_leg", "first_byte_ms", "outcome", "path", "prefill", "prefill_leg",
        "request_id", "rids", "rooms", "started", "status", "stream", "total_ms",
    )  # fmt: skip

    def __init__(
        self, *, rooms: tuple[int, ...], request_id: str, rids: tuple[str, ...], path: str, stream: bool, attempt: int,
        prefill: str, decode: str, bootstrap: str,
    ) -> None:  # fmt: skip
        self.rooms, self.request_id, self.rids, self.path, self.stream = rooms, request_id, rids, path, stream
        self.attempt, self.prefill, self.decode, self.bootstrap = attempt, prefill, decode, bootstrap
        self.started = time.time()
        self.outcome = Outcome.RUNNING
        self.status = 0
        self.first_byte_ms: float | None = None
        self.total_ms: float | None = None
        self.prefill_leg = LegRecord()
        self.decode_leg = LegRecord()

    @property
    def rid(self) -> str:
        """The engines' name of the request where the client gave one, else the router's."""
        return ",".join(self.rids) if self.rids else self.request_id

    def document(self) -> dict[str, object]:
        """For people and tools; rooms are below 2^53, so they survive any JSON reader."""
        return {
            "room": self.rooms[0], "rooms": list(self.rooms), "request_id": self.request_id, "rid": self.rid,
            "path": self.path, "stream": self.stream, "attempt": self.attempt, "prefill": self.prefill,
            "decode": self.decode, "bootstrap": self.bootstrap, "started": self.started,
            "age_ms": None if self.total_ms is not None else round((time.time() - self.started) * 1000, 3),
            "outcome": self.outcome.value, "status": self.status or None, "first_byte_ms": self.first_byte_ms,
            "total_ms": self.total_ms, "legs": {"prefill": self.prefill_leg.document(), "decode": self.decode_leg.document()},
        }  # fmt: skip


class Ledger:
    """Bounded by rooms, not by requests: a batch of a thousand counts a thousand. What is in flight is never forgotten."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._running: dict[int, Record] = {}
        self._ended: OrderedDict[int, Record] = OrderedDict()

    def open(self, record: Record) -> None:
        for room in record.rooms:
            self._running[room] = record

    def close(self, record: Record) -> None:
        for room in record.rooms:
            self._running.pop(room, None)
            self._ended[room] = record
        while len(self._ended) > self._size:
            self._ended.popitem(last=False)

    def find(self, room: int) -> Record | None:
        return self._running.get(room) or self._ended.get(room)

    def holds(self, rooms: tuple[int, ...]) -> bool:
        """Whether one of these rooms is in use: rooms are drawn at random, and two requests must never share one."""
        return any(room in self._running for room in rooms)

    @property
    def running(self) -> int:
        return len(self._running)

    def rid_in_flight(self, rid: str, but: Record) -> bool:
        """Whether another request in flight has a rid that begins like this one."""
        return any(
            other.startswith(rid) for record in self._running.values() if record is not but for other in record.rids
        )

    def records(self) -> Iterator[Record]:
        """Each record once: those in flight, then the newest that ended."""
        seen: set[int] = set()
        for record in (*self._running.values(), *reversed(self._ended.values())):
            if id(record) not in seen:
                seen.add(id(record))
                yield record
