"""What both OpenAI routes share: sampling fields, usage, finish reasons (sglang 0.5.23 srt/entrypoints/openai)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from pdctl.engine.frontend import responses
from pdctl.engine.frontend.generate import finish_reason
from pdctl.engine.frontend.intake import MAX_TOP_LOGPROBS
from pdctl.engine.frontend.jobs import Options
from pdctl.engine.frontend.refusal import Refusal
from pdctl.engine.frontend.request_bodies import SamplingBody
from pdctl.engine.frontend.sampling import sampling_from, stops_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.engine.frontend.request_bodies import OpenAIBody
    from pdctl.engine.frontend.request_state import Group, Pending
    from pdctl.engine.frontend.tokenizer import Tokenizer

TEXT_FORMATS = (None, "text")


def options(body: OpenAIBody, length: int | None, logprobs: int | None, sampling: dict[str, Any]) -> Options:
    """`length` None means as much as the context leaves. `logprobs` None means none, 0 the chosen token's only."""
    if body.response_format.get("type") not in TEXT_FORMATS:
        raise Refusal(
            400,
            f"not supported by this engine: response_format {body.response_format['type']!r}. Leave it out.",
            "unsupported",
        )
    if logprobs is not None and not 0 <= logprobs <= MAX_TOP_LOGPROBS:
        raise Refusal(400, f"the number of top log probabilities must be in [0, {MAX_TOP_LOGPROBS}], got {logprobs}.")
    fields = SamplingBody(
        max_new_tokens=length,
        min_new_tokens=body.min_tokens,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
        n=body.n,
        sampling_seed=body.seed,
        **sampling,
    )
    return Options(
        sampling=sampling_from(fields),
        stops=stops_from(body.stop),
        trim_stop=not body.no_stop_trim,
        skip_special=body.skip_special_tokens,
        n=body.n,
        return_logprob=logprobs is not None,
        top_logprobs=logprobs or 0,
        explicit_length=length is not None,
    )


def unbounded(given: Options, context: int) -> Options:
    """As long an answer as the context leaves after the prompt (intake shrinks it)."""
    return replace(given, sampling=msgspec.structs.replace(given.sampling, max_new_tokens=context))


def ending(member: Pending) -> dict[str, Any]:
    """`finish_reason` and sglang's `matched_stop`; both null while the answer goes on."""
    reason = finish_reason(member.finish, member.matched) or {}
    return {"finish_reason": reason.get("type"), "matched_stop": reason.get("matched")}


def usage(members: Sequence[Pending], samples: int) -> dict[str, Any]:
    """Each prompt counts once however many samples it has (sglang: usage_processor)."""
    prompts = members[::samples]
    prompt_tokens = sum(member.prompt_tokens for member in prompts)
    completion_tokens = sum(len(member.ids) for member in members)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(member.cached_tokens for member in prompts)},
        "reasoning_tokens": 0,
    }


class OpenAIShape:
    """State of one OpenAI answer. A stream's members are told apart by their index."""

    def __init__(self, body: OpenAIBody, group: Group, tokenizer: Tokenizer, kind: str, model: str) -> None:
        self.body = body
        self.group = group
        self.tokenizer = tokenizer
        self.head: dict[str, Any] = {
            "id": group.members[0].job.rid,
            "object": kind,
            "created": int(time.time()),
            "model": body.model or model,
        }
        self._sent = [0] * len(group.members)
        self._scored = [0] * len(group.members)
        self._greeted: set[int] = set()

    def first(self, member: Pending) -> bool:
        """Whether nothing has been said for `member` yet; true once."""
        new = member.job.index not in self._greeted
        self._greeted.add(member.job.index)
        return new

    def delta(self, member: Pending) -> str:
        """The text the client has not seen yet."""
        text, index = member.text, member.job.index
        fresh = text[self._sent[index] :]
        self._sent[index] = len(text)
        return fresh

    def unscored(self, member: Pending) -> slice:
        """The tokens whose log probabilities the client has not seen yet."""
        index = member.job.index
        span = slice(self._scored[index], min(len(member.logprobs), len(member.ids)))
        self._scored[index] = span.stop
        return span

    def answer(self, choices: list[dict[str, Any]]) -> object:
        return {**self.head, "choices": choices, "usage": usage(self.group.members, self.body.n)}

    def event(self, member: Pending, choice: dict[str, Any]) -> bytes:
        content = {**self.head, "choices": [{"index": member.job.index, **choice}]}
        if self.body.stream_options.continuous_usage_stats:
            content["usage"] = usage([member], 1)
        return responses.event(content)

    def tail(self) -> Iterable[bytes]:
        """The last chunk of a stream whose client asked for usage: no choices."""
        if self.body.stream_options.include_usage:
            yield responses.event(self.answer([]))
