"""One generation request after intake: what goes to the scheduler, and what the tokenizer manager keeps to itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.ipc.messages import Generate, Sampling


@dataclass(frozen=True, slots=True)
class Options:
    """How one prompt is to be answered. `stops` are strings, matched on decoded text; `n` samples of each prompt."""

    sampling: Sampling
    stops: tuple[str, ...] = ()
    trim_stop: bool = True
    skip_special: bool = True
    n: int = 1
    return_logprob: bool = False
    top_logprobs: int = 0
    # Whether max_new_tokens was asked for (then it must fit) or is a default (then it shrinks to what fits).
    explicit_length: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text still to be tokenized, or ids. `special` adds the tokenizer's own begin and end tokens to text."""

    text: str | None = None
    ids: Sequence[int] | None = None
    special: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """`index` counts samples over the whole HTTP request: prompt by prompt, `n` of each."""

    message: Generate
    options: Options
    index: int = 0

    @property
    def rid(self) -> str:
        return self.message.rid

    @property
    def describe(self) -> str:
        """SGLang's level-0 request line: the one place where a rid and its room stand together."""
        message = self.message
        return (
            f"GenerateReqInput(rid={message.rid!r}, bootstrap_host={message.bootstrap_host!r}, "
            f"bootstrap_port={message.bootstrap_port}, bootstrap_room={message.bootstrap_room})"
        )
