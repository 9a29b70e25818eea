"""POST and PUT /generate: SGLang's native call. Text in a stream is cumulative, as SGLang sends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import APIRouter, Request, Response

from pdctl.engine.frontend.body_reader import check_supported, read_body
from pdctl.engine.frontend.intake import MAX_TOP_LOGPROBS
from pdctl.engine.frontend.request_bodies import (
    GenerateBody,
    HttpRefusal,
    SamplingBody,
    id_rows,
    sampling_from,
    stops_from,
)
from pdctl.engine.frontend.request_state import Options, PromptInput
from pdctl.engine.frontend.responses import event, finish_reason, instance_of, respond
from pdctl.engine.ipc.messages import steady_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.engine.frontend.request_state import Pending, RequestGroup
    from pdctl.engine.frontend.responses import EngineInstance
    from pdctl.engine.ipc.messages import Meta

router = APIRouter()
T = TypeVar("T")


@router.api_route("/generate", methods=["POST", "PUT"])
async def generate(request: Request) -> Response:
    instance = instance_of(request)
    instance.manager.admit()
    body = await read_body(request, GenerateBody)
    prompts, batch = _prompts(body)
    options = _options(body, len(prompts))
    batch = batch or options[0].n > 1
    texts = body.return_text_in_logprobs
    return await respond(request, body, prompts, options, lambda group: Generated(instance, group, batch, texts))


@dataclass(frozen=True, slots=True)
class Generated:
    """SGLang's native answer. A batch is answered with a list; in a stream, each event has its member's index."""

    instance: EngineInstance
    group: RequestGroup
    batch: bool
    texts: bool

    def whole(self) -> object:
        results = [result(self.instance, member, self.texts) for member in self.group.members]
        return results if self.batch else results[0]

    def chunks(self, member: Pending) -> Iterable[bytes]:
        index = {"index": member.job.index} if self.batch else {}
        yield event(result(self.instance, member, self.texts) | index)

    def tail(self) -> Iterable[bytes]:
        return ()


def _prompts(body: GenerateBody) -> tuple[list[PromptInput], bool]:
    """Return the prompts, and whether they came as a batch (then the answer is a list, even of one)."""
    if body.text is not None and body.input_ids is not None:
        raise HttpRefusal(400, "Either text or input_ids should be provided, not both.")
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        return [PromptInput(text=text) for text in _refuse_empty(texts, "text")], isinstance(body.text, list)
    if body.input_ids is None:
        raise HttpRefusal(400, "Either text or input_ids should be provided.")
    rows, batch = id_rows(body.input_ids)
    return [PromptInput(ids=row) for row in _refuse_empty(rows, "input_ids")], batch


def _refuse_empty(rows: list[T], name: str) -> list[T]:
    if not rows or not all(rows):
        raise HttpRefusal(400, f"{name} cannot be empty.")
    return rows


def _options(body: GenerateBody, prompts: int) -> list[Options]:
    """Return one for each prompt if any of these fields is a list, otherwise one for all."""
    given = (body.sampling_params, body.return_logprob, body.top_logprobs_num, body.logprob_start_len)
    if not any(isinstance(value, list) for value in given):
        prompts = 1
    samplings = _spread("sampling_params", body.sampling_params, prompts)
    logprobs = _spread("return_logprob", body.return_logprob, prompts)
    tops = _spread("top_logprobs_num", body.top_logprobs_num, prompts)
    for start in _spread("logprob_start_len", body.logprob_start_len, prompts):
        if start >= 0:
            raise HttpRefusal(
                400, "logprob_start_len: this engine has log probabilities of output tokens only; leave it at -1."
            )
    return [_option(*row) for row in zip(samplings, logprobs, tops, strict=True)]


def _spread(name: str, value: T | list[T], count: int) -> list[T]:
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise HttpRefusal(
            400, f"{name} has {len(value)} entries for {count} prompt(s); give one for each, or a single value."
        )
    return value


def _option(body: SamplingBody, logprob: bool, top: int) -> Options:
    check_supported(body)
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise HttpRefusal(400, f"top_logprobs_num must be in [0, {MAX_TOP_LOGPROBS}], got {top}.")
    return Options(
        sampling=sampling_from(body),
        stops=stops_from(body.stop),
        trim_stop=not body.no_stop_trim,
        skip_special=body.skip_special_tokens,
        n=body.n,
        return_logprob=logprob,
        top_logprobs=top if logprob else 0,
        explicit_length=body.max_new_tokens is not None,
    )


def result(instance: EngineInstance, member: Pending, texts: bool = False) -> dict[str, Any]:
    """Return one answer in SGLang 0.5.23's format; times in seconds since the epoch. The last four facts are ours."""
    clock, meta, message = member.clock, member.meta, member.job.message
    info: dict[str, Any] = {
        "id": member.job.rid,
        "finish_reason": finish_reason(member.finish, member.matched),
        "prompt_tokens": member.prompt_tokens,
        "weight_version": "default",
        "num_retractions": meta.retractions if meta else 0,
        "reasoning_tokens": 0,
        "completion_tokens": len(member.ids),
        "cached_tokens": member.cached_tokens,
        "dp_rank": meta.dp_rank if meta else None,
    }
    if member.job.options.return_logprob:
        info |= _logprobs(instance, member, texts)
    if member.finish is not None:
        info |= {
            "e2e_latency": clock.finished - clock.received,
            "request_received_ts": clock.received,
            "first_token_latency": clock.first_token - clock.received if clock.first_token else None,
            "api_server_dispatch_finish_ts": clock.dispatched,
            "request_finished_ts": clock.finished,
            "response_sent_to_client_ts": steady_time(),
        }
    if meta is not None:
        info |= {
            "forward_entry_time": meta.forward_entry_time,
            "queue_time": meta.queue_time,
            "bootstrap_room": message.bootstrap_room,
            "bootstrap_time": meta.bootstrap_time,
            "transfer_time": meta.transfer_time,
            "transfer_bytes": meta.transfer_bytes,
        }
    if meta is not None and meta.transfer_pages:
        info |= kv_transfer(meta)
    return {"text": member.text, "output_ids": member.ids, "meta_info": info}


def kv_transfer(meta: Meta) -> dict[str, Any]:
    """Return how the room's KV cache moved: `kv_transfer_room_bytes` for all ranks, the rest for this rank's share."""
    return {
        "kv_transfer_bytes": meta.transfer_bytes,
        "kv_transfer_room_bytes": meta.transfer_room_bytes,
        "kv_transfer_pages": meta.transfer_pages,
        "kv_transfer_chunks": meta.transfer_chunks,
        "kv_transfer_descriptors": meta.transfer_descriptors,
        "kv_transfer_seconds": meta.transfer_time,
        "kv_transfer_speed_gb_s": meta.transfer_gb_s,
    }


def _logprobs(instance: EngineInstance, member: Pending, texts: bool) -> dict[str, Any]:
    """Return sglang's triples: log probability, token id, and the token's text when asked for."""
    tokenizer = instance.checkpoint.tokenizer

    def triple(logprob: float, token: int) -> tuple[float, int, str | None]:
        return logprob, token, tokenizer.token_text(token) if texts else None

    info: dict[str, Any] = {
        "input_token_logprobs": [],
        "output_token_logprobs": [triple(*pair) for pair in zip(member.logprobs, member.ids, strict=False)],
        "output_token_logprobs_length": len(member.logprobs),
    }
    if member.job.options.top_logprobs:
        info["input_top_logprobs"] = []
        info["output_top_logprobs"] = [
            [triple(logprob, token) for token, logprob in row] for row in member.top_logprobs[: len(member.ids)]
        ]
    return info
