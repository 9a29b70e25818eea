"""The clock of a simulation: a heap of what is due, and the log of what has happened with its SHA-256.

What is due at the same nanosecond happens in the order of its kind, then in the order in which it was scheduled, so
that a run is the same on every machine. Times are integer nanoseconds of simulated time.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SECOND = 10**9  # ns
CHUNK = 1 << 16  # numbers of the log that are hashed at a time
TURNS = 1 << 13  # events between two looks at the log's chunk and at whoever watches


class DueEvent:
    """What is due. At one moment the end of something comes before what may begin because of it."""

    FLOW_ENDS = 0
    STEP_ENDS = 1
    PASS_ENDS = 2
    LAYER_ENDS = 3
    TIMER = 4
    LOAD_BEGINS = 5
    ARRIVAL = 6
    ROOMS_ASK = 7
    DECISION = 8
    SAMPLE = 9


DUE_EVENTS = DueEvent.SAMPLE + 1


class LoggedEvent:
    """What a record of the log says of a room and a replica. Plain numbers: an Enum's member costs more to look up."""

    ARRIVED = 1
    TOO_LARGE = 2  # no replica is large enough for it
    PAGES_RESERVED = 3
    PROMPT_BEGAN = 4
    PROMPT_COMPUTED = 5
    TRANSFER_BEGAN = 6
    TRANSFER_ENDED = 7
    JOINED = 8
    FINISHED = 9
    MOVED = 10  # away from the replica, which takes no KV cache any more
    STATE_CHANGED = 11  # of a replica; in the room's place the number of the new state
    DECIDED = 12  # in place of room and replica the two deltas
    WEIGHTS_ARRIVED = 13  # in the room's place the layers
    PASS_ENDED = 14  # in the room's place how many rooms were in it
    STEPS_ENDED = 15  # in the room's place how many, since the batch changed
    RETRACTED = 16  # its pages are taken from it for others that run
    RESUMED = 17


class EventLog:
    """Records of four int64 each, little-endian in the digest: time, event, room, replica."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._sha256 = hashlib.sha256()
        self._hashed = 0
        self.write: Callable[[Sequence[int]], None] = (
            self._numbers.extend
        )  # one record; a method would cost as much again

    @property
    def records(self) -> int:
        return (self._hashed + len(self._numbers)) // 4

    def hash_chunk(self, least: int = CHUNK) -> None:
        numbers = self._numbers
        if len(numbers) < least:
            return
        self._hashed += len(numbers)
        if sys.byteorder == "big":
            numbers.byteswap()
        self._sha256.update(numbers)
        del numbers[:]

    def digest(self) -> str:
        self.hash_chunk(0)
        return self._sha256.hexdigest()


class Kernel:
    """`handlers`: what is called for each kind with the time and the two numbers that were scheduled with it."""

    def __init__(self) -> None:
        self.log = EventLog()
        self.now_ns = 0
        self._due: list[tuple[int, int, int, int, int]] = []
        self._scheduled = 0
        self.handlers: list[Callable[[int, int, int], None]] = [_unhandled] * DUE_EVENTS

    def schedule(self, time_ns: int, kind: int, subject: int, token: int = 0) -> int:
        """Return the number of the entry, which is later than that of every entry before."""
        self._scheduled = number = self._scheduled + 1
        heappush(self._due, (time_ns, kind, number, subject, token))
        return number

    def run(self, until_ns: int, watch: Callable[[int], bool | None] | None = None) -> bool:
        """Let all happen that is due by `until_ns`, or until a handler calls `stop`. Return False if `watch` ended it.

        `watch` is told the time now and then, and ends the run by answering True.
        """
        due, handlers = self._due, self.handlers
        while due:
            for _ in range(TURNS):
                if not due:
                    break
                time_ns, kind, _number, subject, token = heappop(due)
                if time_ns > until_ns:
                    due.clear()
                    return True
                self.now_ns = time_ns
                handlers[kind](time_ns, subject, token)
            self.log.hash_chunk()
            if watch is not None and watch(self.now_ns):
                return False
        return True

    def stop(self) -> None:
        self._due.clear()


def _unhandled(time_ns: int, subject: int, token: int) -> None:
    raise AssertionError(f"nobody handles what is due at {time_ns} ns for {subject} ({token})")
