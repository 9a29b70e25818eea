"""One request as a rank sees it: its tokens, its pages, its place in the queues, and when each step happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.ipc import steady_clock
from pdctl.engine.ipc.messages import Finish, Generate, Meta
from pdctl.engine.kv_link.room_state import TransferStats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pdctl.engine.decode.receiver import Receiver
    from pdctl.engine.kvcache.kv_pool import Backup
    from pdctl.engine.kvcache.radix import Node
    from pdctl.engine.prefill.sender import Sender

NO_PAGES: NDArray[np.int32] = np.empty(0, dtype=np.int32)


@dataclass(slots=True)
class Times:
    """Seconds since the epoch at which each step was reached; 0 until then."""

    received: float
    ready: float = 0.0  # the other side is; only memory may be missing
    bootstrapped: float = 0.0
    forward: float = 0.0
    first_token: float = 0.0
    sent: float = 0.0
    transferred: float = 0.0
    failed: float = 0.0  # with pages that the other side may still write into

    @property
    def reached(self) -> dict[str, float]:
        """Step → when, for those that were reached."""
        return {name: when for name in self.__slots__ if (when := getattr(self, name))}


@dataclass(slots=True, eq=False)
class Req:
    """`computed` counts the tokens whose K and V are in the pool; `sent_pages` the pages handed to the sender.

    `cached` counts the prompt tokens a prefill found computed; the first `kept_pages` pages are known to the prefix
    cache, which `node` locks. `order` is the place in the order of arrival. While `computing`, a forward pass reads
    and writes the pages: a release in that time is only noted in `leaving`.
    """

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
    order: int = 0
    cached: int = 0
    kept_pages: int = 0
    node: Node | None = None
    backup: Backup | None = None
    retractions: int = 0
    retracted_output: int = 0
    computing: bool = False
    leaving: bool = False
    early: bool = False  # let in before its decode was heard of (prefill_role.py EarlyStarts)
    attempts: int = 0
    held_turns: int = 0
    sender: Sender | None = None
    receiver: Receiver | None = None
    finish: Finish | None = None

    @classmethod
    def of(cls, message: Generate, max_new_tokens: int) -> Req:
        return cls(message, max_new_tokens, Times(message.received or steady_clock.now()))

    @property
    def rid(self) -> str:
        return self.message.rid

    @property
    def room(self) -> int:
        return self.message.bootstrap_room or 0

    @property
    def fake(self) -> bool:
        """Warm-up and health: on a decode nothing arrives in its pages."""
        return self.message.bootstrap_host == FAKE_BOOTSTRAP_HOST

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

    @property
    def aborted(self) -> bool:
        return self.finish is not None and self.finish.type == "abort"

    def tokens(self, count: int) -> NDArray[np.int32]:
        """The first `count` tokens of prompt and output."""
        prompt = np.asarray(self.input_ids[:count], dtype=np.int32)
        more = count - len(prompt)
        return np.concatenate([prompt, np.asarray(self.output_ids[:more], dtype=np.int32)]) if more > 0 else prompt

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
        stats = self.sender.stats if self.sender else self.receiver.stats if self.receiver else TransferStats()
        return Meta(
            prompt_tokens=self.prompt_len,
            completion_tokens=len(self.output_ids),
            cached_tokens=self.cached,
            retractions=self.retractions,
            retracted_output_tokens=self.retracted_output,
            prefill_retries=max(0, self.attempts - 1),
            queue_time=max(0.0, at.forward - (at.bootstrapped or at.received)) if at.forward else 0.0,
            bootstrap_time=max(0.0, at.bootstrapped - at.received) if at.bootstrapped else 0.0,
            alloc_time=max(0.0, at.bootstrapped - at.ready) if at.bootstrapped and at.ready else 0.0,
            transfer_time=stats.transfer,
            transfer_bytes=stats.nbytes,
            transfer_room_bytes=stats.room_nbytes,
            transfer_pages=stats.pages,
            transfer_chunks=stats.chunks,
            transfer_descriptors=stats.descriptors,
            transfer_gb_s=stats.gb_s,
            forward_entry_time=at.forward,
            dp_rank=dp_rank,
            steps=at.reached,
        )
