"""POST /v1/completions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from pdctl.engine.http import answers, openai
from pdctl.engine.http.generate import id_rows
from pdctl.engine.jobs import Options, Prompt
from pdctl.engine.refusal import Refusal
from pdctl.engine.requests import CompletionBody

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.engine.instance import Instance
    from pdctl.engine.pending import Pending
    from pdctl.engine.tokenizer import Tokenizer

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    instance: Instance = request.app.state.instance
    manager, tokenizer = instance.manager, instance.checkpoint.tokenizer
    manager.admit()
    body = await answers.body(request, CompletionBody)
    prompts = _prompts(body)
    group = manager.submit(await instance.intake.jobs(prompts, [_options(body)], body), body.stream)
    echoes = [_echo(prompt, tokenizer) if body.echo else "" for prompt in prompts]
    head = {
        "id": group.members[0].job.rid,
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model or instance.args.name,
    }
    deltas = openai.Deltas(len(group.members))
    fresh = set(range(len(group.members)))  # members whose first chunk, which carries the echo, is still to come

    def choice(member: Pending, text: str, span: slice) -> dict[str, Any]:
        logprobs = None if body.logprobs is None else _logprobs(member, tokenizer, span)
        return {"index": member.job.index, "text": text, "logprobs": logprobs, **openai.ending(member)}

    def whole() -> object:
        choices = [
            choice(member, echoes[member.job.index // body.n] + member.text, slice(0, len(member.ids)))
            for member in group.members
        ]
        return {**head, "choices": choices, "usage": openai.usage(group.members, body.n)}

    def chunk(member: Pending) -> Iterable[bytes]:
        index = member.job.index
        text = deltas.text(member)
        if index in fresh:
            text = echoes[index // body.n] + text
            fresh.discard(index)
        if text or member.finish is not None:
            content: dict[str, Any] = {**head, "choices": [choice(member, text, deltas.tokens(member))]}
            if body.stream_options.continuous_usage_stats:
                content["usage"] = openai.usage([member], 1)
            yield answers.event(content)

    def tail() -> Iterable[bytes]:
        return openai.usage_events(head, body.stream_options, group.members, body.n)

    return await answers.respond(request, manager, group, whole, chunk, tail)


def _options(body: CompletionBody) -> Options:
    if body.max_tokens <= 0:
        raise Refusal(400, f"max_tokens must be positive, got {body.max_tokens}.")
    if body.best_of is not None and body.best_of != body.n:
        raise Refusal(400, "not supported by this engine: best_of other than n. Leave it out.", "unsupported")
    if body.echo and body.logprobs is not None:
        raise Refusal(
            400, "echo with logprobs: this engine has log probabilities of output tokens only.", "unsupported"
        )
    sampling = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
    }
    return openai.options(body, body.max_tokens, body.logprobs, sampling)


def _prompts(body: CompletionBody) -> list[Prompt]:
    prompt = body.prompt
    if isinstance(prompt, str):
        prompts = [Prompt(text=prompt)]
    elif prompt and isinstance(prompt[0], str):
        prompts = [Prompt(text=text) for text in prompt if isinstance(text, str)]
    else:
        prompts = [Prompt(ids=row) for row in id_rows(prompt)[0]]  # type: ignore[arg-type]  # strings are gone
    if not all(prompt.text or prompt.ids for prompt in prompts):
        raise Refusal(400, "Prompt cannot be empty")
    return prompts


def _echo(prompt: Prompt, tokenizer: Tokenizer) -> str:
    return prompt.text if prompt.text is not None else tokenizer.decode(list(prompt.ids or ()))


def _logprobs(member: Pending, tokenizer: Tokenizer, span: slice) -> dict[str, Any]:
    """OpenAI's legacy shape: parallel lists. Offsets count characters of the answer."""
    words = [tokenizer.token_text(token) for token in member.ids[: span.stop]]
    offsets = [0]
    for word in words:
        offsets.append(offsets[-1] + len(word))
    return {
        "tokens": words[span],
        "token_logprobs": member.logprobs[span],
        "text_offset": offsets[:-1][span],
        "top_logprobs": [
            {tokenizer.token_text(token): logprob for token, logprob in row} for row in member.top_logprobs[span]
        ],
    }
