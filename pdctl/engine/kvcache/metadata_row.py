"""The data of the first token, which travels with the last KV chunk (sglang 0.5.23 MetadataBuffers).

Row on the wire, little-endian: version u8, count of top logprobs u8, reserved u16, output_id i32, room u64,
cached_tokens i32, logprob f32, then per top logprob: token i32, logprob f32.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 1
MAX_TOP_LOGPROBS = 128
ANY = 2**31  # token ids and counts are i32 on the wire
HEADER = struct.Struct("<BBHiQif")
PAIR = struct.Struct("<if")


class ContextCorruptionError(PdctlError):
    """What arrived does not belong to this room, or cannot be right."""


class MetadataLeakError(RuntimeError):
    """A metadata slot was freed twice, or is still allocated while nothing runs."""


@dataclass(frozen=True, slots=True)
class MetadataRow:
    """What the prefill tells the decode beside the KV pages. `logprob` is NaN if none was asked for."""

    room: int
    output_id: int
    cached_tokens: int = 0
    logprob: float = math.nan
    top_logprobs: tuple[tuple[int, float], ...] = ()

    def encode(self) -> bytes:
        count = len(self.top_logprobs)
        if count > MAX_TOP_LOGPROBS:
            raise ValueError(f"{count} top logprobs do not fit in a metadata row; the limit is {MAX_TOP_LOGPROBS}")
        head = HEADER.pack(VERSION, count, 0, self.output_id, self.room, self.cached_tokens, self.logprob)
        return head + b"".join(PAIR.pack(token, value) for token, value in self.top_logprobs)

    @classmethod
    def decode(cls, data: bytes) -> MetadataRow:
        """Parse a row. Raise ContextCorruptionError if the bytes are not a whole row of this version."""
        if len(data) < HEADER.size:
            raise ContextCorruptionError(f"metadata of {len(data)} bytes; a row has at least {HEADER.size}")
        version, count, _, output_id, room, cached_tokens, logprob = HEADER.unpack_from(data)
        if version != VERSION:
            raise ContextCorruptionError(
                f"metadata row of version {version}, this engine reads {VERSION}",
                "run the same pdctl version on the prefill and the decode side",
            )
        if len(data) != HEADER.size + count * PAIR.size:
            raise ContextCorruptionError(f"metadata of {len(data)} bytes does not hold {count} top logprobs")
        pairs = tuple(PAIR.iter_unpack(data[HEADER.size :]))
        return cls(room, output_id, cached_tokens, logprob, pairs)


def believed_row(data: bytes | None, room: int, prompt: int = ANY, vocab: int = ANY) -> MetadataRow:
    """Return the row that arrived for `room`, whose prompt has `prompt` tokens; valid token ids are below `vocab`.

    Raise ContextCorruptionError if nothing arrived, or if the row is malformed, another room's, or has impossible token
    ids or counts.
    """
    if data is None:
        raise ContextCorruptionError(f"no metadata of room {room} arrived")
    row = MetadataRow.decode(data)
    if row.room != room:
        raise ContextCorruptionError(
            f"context corruption detected: the metadata row carries room {row.room}, expected room {room}",
            "the KV pages of both rooms are suspect: the request is aborted, nothing is reused",
        )
    for token in (row.output_id, *(token for token, _ in row.top_logprobs)):
        if not 0 <= token < vocab:
            raise ContextCorruptionError(
                f"metadata of room {room} names token {token}; the vocabulary has 0 to {vocab - 1}",
                "start prefill and decode with the same model",
            )
    if not 0 <= row.cached_tokens <= prompt:
        raise ContextCorruptionError(
            f"metadata of room {room} says that {row.cached_tokens} of {prompt} prompt tokens were cached",
            "start prefill and decode with the same pdctl version",
        )
    return row


class MetadataSlots:
    """Limits how many rooms of a prefill may be between their decode's page list and the end of their transfer.

    SGLang's slots are memory the row is written from (sglang 0.5.23 MetadataBuffers); here they are only counted.
    """

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._out = [False] * slots

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def alloc(self) -> int | None:
        """Return a free slot, or None if every slot is taken."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._out[slot] = True
        return slot

    def free(self, slot: int | Sequence[int]) -> None:
        for one in (slot,) if isinstance(slot, int) else slot:
            self._require(one)
            self._out[one] = False
            self._free.append(one)

    def check(self, expected_out: int | None = None) -> None:
        """Raise MetadataLeakError unless the slots add up; `expected_out` is 0 when the scheduler is idle."""
        out = sum(self._out)
        if out + len(self._free) != len(self._out):
            raise MetadataLeakError(f"metadata books differ: {out} out, {len(self._free)} free of {len(self._out)}")
        if expected_out is not None and out != expected_out:
            raise MetadataLeakError(f"metadata slots leak: {out} slots out, {expected_out} expected")

    def _require(self, slot: int) -> None:
        if not 0 <= slot < len(self._out) or not self._out[slot]:
            raise MetadataLeakError(f"metadata slot {slot} is not out")
