"""From a checked body to jobs: batches and samples expanded, prompts tokenized and measured, rids and rooms given."""

from __future__ import annotations

import asyncio
import uuid
from array import array
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from pdctl.client_text import rid_problem
from pdctl.engine.frontend.jobs import Job, Options, Prompt
from pdctl.engine.frontend.refusal import Refusal
from pdctl.engine.frontend.room_of_request import Pairing, pairings
from pdctl.engine.frontend.turns import Turns
from pdctl.engine.ipc import steady_clock
from pdctl.engine.ipc.messages import Generate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.frontend.request_bodies import RoutedBody
    from pdctl.engine.frontend.tokenizer import Tokenizer

MAX_BATCH = 4096
# Longer texts are tokenized on a thread (the tokenizer releases the GIL), so that streams keep flowing meanwhile.
INLINE_CHARS = 2048
MAX_TOP_LOGPROBS = 128
TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Limits:
    """`context` counts prompt and answer together; `prompt` is the longest prompt the pool can hold."""

    context: int
    prompt: int


class Intake:
    """`limits` are unknown until a rank has reported them."""

    def __init__(self, args: ServerArgs, tokenizer: Tokenizer) -> None:
        self._args = args
        self._tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize")
        self.limits = Limits(context=0, prompt=0)

    async def jobs(
        self, prompts: Sequence[Prompt], options: Sequence[Options], body: RoutedBody, admit: Callable[[int], None]
    ) -> tuple[Job, ...]:
        """`options` has one entry, or one for each prompt. `admit` raises Refusal where so many requests have no room.

        Raises Refusal (400) with the first thing that is wrong.
        """
        received = steady_clock.now()
        samples = options[0].n
        if any(option.n != samples for option in options):
            raise Refusal(400, "The parallel_sample_num should be the same for all samples in sample params.")
        count = len(prompts) * samples
        if not 0 < count <= MAX_BATCH:
            raise Refusal(400, f"a request may hold 1 to {MAX_BATCH} prompts times samples, got {count}")
        admit(count)
        rids = _rids(body.rid, len(prompts), samples)
        pairs = pairings(body, self._args, rids, samples)
        generate = partial(
            Generate,
            received=received,
            routed_dp_rank=self._dp_rank(body),
            disagg_prefill_dp_rank=body.disagg_prefill_dp_rank,
        )
        jobs: list[Job] = []
        turns = Turns()  # a batch of thousands of prompts holds up nobody else
        for number, prompt in enumerate(prompts):
            ids = await self._ids(prompt)
            await turns.after(len(ids), samples)
            option = self._fit(options[number if len(options) > 1 else 0], len(ids))
            for sample in range(samples):
                index = number * samples + sample
                jobs.append(
                    Job(_message(generate, rids[index], ids, _sample(option, sample), pairs[index]), option, index)
                )
        return tuple(jobs)

    async def _ids(self, prompt: Prompt) -> list[int]:
        if prompt.ids is not None:
            ids = cast("list[int]", prompt.ids)  # or an array: `messages.Generate` is encoded all the same
            if not isinstance(ids, array):  # those of an array were checked as they were read
                self._tokenizer.check_ids(ids)
        else:
            ids = await self._encode(prompt.text or "", prompt.special)
        if not ids:
            raise Refusal(400, "the prompt is empty: it has no tokens.")
        if len(ids) >= self.limits.context:
            raise self._too_long(f"{len(ids)} tokens")
        if len(ids) > self.limits.prompt:
            raise Refusal(
                400,
                f"The input ({len(ids)} tokens) is longer than the KV cache of this instance can hold "
                f"({self.limits.prompt} tokens); raise --max-total-tokens or send a shorter prompt.",
                TOO_LONG,
            )
        return ids

    def _too_long(self, size: str) -> Refusal:
        context = self.limits.context
        text = f"The input ({size}) is longer than the model's context length ({context} tokens)."
        return Refusal(400, text, TOO_LONG)

    async def _encode(self, text: str, special: bool) -> list[int]:
        fewest = len(text) // self._tokenizer.longest_token
        if fewest >= self.limits.context:
            raise self._too_long(f"{len(text)} characters, at least {fewest} tokens")
        if len(text) <= INLINE_CHARS:
            return self._tokenizer.encode(text, special)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._tokenizer.encode, text, special)

    def _fit(self, option: Options, prompt: int) -> Options:
        """An answer length that was asked for must fit; a default one shrinks to what the context leaves."""
        wanted, context = option.sampling.max_new_tokens, self.limits.context
        if prompt + wanted <= context:
            return option
        if option.explicit_length:
            raise Refusal(
                400,
                f"Requested token count exceeds the model's maximum context length of {context} tokens. "
                f"You requested a total of {prompt + wanted} tokens: {prompt} tokens from the input messages and "
                f"{wanted} tokens for the completion. Please reduce the number of tokens in the input messages or the "
                "completion to fit within the limit.",
                TOO_LONG,
            )
        return replace(option, sampling=msgspec.structs.replace(option.sampling, max_new_tokens=context - prompt))

    def _dp_rank(self, body: RoutedBody) -> int | None:
        rank = body.data_parallel_rank if body.routed_dp_rank is None else body.routed_dp_rank
        if rank is not None and rank >= self._args.dp_ranks:
            raise Refusal(400, f"routed_dp_rank={rank} out of range [0, {self._args.dp_ranks})")
        return rank


def _message(generate: Callable[..., Generate], rid: str, ids: list[int], option: Options, pair: Pairing) -> Generate:
    return generate(
        rid=rid,
        input_ids=ids,
        sampling=option.sampling,
        bootstrap_host=pair.host,
        bootstrap_port=pair.port,
        bootstrap_room=pair.room,
        return_logprob=option.return_logprob,
        top_logprobs_num=option.top_logprobs,
    )


def _sample(option: Options, sample: int) -> Options:
    """A seed asked for once must not make every sample of a prompt the same."""
    seed = option.sampling.seed
    if not sample or seed is None:
        return option
    return replace(option, sampling=msgspec.structs.replace(option.sampling, seed=seed ^ sample))


def _rids(given: str | list[str] | None, prompts: int, samples: int) -> list[str]:
    """sglang: a single rid on a batch becomes rid_0, rid_1, …; a list has one for each prompt."""
    if given is None:
        return [uuid.uuid4().hex for _ in range(prompts * samples)]
    names = [given] if isinstance(given, str) else given
    for name in names:
        problem = rid_problem(name)
        if problem:
            raise Refusal(400, problem)
    if isinstance(given, str):
        return [given] if prompts * samples == 1 else [f"{given}_{index}" for index in range(prompts * samples)]
    if len(given) != prompts:
        raise Refusal(400, "The specified rids length mismatch with the batch_size for batch processing.")
    if len(set(given)) != len(given):
        twice = [name for name, count in Counter(given).items() if count > 1][:8]
        raise Refusal(400, f"Duplicate request IDs detected within the request: {twice}")
    if samples == 1:
        return given
    return [f"{name}_{sample}" for name in given for sample in range(samples)]
