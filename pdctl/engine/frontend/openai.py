"""POST /v1/chat/completions and /v1/completions (sglang 0.5.23 srt/entrypoints/openai)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, Request, Response

from pdctl.engine.frontend.body_reader import read_body
from pdctl.engine.frontend.intake import MAX_TOP_LOGPROBS
from pdctl.engine.frontend.request_bodies import (
    ChatBody,
    CompletionBody,
    HttpRefusal,
    SamplingBody,
    id_rows,
    sampling_from,
    stops_from,
)
from pdctl.engine.frontend.request_state import Options, PromptInput
from pdctl.engine.frontend.responses import event, finish_reason, instance_of, respond

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.engine.frontend.request_bodies import OpenAIBody
    from pdctl.engine.frontend.request_state import Pending, RequestGroup
    from pdctl.engine.frontend.responses import EngineInstance
    from pdctl.engine.frontend.tokenizer import SamplingDefaults, Tokenizer

router = APIRouter()
MANY = 256  # messages and parts of messages above which the prompt is rendered on a thread
OPEN = {"finish_reason": None, "matched_stop": None}
TEXT_FORMATS = (None, "text")


class OpenAIShape:
    """State of one OpenAI answer. The index tells the members of a stream apart."""

    def __init__(self, body: OpenAIBody, group: RequestGroup, instance: EngineInstance, kind: str) -> None:
        self.body = body
        self.group = group
        self.tokenizer = instance.checkpoint.tokenizer
        self.head: dict[str, Any] = {
            "id": group.members[0].job.rid,
            "object": kind,
            "created": int(time.time()),
            "model": body.model or instance.args.name,
        }
        self._sent = [0] * len(group.members)
        self._scored = [0] * len(group.members)
        self._greeted: set[int] = set()

    def first(self, member: Pending) -> bool:
        """Return True once for each member: nothing has been sent for it yet."""
        new = member.job.index not in self._greeted
        self._greeted.add(member.job.index)
        return new

    def delta(self, member: Pending) -> str:
        """Return the text that the client does not have yet."""
        text, index = member.text, member.job.index
        fresh = text[self._sent[index] :]
        self._sent[index] = len(text)
        return fresh

    def unscored(self, member: Pending) -> slice:
        """Return the tokens whose log probabilities the client does not have yet."""
        index = member.job.index
        span = slice(self._scored[index], min(len(member.logprobs), len(member.ids)))
        self._scored[index] = span.stop
        return span

    def answer(self, choices: list[dict[str, Any]]) -> object:
        return {**self.head, "choices": choices, "usage": _usage(self.group.members, self.body.n)}

    def event(self, member: Pending, choice: dict[str, Any]) -> bytes:
        content = {**self.head, "choices": [{"index": member.job.index, **choice}]}
        if self.body.stream_options.continuous_usage_stats:
            content["usage"] = _usage([member], 1)
        return event(content)

    def tail(self) -> Iterable[bytes]:
        """Return the last chunk of a stream whose client asked for usage; it has no choices."""
        if self.body.stream_options.include_usage:
            yield event(self.answer([]))


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    instance = instance_of(request)
    instance.manager.admit()
    body = await read_body(request, ChatBody)
    if _parts(body) > MANY:
        prompt = await asyncio.to_thread(_prompt, instance, body)
    else:
        prompt = _prompt(instance, body)
    options = _chat_options(body, instance)
    return await respond(request, body, [prompt], [options], lambda group: Chat(body, group, instance))


class Chat(OpenAIShape):
    def __init__(self, body: ChatBody, group: RequestGroup, instance: EngineInstance) -> None:
        super().__init__(body, group, instance, "chat.completion.chunk" if body.stream else "chat.completion")
        self._scores = body.logprobs

    def whole(self) -> object:
        return self.answer([self._choice(member) for member in self.group.members])

    def _choice(self, member: Pending) -> dict[str, Any]:
        scores = _chat_logprobs(member, self.tokenizer, slice(0, len(member.ids))) if self._scores else None
        message = {"role": "assistant", "content": member.text, "reasoning_content": None, "tool_calls": None}
        return {"index": member.job.index, "message": message, "logprobs": scores, **_ending(member)}

    def chunks(self, member: Pending) -> Iterable[bytes]:
        """Yield the role, the text and the end as separate events, as OpenAI and SGLang do."""
        if self.first(member):
            yield self.event(member, {"delta": {"role": "assistant", "content": ""}, "logprobs": None, **OPEN})
        text, ended = self.delta(member), member.finish is not None
        if text:
            yield self.event(member, {"delta": {"content": text}, "logprobs": self._unscored(member), **OPEN})
        if ended:
            yield self.event(member, {"delta": {}, "logprobs": self._unscored(member), **_ending(member)})

    def _unscored(self, member: Pending) -> object:
        span = self.unscored(member) if self._scores else slice(0, 0)
        return _chat_logprobs(member, self.tokenizer, span) if span.start < span.stop else None


def _chat_options(body: ChatBody, instance: EngineInstance) -> Options:
    length = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if length is not None and length <= 0:
        raise HttpRefusal(400, f"max_completion_tokens must be positive, got {length}.")
    logprobs = body.top_logprobs if body.logprobs else None
    given = _options(body, length, logprobs, _sampling(body, instance.checkpoint.defaults))
    return given if length is not None else _unbounded(given, instance.context_length)


def _sampling(body: ChatBody, defaults: SamplingDefaults) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    given = {name: getattr(body, name) for name in names}
    return {name: getattr(defaults, name) if value is None else value for name, value in given.items()}


def _prompt(instance: EngineInstance, body: ChatBody) -> PromptInput:
    if body.input_ids is not None:
        return PromptInput(ids=body.input_ids)
    if not body.messages:
        raise HttpRefusal(400, "Messages cannot be empty.")
    if body.tool_choice not in ("auto", "none"):
        raise HttpRefusal(400, "not supported by this engine: a tool_choice other than auto or none.", "unsupported")
    if body.continue_final_message:
        raise HttpRefusal(400, "not supported by this engine: continue_final_message. Leave it out.", "unsupported")
    template = instance.checkpoint.chat_template
    if template is None:
        raise HttpRefusal(400, "this model has no chat template; use /v1/completions.", "unsupported")
    messages = [_message(number, message) for number, message in enumerate(body.messages)]
    tools = body.tools if body.tools and body.tool_choice != "none" else None
    text = template.render(messages, {"add_generation_prompt": True, "tools": tools, **body.chat_template_kwargs})
    return PromptInput(text=text, special=False)


def _parts(body: ChatBody) -> int:
    contents = [message.get("content") for message in body.messages]
    return len(contents) + sum(len(content) for content in contents if isinstance(content, list))


def _message(number: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """Join the parts of a content into one text: templates of text models expect a string."""
    if not isinstance(message.get("role"), str):
        raise HttpRefusal(400, f"messages.{number}.role: Field required, a string")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(number, part) for part in content)
    elif not isinstance(content, str | None):
        raise HttpRefusal(400, f"messages.{number}.content: Input should be a string or a list of parts")
    return {**message, "content": content or ""}


def _part(number: int, part: object) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise HttpRefusal(400, f"messages.{number}.content: this model reads text parts only")
    return text


def _chat_logprobs(member: Pending, tokenizer: Tokenizer, span: slice) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token)
        return {"token": raw.decode(errors="replace"), "bytes": list(raw), "logprob": logprob}

    tops = member.top_logprobs[span] or [[] for _ in member.ids[span]]
    rows = zip(member.ids[span], member.logprobs[span], tops, strict=False)
    return {
        "content": [
            {**entry(token, logprob), "top_logprobs": [entry(*other) for other in top]} for token, logprob, top in rows
        ]
    }


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    instance = instance_of(request)
    instance.manager.admit()
    body = await read_body(request, CompletionBody)
    prompts, options = _prompts(body), _completion_options(body)
    return await respond(request, body, prompts, [options], lambda group: Completion(body, group, instance, prompts))


class Completion(OpenAIShape):
    """With `echo` each prompt precedes its answer."""

    def __init__(
        self, body: CompletionBody, group: RequestGroup, instance: EngineInstance, prompts: Sequence[PromptInput]
    ) -> None:
        super().__init__(body, group, instance, "text_completion")
        self._scores = body.logprobs is not None
        self._echoes = [self._words(prompt) if body.echo else "" for prompt in prompts]

    def _words(self, prompt: PromptInput) -> str:
        return prompt.text if prompt.text is not None else self.tokenizer.decode(list(prompt.ids or ()))

    def _choice(self, member: Pending, text: str, span: slice) -> dict[str, Any]:
        logprobs = _completion_logprobs(member, self.tokenizer, span) if self._scores else None
        return {"text": text, "logprobs": logprobs, **_ending(member)}

    def _echo(self, member: Pending) -> str:
        return self._echoes[member.job.index // self.body.n]

    def whole(self) -> object:
        choices = []
        for member in self.group.members:
            choice = self._choice(member, self._echo(member) + member.text, slice(0, len(member.ids)))
            choices.append({"index": member.job.index, **choice})
        return self.answer(choices)

    def chunks(self, member: Pending) -> Iterable[bytes]:
        text = (self._echo(member) if self.first(member) else "") + self.delta(member)
        if text or member.finish is not None:
            yield self.event(member, self._choice(member, text, self.unscored(member)))


def _completion_options(body: CompletionBody) -> Options:
    if body.max_tokens <= 0:
        raise HttpRefusal(400, f"max_tokens must be positive, got {body.max_tokens}.")
    if body.best_of is not None and body.best_of != body.n:
        raise HttpRefusal(400, "not supported by this engine: best_of other than n. Leave it out.", "unsupported")
    if body.echo and body.logprobs is not None:
        raise HttpRefusal(
            400, "echo with logprobs: this engine has log probabilities of output tokens only.", "unsupported"
        )
    sampling = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
    }
    return _options(body, body.max_tokens, body.logprobs, sampling)


def _prompts(body: CompletionBody) -> list[PromptInput]:
    prompt = body.prompt
    if isinstance(prompt, str):
        prompts = [PromptInput(text=prompt)]
    elif prompt and isinstance(prompt[0], str):
        prompts = [PromptInput(text=text) for text in prompt if isinstance(text, str)]
    else:
        prompts = [PromptInput(ids=row) for row in id_rows(prompt)[0]]  # type: ignore[arg-type]  # strings are handled above
    if not all(prompt.text or prompt.ids for prompt in prompts):
        raise HttpRefusal(400, "Prompt cannot be empty")
    return prompts


def _completion_logprobs(member: Pending, tokenizer: Tokenizer, span: slice) -> dict[str, Any]:
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


def _options(body: OpenAIBody, length: int | None, logprobs: int | None, sampling: dict[str, Any]) -> Options:
    """`length` None means as much as the context leaves. `logprobs` None means none, 0 the chosen token's only."""
    if body.response_format.get("type") not in TEXT_FORMATS:
        raise HttpRefusal(
            400,
            f"not supported by this engine: response_format {body.response_format['type']!r}. Leave it out.",
            "unsupported",
        )
    if logprobs is not None and not 0 <= logprobs <= MAX_TOP_LOGPROBS:
        raise HttpRefusal(
            400, f"the number of top log probabilities must be in [0, {MAX_TOP_LOGPROBS}], got {logprobs}."
        )
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


def _unbounded(given: Options, context: int) -> Options:
    """Allow as long an answer as the context leaves after the prompt (intake shrinks it)."""
    return replace(given, sampling=msgspec.structs.replace(given.sampling, max_new_tokens=context))


def _ending(member: Pending) -> dict[str, Any]:
    """`finish_reason` and sglang's `matched_stop`; both null while the answer goes on."""
    reason = finish_reason(member.finish, member.matched) or {}
    return {"finish_reason": reason.get("type"), "matched_stop": reason.get("matched")}


def _usage(members: Sequence[Pending], samples: int) -> dict[str, Any]:
    """Count each prompt once, however many samples it has (sglang: usage_processor)."""
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
