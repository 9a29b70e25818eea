"""Request bodies, and how one is refused: names and defaults of sglang 0.5.23 (io_struct.py, openai/protocol.py).

Types are strict (a port is never a string), null means "not given", and unknown fields are ignored, as in SGLang.
A field that SGLang has and this engine lacks is in `unsupported`: setting it is refused, never silently ignored.
Sampling parameters are checked against SGLang's ranges (srt/sampling/sampling_params.py), with its error texts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from pdctl.engine.ipc.messages import Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "method_not_allowed",
    413: "request_too_large",
    499: "aborted",
    500: "internal_error",
    503: "service_unavailable",
    504: "timeout",
}


class HttpRefusal(Exception):
    """A request the engine will not serve: an HTTP status, a reason for the client, and a word a program can match.

    Raised anywhere between the socket and the scheduler; `responses.error` makes a response of it.
    """

    def __init__(self, status: int, message: str, kind: str = "", retry_after: int = 1) -> None:
        """`retry_after`: seconds after which a 503 may be worth another try."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
        self.kind = kind or KINDS.get(status, KINDS[500] if status >= 500 else KINDS[400])


class FirstError(FailFast):
    """Report only the first invalid item: an error for each of 16 million took half a minute."""

    def __hash__(self) -> int:  # a union of types needs it, and pydantic's class has none
        return 0


Items = Annotated[list[T], FirstError()]
if TYPE_CHECKING:
    TokenIds = Sequence[int]  # a list, or an array if the body was read piece by piece (frontend/body_reader.py)
else:
    TokenIds = Items[int]
Rank = Annotated[int, Field(ge=0)]


class RequestBody(BaseModel):
    """Base of every body."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)
    unsupported: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: object) -> object:
        """Drop nulls, and unknown fields before they cost memory."""
        if not isinstance(data, dict):
            return data
        known = cls.model_fields.keys() | cls.unsupported
        return {name: value for name, value in data.items() if value is not None and name in known}

    @property
    def refused(self) -> list[str]:
        """Names of unsupported fields that are set to something other than their empty value."""
        return sorted(name for name, value in (self.model_extra or {}).items() if value not in (False, 0, "", [], {}))


class SamplingBody(RequestBody):
    unsupported = frozenset(
        [
            "json_schema",
            "regex",
            "ebnf",
            "structural_tag",
            "stop_regex",
            "logit_bias",
            "beam_width",
            "custom_params",
            "watermark",
        ]
    )

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: str | Items[str] = Field(default_factory=list)
    stop_token_ids: Items[int] = Field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    n: int = 1
    sampling_seed: int | None = None


class RoutedBody(RequestBody):
    """What a PD router adds to any body: scalars, or lists with one entry for each request of a batch."""

    bootstrap_host: str | Items[str] | None = None
    bootstrap_port: int | Items[int | None] | None = None
    bootstrap_room: int | Items[int] | None = None
    routed_dp_rank: Rank | None = None
    data_parallel_rank: Rank | None = None  # the older spelling of routed_dp_rank
    disagg_prefill_dp_rank: Rank | None = None
    rid: str | Items[str] | None = None
    priority: int | None = None  # of no effect, as in sglang without --enable-priority-scheduling


class GenerateBody(RoutedBody):
    """POST /generate."""

    unsupported = frozenset(
        [
            "input_embeds",
            "image_data",
            "video_data",
            "audio_data",
            "lora_path",
            "session_params",
            "session_id",
            "custom_logit_processor",
            "return_hidden_states",
            "return_routed_experts",
            "token_ids_logprob",
        ]
    )

    text: str | Items[str] | None = None
    input_ids: TokenIds | Items[TokenIds] | None = None
    sampling_params: SamplingBody | Items[SamplingBody] = Field(default_factory=SamplingBody)
    stream: bool = False
    return_logprob: bool | Items[bool] = False
    top_logprobs_num: int | Items[int] = 0
    logprob_start_len: int | Items[int] = -1
    return_text_in_logprobs: bool = False


class StreamOptions(RequestBody):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class OpenAIBody(RoutedBody):
    """What /v1/completions and /v1/chat/completions share."""

    unsupported = frozenset(
        [
            "logit_bias",
            "json_schema",
            "regex",
            "ebnf",
            "stop_regex",
            "lora_path",
            "session_params",
            "session_id",
            "custom_logit_processor",
            "custom_params",
            "return_hidden_states",
            "return_routed_experts",
            "watermark",
        ]
    )

    model: str = ""
    n: int = 1
    seed: int | None = None
    stop: str | Items[str] = Field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_tokens: int = 0
    stop_token_ids: Items[int] = Field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    response_format: dict[str, Any] = Field(default_factory=dict)


class CompletionBody(OpenAIBody):
    """POST /v1/completions."""

    unsupported = OpenAIBody.unsupported | {"suffix"}

    prompt: str | Items[str] | TokenIds | Items[TokenIds]
    max_tokens: int = 16
    best_of: int | None = None
    echo: bool = False
    logprobs: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class ChatBody(OpenAIBody):
    """POST /v1/chat/completions. Sampling fields left out take the checkpoint's defaults (generation_config.json)."""

    messages: Items[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    tools: Items[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    continue_final_message: bool = False
    input_ids: TokenIds | None = None


class AbortBody(RequestBody):
    """POST /abort_request."""

    rid: str = ""
    abort_all: bool = False


class RoleSwitchBody(RequestBody):
    """POST /pd_role_switch. Its CUDA graph fields have no effect here: there are no graphs to capture."""

    new_role: str = ""
    decode_cuda_graph_bs: Items[int] | None = None
    decode_cuda_graph_memory_gb: float | None = None
    prepare_only: bool = False


DEFAULT_NEW_TOKENS = 128  # sglang's /generate default
GREEDY_BELOW = 1e-6  # sglang: a temperature this close to zero means greedy
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_SAMPLES = 128
INT64 = 1 << 63
WIDEST_VOCABULARY = 1 << 30  # a top_k this large is no limit
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
    """Return the checked parameters. Raise HttpRefusal (400) naming the first one out of range."""
    length = DEFAULT_NEW_TOKENS if body.max_new_tokens is None else body.max_new_tokens
    problem = _problem(body, length)
    if problem:
        raise HttpRefusal(400, problem)
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
        # An id beyond any vocabulary can never be sampled, and might not fit into a frame.
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


def id_rows(ids: TokenIds | list[TokenIds]) -> tuple[list[TokenIds], bool]:
    """Return rows of token ids, and whether `ids` was a list of rows."""
    if ids and not isinstance(ids[0], int):
        return cast("list[TokenIds]", ids), True
    return [cast("TokenIds", ids)], False


def stops_from(stop: str | list[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS:
        raise HttpRefusal(400, f"at most {MAX_STOPS} stop strings are allowed, got {len(stops)}")
    for text in stops:
        if len(text) > MAX_STOP_CHARS:
            raise HttpRefusal(400, f"a stop string may have {MAX_STOP_CHARS} characters at most, got {len(text)}")
    return tuple(text for text in stops if text)
