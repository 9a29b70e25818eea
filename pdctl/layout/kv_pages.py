"""The pages of KV cache of a decode's requests: held, kept ahead, and when one more request may be admitted.

sglang 0.5.23 decode.py _allocatable_tokens: a request needs room for its tokens and for its headroom, which is
`--num-reserved-decode-tokens` more tokens, or what it may still generate if that is less. It is admitted if this leaves
all admitted requests their headroom, and if it could finish with all others retracted. Beyond their headroom, requests
grow as they generate, and make room for one another by retraction.

ScheduleBatch.retract_decode: the request with the fewest output tokens is retracted first; of several, the one with the
longest prompt, then the latest to arrive.

The scheduler of the engine and the decodes of a simulation count alike: both with these functions.
"""

from __future__ import annotations

from pdctl.quick_definitions import NamedTuple

RESERVED_DECODE_TOKENS = 512  # SGLang's default of --num-reserved-decode-tokens
HEADROOM_SHARE = 8  # the headroom of one request is at most this fraction (1/HEADROOM_SHARE) of the pool


def pages_for(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def most_headroom(reserved_tokens: int, page_size: int, capacity_tokens: int) -> int:
    """Return the tokens that are kept ahead of a request which may still generate more than that."""
    return min(reserved_tokens, max(page_size, capacity_tokens // HEADROOM_SHARE))


class AdmittedPages(NamedTuple):
    """Pages of all admitted requests together: those of tokens, those kept ahead, and the most that one may come to."""

    held: int = 0
    ahead: int = 0
    largest: int = 0

    def left(self, pool: int) -> int:
        """Return the pages of a pool of `pool` that one more request may take; below 0 where requests outgrew it."""
        return pool - self.held - max(self.ahead, self.largest - self.held)

    def could_finish(self, pool: int, most: int) -> bool:
        """Whether one more request that may come to `most` pages could finish with all others retracted."""
        return most - self.held <= self.left(pool)


def retraction_order(output_tokens: int, prompt_tokens: int, arrival: int) -> tuple[int, int, int]:
    """The request with the least of these is retracted first."""
    return output_tokens, -prompt_tokens, -arrival
