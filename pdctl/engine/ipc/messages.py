"""What crosses the engine's ZMQ sockets: typed, versioned, size-limited frames; and the messages within an instance.

A frame is 4 bytes (b"PD", format version, kind of codec) and a msgpack body: one tagged struct. Nothing is unpickled.

The messages are those between the tokenizer manager and the scheduler ranks (sglang 0.5.23 srt/managers/io_struct.py):
`request_codec` is for the way from the tokenizer manager to the leader of each DP group (through the DP controller if
there is one) and on to its followers, `reply_codec` for the way back from the leaders. Times are in seconds of
`steady_time()`.
"""

from __future__ import annotations

import time
from array import array
from typing import Any, Generic, TypeVar, Union

import msgspec

FORMAT = 1
HEADER = 4

T = TypeVar("T", bound=msgspec.Struct)
# What msgspec raises on bytes that are not a message. Text that is not UTF-8 raises a ValueError that is not msgspec's;
# the checks of a struct may raise the others, on numbers and sizes that the sender claims.
MALFORMED = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, MemoryError)


class FrameError(ValueError):
    """A frame that cannot be read; the text says which rule it broke. The receiver drops it, logs it and goes on."""


class Codec(Generic[T]):
    """Encodes and decodes one closed family of structs (each declared with `tag=…`)."""

    def __init__(self, name: str, kind: int, structs: tuple[type[T], ...], max_bytes: int = 64 << 20) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self._header = bytes((0x50, 0x44, FORMAT, kind))
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_as_list)
        # A union built at run time: typing.Union accepts a tuple on every Python we support.
        union: Any = Union[structs]  # noqa: UP007
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)

    def encode(self, message: T) -> bytes:
        """The frame. Half a surrogate pair (an escape in a peer's JSON), which UTF-8 cannot hold, is spelt out."""
        try:
            return self._header + self._encoder.encode(message)
        except UnicodeEncodeError:
            return self._header + self._encoder.encode(_with_utf8(message))

    def decode(self, frame: bytes | memoryview) -> T:
        """Return the struct in `frame`. Raise FrameError for a wrong size, header or version, or a malformed body."""
        size = len(frame)
        if size > self.max_bytes:
            raise FrameError(f"{self.name}: frame of {size} bytes is over the limit of {self.max_bytes}")
        head = bytes(frame[:HEADER])
        if len(head) < HEADER or head[:2] != self._header[:2] or head[3] != self._header[3]:
            raise FrameError(f"{self.name}: not a frame of this socket (starts with {head!r})")
        if head[2] != FORMAT:
            raise FrameError(f"{self.name}: frame format {head[2]}, this engine speaks {FORMAT}")
        try:
            return self._decoder.decode(frame[HEADER:])
        except MALFORMED as error:
            raise FrameError(f"{self.name}: {error or type(error).__name__}") from None


def _with_utf8(message: T) -> T:
    texts = {name: text for name, text in msgspec.structs.asdict(message).items() if isinstance(text, str)}
    return msgspec.structs.replace(
        message, **{name: text.encode(errors="backslashreplace").decode() for name, text in texts.items()}
    )


def _as_list(value: object) -> object:
    """Return an array of numbers as a list; raise TypeError for other types that msgpack does not have."""
    if isinstance(value, array):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be encoded")


_START = time.time() - time.monotonic()


def steady_time() -> float:
    """Return a time of day that is safe for durations: seconds since the epoch, set once at the start of the process.

    If the host's clock is set forward by an hour, no deadline and no latency changes; times of day are off by that hour
    until the process is restarted.
    """
    return _START + time.monotonic()


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sampling parameters after normalisation; `stop` strings are matched by the tokenizer manager."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    rid: str
    input_ids: list[int]
    sampling: Sampling
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    return_logprob: bool = False
    top_logprobs_num: int = 0
    received: float = 0.0
    routed_dp_rank: int | None = None
    disagg_prefill_dp_rank: int | None = None


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    """Abort one request by its rid prefix (sglang's rule), exactly one rid when `exact`, or every request."""

    rid: str = ""
    all: bool = False
    exact: bool = False


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """Empty every cache; refused while requests run."""

    id: str


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Ask for a SchedulerReport: internal state and load."""

    id: str


class AskRooms(msgspec.Struct, frozen=True, tag="ask_rooms"):
    """Ask which requests have not ended, and what each waits for."""

    id: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Exit when the current requests are done, or at once."""

    now: bool = False


HEALTH_PREFIX = "HEALTH_CHECK"  # sglang: requests with such a rid leave no INFO line and count as no work

# sglang's reasons why an instance cannot switch roles; controllers match the first.
NOT_IDLE = "instance is not idle; drain all requests before switching"
UNHEALTHY = "instance is unhealthy after a failed role switch; restart required"


class SwitchRole(msgspec.Struct, frozen=True, tag="switch_role"):
    """Ask whether this DP group could take `role` now; with `commit`, make it do so."""

    id: str
    role: str
    commit: bool


class Done(msgspec.Struct, frozen=True, tag="done"):
    """To the DP controller only: a request it dispatched has ended."""

    rid: str


Request = Generate | AbortRequest | Flush | Ask | AskRooms | Stop | SwitchRole | Done


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request ended. `type` is sglang's: stop | length | abort. An abort carries an HTTP status and a reason."""

    type: str
    matched: int | None = None
    length: int | None = None
    message: str = ""
    status: int = 0
    code: str = ""


class Meta(msgspec.Struct, frozen=True):
    """Facts about a finished request, for `meta_info`. Times in seconds, sizes in bytes."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    retractions: int = 0
    retracted_output_tokens: int = 0  # generated before each retraction, in all
    prefill_retries: int = 0  # optimistic prefills begun again
    queue_time: float = 0.0
    bootstrap_time: float = 0.0
    alloc_time: float = 0.0  # the part of bootstrap_time in which only memory was missing
    transfer_time: float = 0.0
    transfer_bytes: int = 0  # to or from this rank
    transfer_room_bytes: int = 0  # over all ranks of the instance
    transfer_pages: int = 0
    transfer_chunks: int = 0
    transfer_descriptors: int = 0
    transfer_gb_s: float = 0.0  # of this rank, while bytes moved
    forward_entry_time: float = 0.0
    dp_rank: int | None = None
    steps: dict[str, float] = msgspec.field(default_factory=dict)  # step → when it was reached, as in Times


class Drained(msgspec.Struct, frozen=True):
    """A decode has got its pages of a failed room back. `outcome` is sglang's: drained | timeout."""

    seconds: float
    outcome: str


class Tokens(msgspec.Struct, frozen=True, tag="tokens"):
    """New output tokens of one request; `finish` is set in the last message. Only `drained` may follow that."""

    rid: str
    ids: list[int]
    finish: Finish | None = None
    logprobs: list[float] = msgspec.field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = msgspec.field(default_factory=list)
    meta: Meta | None = None
    drained: Drained | None = None


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    """One scheduler step's worth of tokens: batched so that 32 streams cost one message, not 32."""

    items: list[Tokens]
    dp_rank: int = 0


class SchedulerReport(msgspec.Struct, frozen=True, tag="report"):
    """Answer to Ask: `state` goes into /server_info internal_states, `load` into /v1/loads and /metrics."""

    id: str
    dp_rank: int
    state: dict[str, str | int | float | bool | None]
    load: dict[str, float]


class LiveRoom(msgspec.Struct, frozen=True):
    """One request that has not ended. `queue` is sglang's name, `state` a KVPoll or empty, `age` in seconds."""

    room: int
    rid: str
    queue: str
    state: str
    age: float
    waiting_for: str
    prompt_tokens: int
    output_tokens: int
    pages: int
    peers: list[str]


class Rooms(msgspec.Struct, frozen=True, tag="rooms"):
    """Answer to AskRooms, oldest first."""

    id: str
    dp_rank: int
    rooms: list[LiveRoom]


class Flushed(msgspec.Struct, frozen=True, tag="flushed"):
    id: str
    ok: bool
    reason: str = ""


class Switched(msgspec.Struct, frozen=True, tag="switched"):
    """Answer to SwitchRole for one DP group, agreed on by its ranks. `safe`: the group still serves as before."""

    id: str
    dp_rank: int
    ok: bool
    message: str
    safe: bool


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Sent once by every rank when it can serve; the server counts them (no sleeping, no polling)."""

    tp_rank: int
    dp_rank: int
    facts: dict[str, str | int | float | bool | None]
    pp_rank: int = 0


class StartupStage(msgspec.Struct, frozen=True, tag="stage"):
    """A step of a rank's start-up: weights_loaded, pool_ready or bootstrap_registered."""

    tp_rank: int
    dp_rank: int
    name: str
    seconds: float
    pp_rank: int = 0


class Died(msgspec.Struct, frozen=True, tag="died"):
    """Sent by a process that cannot go on, with the reason. `who` names it if it is not a rank."""

    tp_rank: int
    dp_rank: int
    reason: str
    pp_rank: int = 0
    who: str = ""


Reply = Outputs | SchedulerReport | Rooms | Flushed | Switched | Ready | StartupStage | Died

request_codec: Codec[Request] = Codec(
    "scheduler input", 2, (Generate, AbortRequest, Flush, Ask, AskRooms, Stop, SwitchRole, Done)
)
reply_codec: Codec[Reply] = Codec(
    "tokenizer input", 3, (Outputs, SchedulerReport, Rooms, Flushed, Switched, Ready, StartupStage, Died)
)
