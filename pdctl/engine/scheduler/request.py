"""One request as a rank sees it: its tokens, its pages, its place in the queues, and when each step happened."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pdctl.engine.messages import Finish, Generate, Meta

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pdctl.engine.disaggregation.receiver import Receiver
    from pdctl.engine.disaggregation.sender import Sender

NO_PAGES: NDArray[np.int32] = np.empty(0, dtype=np.int32)


@dataclass(slots=True)
class Times:
    """Seconds since the epoch at which each step was reached; 0 until then."""

    received: float
    bootstrapped: float = 0.0
    forward: float = 0.0
    first_token: float = 0.0
    sent: float = 0.0
    transferred: float = 0.0

    @property
    def reached(self) -> dict[str, float]:
        """Step → when, for those that were reached."""
        return {name: when for name in self.__slots__ if (when := getattr(self, name))}


@dataclass(slots=True, eq=False)
class Req:
    """`computed` counts the tokens whose K and V are in the pool; `sent_pages` the pages handed to the sender."""

    message: Generate
    max_new_tokens: int
    times: Times
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    pages: NDArray[np.int32] = field(default_factory=lambda: NO_PAGES)
    computed: int = 0
    sent_pages: int = 0
    row: int = -1
    metadata_slot: int = -1
    sender: Sender | None = None
    receiver: Receiver | None = None
    finish: Finish | None = None

    @classmethod
    def of(cls, message: Generate, max_new_tokens: int) -> Req:
        return cls(message, max_new_tokens, Times(message.received or time.time()))

    @property
    def rid(self) -> str:
        return self.message.rid

    @property
    def room(self) -> int:
        return self.message.bootstrap_room or 0

    @property
    def input_ids(self) -> list[int]:
        return self.message.input_ids

    @property
    def prompt_len(self) -> int:
        return len(self.message.input_ids)

    @property
    def length(self) -> int:
        """Tokens so far: prompt and output."""
        return self.prompt_len + len(self.output_ids)

    def append(self, token: int, eos: frozenset[int], limit: int) -> None:
        """Take one output token and decide whether it ends the request (`limit`: the context length)."""
        self.output_ids.append(token)
        sampling = self.message.sampling
        made = len(self.output_ids)
        stops = token in sampling.stop_token_ids or (token in eos and not sampling.ignore_eos)
        if stops and made >= sampling.min_new_tokens:
            self.finish = Finish("stop", matched=token)
        elif made >= self.max_new_tokens or self.length >= limit:
            self.finish = Finish("length", length=made)

    def meta(self, dp_rank: int | None) -> Meta:
        at = self.times
        stats = self.sender.stats if self.sender else self.receiver.stats if self.receiver else None
        return Meta(
            prompt_tokens=self.prompt_len,
            completion_tokens=len(self.output_ids),
            queue_time=max(0.0, at.forward - (at.bootstrapped or at.received)) if at.forward else 0.0,
            bootstrap_time=max(0.0, at.bootstrapped - at.received) if at.bootstrapped else 0.0,
            transfer_time=stats.transfer if stats else 0.0,
            transfer_bytes=stats.nbytes if stats else 0,
            forward_entry_time=at.forward,
            dp_rank=dp_rank,
            steps=at.reached,
        )
