"""Where a room stands, under SGLang's numbers (sglang 0.5.23 srt/disaggregation/base/conn.py KVPoll)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class KVPoll(IntEnum):
    """Ranks of a tensor-parallel group agree by the minimum: one failed rank fails all, the slowest decides."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING_FOR_INPUT = 2
    TRANSFERRING = 3
    SUCCESS = 4

    @property
    def label(self) -> str:
        """The spelling of SGLang's log lines: `KVPoll.WaitingForInput`."""
        return "KVPoll." + self.name.title().replace("_", "")

    @property
    def final(self) -> bool:
        return self in (KVPoll.FAILED, KVPoll.SUCCESS)

    def advanced(self, to: KVPoll) -> KVPoll:
        """The later of the two: a state only increases, a failure wins over any unfinished state, final ones stay."""
        if self.final:
            return self
        return to if to == KVPoll.FAILED else max(self, to)


@dataclass(frozen=True, slots=True)
class TransferStats:
    """What one room has moved so far, to or from this rank: the ranks of an instance add up to the room.

    Seconds; bytes. `handshake` ends when the other side is known to be ready. `transfer` is the whole of what follows,
    the prefill's computing between two chunks with it, and `moving` the part of it in which bytes moved. `descriptors`
    are contiguous blocks, and `room_nbytes` is what all ranks together move for these pages.
    """

    pages: int = 0
    nbytes: int = 0
    chunks: int = 0
    handshake: float = 0.0
    transfer: float = 0.0
    descriptors: int = 0
    room_nbytes: int = 0
    moving: float = 0.0

    @property
    def gb_s(self) -> float:
        """10⁹ bytes a second while bytes moved; 0 where none did."""
        return self.nbytes / self.moving / 1e9 if self.moving > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ManagerStats:
    """A KV manager's life so far; `rooms` and `draining` are the present."""

    rooms: int
    draining: int
    peers: int
    succeeded: int
    failed: int
    rejected_frames: int
    nbytes: int
