"""POST /v1/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from pdctl.engine.frontend import openai, responses
from pdctl.engine.frontend.generate import id_rows
from pdctl.engine.frontend.jobs import Options, Prompt
from pdctl.engine.frontend.refusal import Refusal
from pdctl.engine.frontend.request_bodies import CompletionBody

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.engine.frontend.instance import Instance
    from pdctl.engine.frontend.request_state import Group, Pending
    from pdctl.engine.frontend.tokenizer import Tokenizer

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    instance: Instance = request.app.state.instance
    manager, tokenizer = instance.manager, instance.checkpoint.tokenizer
    manager.admit()
    body = await responses.body(request, CompletionBody)
    prompts = _prompts(body)
    jobs = await instance.intake.jobs(prompts, [_options(body)], body, manager.admit)
    group = await manager.submit(jobs, body.stream, request.headers.get("traceparent", ""))
    echoes = [_echo(prompt, tokenizer) if body.echo else "" for prompt in prompts]
    return await responses.respond(
        request, manager, group, Completion(body, group, tokenizer, instance.args.name, echoes)
    )


class Completion(openai.OpenAIShape):
    """`echoes` holds what stands before the answer to each prompt."""

    def __init__(
        self, body: CompletionBody, group: Group, tokenizer: Tokenizer, model: str, echoes: Sequence[str]
    ) -> None:
        super().__init__(body, group, tokenizer, "text_completion", model)
        self._scores = body.logprobs is not None
        self._echoes = echoes

    def _choice(self, member: Pending, text: str, span: slice) -> dict[str, Any]:
        logprobs = _logprobs(member, self.tokenizer, span) if self._scores else None
        return {"text": text, "logprobs": logprobs, **openai.ending(member)}

    def _echo(self, member: Pending) -> str:
        return self._echoes[member.job.index // self.body.n]

    def whole(self) -> object:
        return self.answer(
            [
                {
                    "index": member.job.index,
                    **self._choice(member, self._echo(member) + member.text, slice(0, len(member.ids))),
                }
                for member in self.group.members
            ]
        )

    def chunks(self, member: Pending) -> Iterable[bytes]:
        text = (self._echo(member) if self.first(member) else "") + self.delta(member)
        if text or member.finish is not None:
            yield self.event(member, self._choice(member, text, self.unscored(member)))


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
