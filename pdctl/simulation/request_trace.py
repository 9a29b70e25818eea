"""What a simulation is driven by: requests with their arrival, prompt and answer, from a file or made from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class TraceRequest(NamedTuple):
    """One request. `arrival_ns` counts from the begin of the trace.

    `output_tokens` is at least 1, the first token included. `prefix_blocks` names the blocks of its prompt in their
    order: what two prompts have in common at their begin may be found in a prefix cache. Empty where a trace does not
    say it.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    prefix_blocks: tuple[int, ...] = ()


class RequestTrace(NamedTuple):
    """`requests` by arrival. `prefix_block_tokens`: tokens of one prefix block, 0 if the trace has none.

    `skipped` counts the rows of a file that could not be read, where these are left out.
    """

    name: str
    requests: Sequence[TraceRequest]
    prefix_block_tokens: int = 0
    skipped: int = 0
