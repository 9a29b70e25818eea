"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from pdctl.engine.frontend import openai, responses
from pdctl.engine.frontend.jobs import Options, Prompt
from pdctl.engine.frontend.refusal import Refusal
from pdctl.engine.frontend.request_bodies import ChatBody

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdctl.engine.frontend.checkpoint import SamplingDefaults
    from pdctl.engine.frontend.instance import Instance
    from pdctl.engine.frontend.request_state import Group, Pending
    from pdctl.engine.frontend.tokenizer import Tokenizer

router = APIRouter()
MANY = 256  # messages and parts of them from which a thread makes the prompt
OPEN = {"finish_reason": None, "matched_stop": None}


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    instance: Instance = request.app.state.instance
    manager, tokenizer = instance.manager, instance.checkpoint.tokenizer
    manager.admit()
    body = await responses.body(request, ChatBody)
    if _parts(body) > MANY:
        prompt = await asyncio.to_thread(_prompt, instance, body)
    else:
        prompt = _prompt(instance, body)
    options = _options(body, instance)
    jobs = await instance.intake.jobs([prompt], [options], body, manager.admit)
    group = await manager.submit(jobs, body.stream, request.headers.get("traceparent", ""))
    return await responses.respond(request, manager, group, Chat(body, group, tokenizer, instance.args.name))


class Chat(openai.OpenAIShape):
    def __init__(self, body: ChatBody, group: Group, tokenizer: Tokenizer, model: str) -> None:
        super().__init__(body, group, tokenizer, "chat.completion.chunk" if body.stream else "chat.completion", model)
        self._scores = body.logprobs

    def whole(self) -> object:
        return self.answer([self._choice(member) for member in self.group.members])

    def _choice(self, member: Pending) -> dict[str, Any]:
        scores = _logprobs(member, self.tokenizer, slice(0, len(member.ids))) if self._scores else None
        message = {"role": "assistant", "content": member.text, "reasoning_content": None, "tool_calls": None}
        return {"index": member.job.index, "message": message, "logprobs": scores, **openai.ending(member)}

    def chunks(self, member: Pending) -> Iterable[bytes]:
        """The role, the text, the end: each an event of its own, as OpenAI and SGLang send them."""
        if self.first(member):
            yield self.event(member, {"delta": {"role": "assistant", "content": ""}, "logprobs": None, **OPEN})
        text, ended = self.delta(member), member.finish is not None
        if text:
            yield self.event(member, {"delta": {"content": text}, "logprobs": self._unscored(member), **OPEN})
        if ended:
            yield self.event(member, {"delta": {}, "logprobs": self._unscored(member), **openai.ending(member)})

    def _unscored(self, member: Pending) -> object:
        span = self.unscored(member) if self._scores else slice(0, 0)
        return _logprobs(member, self.tokenizer, span) if span.start < span.stop else None


def _options(body: ChatBody, instance: Instance) -> Options:
    length = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if length is not None and length <= 0:
        raise Refusal(400, f"max_completion_tokens must be positive, got {length}.")
    logprobs = body.top_logprobs if body.logprobs else None
    options = openai.options(body, length, logprobs, _sampling(body, instance.checkpoint.defaults))
    return options if length is not None else openai.unbounded(options, instance.context_length)


def _sampling(body: ChatBody, defaults: SamplingDefaults) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    given = {name: getattr(body, name) for name in names}
    return {name: getattr(defaults, name) if value is None else value for name, value in given.items()}


def _prompt(instance: Instance, body: ChatBody) -> Prompt:
    if body.input_ids is not None:
        return Prompt(ids=body.input_ids)
    if not body.messages:
        raise Refusal(400, "Messages cannot be empty.")
    if body.tool_choice not in ("auto", "none"):
        raise Refusal(400, "not supported by this engine: a tool_choice other than auto or none.", "unsupported")
    if body.continue_final_message:
        raise Refusal(400, "not supported by this engine: continue_final_message. Leave it out.", "unsupported")
    template = instance.checkpoint.chat_template
    if template is None:
        raise Refusal(400, "this model has no chat template; use /v1/completions.", "unsupported")
    messages = [_message(number, message) for number, message in enumerate(body.messages)]
    tools = body.tools if body.tools and body.tool_choice != "none" else None
    text = template.render(messages, {"add_generation_prompt": True, "tools": tools, **body.chat_template_kwargs})
    return Prompt(text=text, special=False)


def _parts(body: ChatBody) -> int:
    contents = [message.get("content") for message in body.messages]
    return len(contents) + sum(len(content) for content in contents if isinstance(content, list))


def _message(number: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """Content in parts becomes one text: templates of text models expect a string."""
    if not isinstance(message.get("role"), str):
        raise Refusal(400, f"messages.{number}.role: Field required, a string")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(number, part) for part in content)
    elif not isinstance(content, str | None):
        raise Refusal(400, f"messages.{number}.content: Input should be a string or a list of parts")
    return {**message, "content": content or ""}


def _part(number: int, part: object) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise Refusal(400, f"messages.{number}.content: this model reads text parts only")
    return text


def _logprobs(member: Pending, tokenizer: Tokenizer, span: slice) -> dict[str, Any]:
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
