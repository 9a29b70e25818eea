"""The steps of one room's life, in causal order, in SGLang's own terms (0.5.3 to 0.5.23)."""

from __future__ import annotations

from enum import Enum


class Phase(str, Enum):
    """What a line proves about its room. The order of the members is the causal order; the last five end a room."""

    DISPATCHED = "dispatched"  # the router chose a pair
    RECEIVED = "received"  # an engine has the HTTP request
    BOOTSTRAP = "bootstrap"  # prefill: in the bootstrap queue, waiting for the decode's page list
    PREALLOC = "prealloc"  # decode: knows the room; resolving the prefill, reserving pages
    HANDSHAKE = "handshake"  # TransferInfo sent by the decode, or arrived at a prefill
    FORWARD = "forward"  # prefill: waiting for or in its forward pass
    TRANSFER = "transfer"  # KV pages moving
    DECODE = "decode"  # KV arrived; the decode is generating
    FINISHED = "finished"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ABORTED = "aborted"
    REFUSED = "refused"  # the request itself was answered 4xx

    @property
    def order(self) -> int:
        return _ORDER[self]

    @property
    def ends(self) -> bool:
        return self in (Phase.FINISHED, Phase.FAILED, Phase.TIMED_OUT, Phase.ABORTED, Phase.REFUSED)


_ORDER = {phase: index for index, phase in enumerate(Phase)}
