"""One streamed completion: pieces of text as they arrive, then its times and who served it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from pdctl.errors import ExitCode, NotProbedError, PdctlError
from pdctl.fleet import http_client, peer_json, prober
from pdctl.fleet.address import Unanswered
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALLER = "change the prompt or --max-tokens as the answer says"
NEEDS_KEY = "pdctl ask --key-env VARIABLE, where VARIABLE holds the API key"
REDIRECTED = "give the address to which it redirects, if that is the deployment's: pdctl ask --url URL"
CHAT, RAW = "/v1/chat/completions", "/v1/completions"
MAX_MODELS = 1 << 20  # bytes in a list of models; one model takes a few hundred


@dataclass(frozen=True, slots=True)
class Piece:
    text: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in seconds. Pair and room are "" if the router does not report them (x-pd-* headers)."""

    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None
    prefill: str
    decode: str
    room: str
    ttft: float
    seconds: float


Part = Union[Piece, Summary]  # noqa: UP007 - evaluated at run time on Python 3.10


def stream(
    url: str,
    prompt: str,
    *,
    model: str,
    chat: bool,
    max_tokens: int,
    timeout: float,
    key: str = "",
    waiting: Callable[[], None] = http_client.do_nothing,
    look: str = "pdctl status",
) -> Iterator[Part]:
    """Send the request to `url` and yield the text, then a Summary. `timeout`: seconds per wait, not for the answer.

    look: the fix of an error that is the server's, such as the command that says how it is.
    waiting: called several times a second during each wait; it may raise to end it.
    """
    given: dict[str, object] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    body = {
        "model": model,
        **given,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    path = url + (CHAT if chat else RAW)
    began = time.monotonic()
    try:
        with http_client.exchange("POST", path, body, timeout, key, waiting) as response:
            if response.status != 200:
                answered = response.read()
                told = prober.told(response.headers, answered) or "without a word"
                fix = SMALLER if response.status in (400, 413, 422) else look
                if "location" in response.headers:
                    fix = REDIRECTED
                if prober.wants_key(response.status, response.headers, answered):
                    fix = NEEDS_KEY
                raise PdctlError(f"{path} answered {response.status}: {told}", fix)
            yield from _read(path, response, began)
    except Unanswered as error:
        raise NotProbedError(f"{path}: {error}", look) from None


def _read(path: str, response: http_client.Response, began: float) -> Iterator[Part]:
    first, finish, ended, events = 0.0, "", False, 0
    usage: dict[str, object] = {}
    for event in _events(response):
        events += 1
        if event is None:
            ended = True
            break
        if "error" in event:
            raise PdctlError(f"the stream broke off: {peer_json.quoted(peer_json.message(event))}", "pdctl logs")
        told = event.get("usage")
        usage = told if isinstance(told, dict) else usage
        text, reason = _choice(event)
        finish = reason or finish
        if text:
            first = first or time.monotonic()
            yield Piece(text)
    if not events:
        kind = peer_json.quoted(response.headers.get("content-type", "")) or "no content-type"
        raise PdctlError(
            f"{path} answered 200 ({kind}) without one event of a stream",
            f"see what serves it: {curl_command(path.split('/v1/')[0])}",
        )
    if not (finish or ended):
        raise PdctlError("the stream broke off: it ended without a finish_reason and without [DONE]", "pdctl logs")
    headers = response.headers
    yield Summary(
        finish_reason=finish,
        prompt_tokens=peer_json.integer(usage.get("prompt_tokens")),
        completion_tokens=peer_json.integer(usage.get("completion_tokens")),
        prefill=headers.get("x-pd-prefill", ""),
        decode=headers.get("x-pd-decode", ""),
        room=headers.get("x-pd-room", ""),
        ttft=max(0.0, first - began),
        seconds=time.monotonic() - began,
    )


def _events(response: http_client.Response) -> Iterator[dict[str, object] | None]:
    """The JSON objects of a text/event-stream, and None for [DONE]."""
    for data in http_client.payloads(response.pieces()):
        if data == http_client.DONE:
            yield None
            return
        event = peer_json.parse(data)
        if not isinstance(event, dict):
            raise PdctlError(f"the stream broke off: an event is no JSON object: {data!r:.80}", "pdctl logs")
        yield event


def _choice(event: dict[str, object]) -> tuple[str, str]:
    """Text and finish reason of the first choice, of a chat or a plain completion."""
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(choice, dict):
        return "", ""
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return str(text or ""), str(choice.get("finish_reason") or "")


def curl_command(url: str) -> str:
    """The command that shows what a server answers that pdctl did not start."""
    return f"curl -i {pasteable(url)}/v1/models"


def with_role(error: PdctlError, url: str) -> PdctlError:
    """`error` of a request to `url`, with another fix if that is one half of a pair, which cannot answer alone."""
    from pdctl.fleet import engine_probe, router_probe  # late: only an error needs them

    role = engine_probe.mode(url) if error.exit_code is ExitCode.FINDINGS else None
    if role not in ("prefill", "decode") or router_probe.fetch(url, 2.0).workers:
        return error
    return PdctlError(f"{error.message} (it is a {role} engine, half of a pair)", "ask its router: --url URL_OF_ROUTER")


def first_model(url: str, timeout: float = 5.0, key: str = "") -> str:
    """The name under which the deployment serves its (first) model. Raise NotProbedError if it does not answer."""
    answer = http_client.get(url + "/v1/models", timeout, key=key, limit=MAX_MODELS)
    if not answer.reached:
        raise NotProbedError(
            f"{url}/v1/models: {answer.reason}", f"give another --url, or see what listens there: {curl_command(url)}"
        )
    body = answer.json()
    models = body.get("data") if isinstance(body, dict) else None
    first = models[0] if isinstance(models, list) and models else {}
    return str(first.get("id", "default")) if isinstance(first, dict) else "default"
