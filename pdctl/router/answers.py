"""What the router reads in engines' answers: errors that come inside a 200, and logprobs that belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class StreamError:
    status: int
    message: str


def first_event(parts: Sequence[bytes]) -> bool:
    """Whether the first event of a stream is there whole, and is one with data."""
    text = parts[0] if len(parts) == 1 else b"".join(parts)
    return text.startswith(b"data:") and b"\n\n" in text


def stream_error(parts: Sequence[bytes]) -> StreamError | None:
    """The error that is the first event of a stream, if it is one.

    sglang 0.5.8-0.5.23 answers 200 before it knows: a failed KV transfer then comes as `{"error": {…, "code": 500}}`
    (OpenAI routes) or as a finish reason `abort` with a status code (/generate). An error without a code is the
    client's own (0.5.8).
    """
    text = parts[0] if len(parts) == 1 else b"".join(parts)
    first = text[: text.find(b"\n\n")] if b"\n\n" in text else text
    if b'"error"' not in first and b'"abort"' not in first:
        return None
    try:
        event = orjson.loads(first.removeprefix(b"data:").strip())
    except orjson.JSONDecodeError:
        return None
    return _error_of(event) if isinstance(event, dict) else None


def _error_of(event: dict[str, Any]) -> StreamError | None:
    error = event.get("error")
    if isinstance(error, dict):
        return StreamError(_status(error.get("code"), 400), str(error.get("message", "")))
    meta = event.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    if isinstance(reason, dict) and reason.get("type") == "abort" and reason.get("status_code") is not None:
        return StreamError(_status(reason["status_code"], 500), str(reason.get("message", "")))
    return None


def _status(value: object, default: int) -> int:
    return value if isinstance(value, int) and 400 <= value < 600 else default


def merge_logprobs(prefill: bytes, decode: bytes) -> bytes:
    """decode's /generate answer with the logprobs of the prompt in front, which only the prefill has computed.

    Either answer in another shape leaves decode's as it is.
    """
    try:
        theirs, ours = orjson.loads(prefill), orjson.loads(decode)
    except orjson.JSONDecodeError:
        return decode
    if isinstance(theirs, list) and isinstance(ours, list):
        merged = [_merge(one, other) for one, other in zip(theirs, ours, strict=False)]
    else:
        merged = [_merge(theirs, ours)]
    return orjson.dumps(ours) if any(merged) else decode


def _merge(prefill: object, decode: object) -> bool:
    theirs, ours = _meta(prefill), _meta(decode)
    first, second = theirs.get("input_token_logprobs"), ours.get("input_token_logprobs")
    if not isinstance(first, list) or not isinstance(second, list):
        return False
    ours["input_token_logprobs"] = first + second
    return True


def _meta(answer: object) -> dict[str, Any]:
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    return meta if isinstance(meta, dict) else {}
