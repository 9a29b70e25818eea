"""Sampling parameters checked against sglang 0.5.23's ranges (srt/sampling/sampling_params.py), in its words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pdctl.engine.frontend.refusal import Refusal
from pdctl.engine.ipc.messages import Sampling

if TYPE_CHECKING:
    from pdctl.engine.frontend.request_bodies import SamplingBody

DEFAULT_NEW_TOKENS = 128  # sglang's /generate default
GREEDY_BELOW = 1e-6  # sglang: a temperature this close to zero means greedy
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_SAMPLES = 128
INT64 = 1 << 63
WIDEST_VOCABULARY = 1 << 30  # a top_k as large is no limit
Range = tuple[float, float, str]

# (lowest, highest, how the bound reads); both ends included unless the check below says otherwise.
RANGES: dict[str, Range] = {
    "min_p": (0.0, 1.0, "in [0, 1]"),
    "frequency_penalty": (-2.0, 2.0, "in [-2, 2]"),
    "presence_penalty": (-2.0, 2.0, "in [-2, 2]"),
    "min_new_tokens": (0, math.inf, "in [0, max_new_tokens]"),
    "n": (1, MAX_SAMPLES, f"in [1, {MAX_SAMPLES}]"),
}


def sampling_from(body: SamplingBody) -> Sampling:
    """Raises Refusal (400) naming the first parameter out of range."""
    length = DEFAULT_NEW_TOKENS if body.max_new_tokens is None else body.max_new_tokens
    problem = _problem(body, length)
    if problem:
        raise Refusal(400, problem)
    return Sampling(
        max_new_tokens=length,
        min_new_tokens=body.min_new_tokens,
        temperature=0.0 if body.temperature < GREEDY_BELOW else body.temperature,
        top_p=body.top_p,
        top_k=min(body.top_k, WIDEST_VOCABULARY),
        min_p=body.min_p,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        # An id no vocabulary has can never be sampled, and might not fit into a frame.
        stop_token_ids=tuple(token for token in body.stop_token_ids if 0 <= token < WIDEST_VOCABULARY),
        ignore_eos=body.ignore_eos,
        seed=body.sampling_seed,
    )


def _problem(body: SamplingBody, length: int) -> str:
    for name, (low, high, words) in RANGES.items():
        if not low <= getattr(body, name) <= high:
            return f"{name} must be {words}, got {getattr(body, name)}."
    if body.temperature < 0:
        return f"temperature must be a non-negative finite number, got {body.temperature}."
    if not 0 < body.top_p <= 1:
        return f"top_p must be in (0, 1], got {body.top_p}."
    if body.top_k < 1 and body.top_k != -1:
        return f"top_k must be -1 (disable) or at least 1, got {body.top_k}."
    if not 0 < body.repetition_penalty <= 2:
        return f"repetition_penalty must be in (0, 2] (1.0 = no penalty), got {body.repetition_penalty}."
    if length < 0:
        return f"max_new_tokens must be at least 0, got {length}."
    if body.min_new_tokens > length:
        return f"min_new_tokens must be in [0, max_new_tokens({length})], got {body.min_new_tokens}."
    if body.sampling_seed is not None and not -INT64 <= body.sampling_seed < INT64:
        return f"sampling_seed must be in [-2**63, 2**63 - 1], got {body.sampling_seed}."
    return ""


def stops_from(stop: str | list[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS:
        raise Refusal(400, f"at most {MAX_STOPS} stop strings are allowed, got {len(stops)}")
    for text in stops:
        if len(text) > MAX_STOP_CHARS:
            raise Refusal(400, f"a stop string may have {MAX_STOP_CHARS} characters at most, got {len(text)}")
    return tuple(text for text in stops if text)
