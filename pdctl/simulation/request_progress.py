"""What a simulation knows of each request: a column of numbers per figure, a row per request of the trace."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from pdctl.simulation.replica_choice import NOBODY

if TYPE_CHECKING:
    from pdctl.simulation.fleet_shape import FleetShape
    from pdctl.simulation.request_trace import RequestTrace


class RequestProgress:
    def __init__(self, trace: RequestTrace, shape: FleetShape) -> None:
        requests = trace.requests
        self.arrival = array("q", [one.arrival_ns for one in requests])
        self.prompt = array("q", [one.prompt_tokens for one in requests])
        self.output = array("q", [one.output_tokens for one in requests])
        count = len(self.arrival)
        self.first_token = array("q", [-1]) * count
        self.end = array("q", [-1]) * count
        self.tbt = array("q", [0]) * count
        self.prefix_blocks = [one.prefix_blocks for one in requests] if trace.prefix_block_tokens else []
        page, own = shape.decode.block_tokens, shape.prefill.block_tokens
        sizes = zip(self.prompt, self.output, strict=True)
        self.blocks = array("q", [-(-(prompt + output) // page) for prompt, output in sizes])
        self.prompt_blocks = array("q", [-(-prompt // own) for prompt in self.prompt])
        self.source = array("i", [NOBODY]) * count  # the replica that computes its prompt
        self.decode = array("i", [NOBODY]) * count
        self.reserved = bytearray(count)  # 1: its decode has memory for it
        self.routed = bytearray(count)  # 1: it is in its prefill's queue, or was
        self.calls = bytearray(count)  # 1: it waits for the lock of its decode
        self.computed = array("q", [0]) * count  # prompt tokens with KV cache
        self.sent = array("q", [0]) * count  # those whose KV cache is under way, or has arrived
        self.transfers = array("i", [0]) * count  # parts of its KV cache that are under way
        self.ended = 0
        self.too_large = 0
