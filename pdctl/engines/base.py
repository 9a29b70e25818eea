"""An adapter: what pdctl knows about the logs of one program that takes part in PD serving, an engine or a router.

What its lines prove is stated on its rows, in engine-neutral terms; the adapter states what follows from which program
it is. Code that reads logs asks for these properties and never for a program by its name.
A phase is a step of the line's room, in SGLang's own terms (0.5.3 to 0.5.23). A sign is about the moment of its line
("sends", "arrives") or about everything before it ("sent", "arrived"): a decode's failed transfer proves that the page
list was sent, but not when.
$PDCTL_ENGINES names modules with adapters for engines that pdctl does not know (docs/new-engine.md).
"""

from __future__ import annotations

import importlib
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pdctl.engines.versions import Span
from pdctl.errors import UsageError, limit_reached
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdctl.engines.row_matching import Said

T = TypeVar("T")


class Phase(str, Enum):
    """What a line proves about its room. The order of the members is the causal order; the last five end a room."""

    DISPATCHED = "dispatched"  # the router chose a pair
    RECEIVED = "received"  # an engine has the HTTP request
    BOOTSTRAP = "bootstrap"  # prefill: in the bootstrap queue, waiting for the decode's page list
    PREALLOC = "prealloc"  # decode: has the room; resolving the prefill, reserving pages
    HANDSHAKE = "handshake"  # TransferInfo sent by the decode, or arrived at a prefill
    FORWARD = "forward"  # prefill: waiting for or in its forward pass
    TRANSFER = "transfer"  # KV pages moving
    DECODE = "decode"  # KV arrived; the decode is generating
    FINISHED = "finished"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ABORTED = "aborted"
    REFUSED = "refused"  # the request itself was answered 4xx

    @property
    def order(self) -> int:
        return _ORDER[self]

    @property
    def ends(self) -> bool:
        return self in (Phase.FINISHED, Phase.FAILED, Phase.TIMED_OUT, Phase.ABORTED, Phase.REFUSED)


_ORDER = {phase: index for index, phase in enumerate(Phase)}


class Sign(str, Enum):
    """The value is the word used in a user's own rows; docs/dialects.md lists all. Backquoted names are row values."""

    meaning: str

    def __new__(cls, word: str, meaning: str) -> Sign:
        self = str.__new__(cls, word)
        self._value_, self.meaning = word, meaning
        return self

    # What a log is: who wrote it, with which settings.
    ARGUMENTS = "arguments", "its settings, `args` as Python writes them"
    COMMAND = "command", "its command line: `args`"
    HTTP_PORT = "http-port", "it serves HTTP at `port`"
    BOOTSTRAP_LISTENS = "bootstrap-listens", "its bootstrap server does, at `port` or `addr`"
    BACKEND = "backend", "it moves KV cache with `backend`"
    CLOCK = "clock", "the time with its zone: `clock`"
    # A process from its start to its end.
    STARTED = "started", "it says what it was started with, once in its life"
    LAUNCHED = "launched", "written into its log by whoever launched it, who will write its end there, too"
    WEIGHTS_LOADED = "weights-loaded", "the checkpoint is in memory"
    READY = "ready", "it takes requests; what it served before was its own warm-up"
    LISTENS = "listens", "at `addr`, or on `host`"
    BOOTSTRAP_PORT = "bootstrap-port", "it tells the port of its bootstrap server"
    RANK_REGISTERED = "rank-registered", "a rank of this prefill, at `rank_ip` and `rank_port`"
    RANK_LISTENS = "rank-listens", "the same, as the rank itself says it"
    AGENT_NAMED = "agent-named", "the rank's name in the transfer library: `agent`"
    RUNNING = "running", "how many requests a decode has: `running`, `prealloc`, `transfer`"
    WAITING_FOR_PAGES = "waiting-for-pages", "how many requests wait at a prefill for a decode's page list: `bootstrap`"
    SLOTS_HELD = "slots-held", "a decode lets `count` rooms wait: `held` slots are those of rooms without KV cache"
    DRAINED = "drained", "it ends, and has `left` requests, `rids` of them"
    SERVES = "serves", "what a decode writes only once it has done something for a room"
    ORDERED_TO_END = "ordered-to-end", "somebody told it to end"
    CRASHED = "crashed", "it is about to end, or a part of it has, and nobody ordered that"
    CHILD_ENDED = "child-ended", "a parent's word of a child's end, with its exit `code`"
    FOLLOWED_CHILD = "followed-child", "the parent ends itself because a child did"
    DIED = "died", "whoever launched it says that it ended unordered"
    REHEARSED = "rehearsed", "it ends itself because it was told to rehearse that"
    LINES_LOST = "lines-lost", "`lost` lines before it, the first one at `since`, could not be written to this log"
    ENDED_ITSELF = "ended-itself", "for the `reason` it gives"
    # A router: its workers, and each request.
    WORKERS = "workers", "its list of them: `prefill`, `decode`"
    WORKERS_PRINTED = "workers-printed", "printed ahead of its log"
    DECODES_PRINTED = "decodes-printed", "the decodes alone"
    WORKERS_REHEARSED = "workers-rehearsed", "as it really hands them out; the list that follows has the right ports"
    WORKERS_AGAIN = "workers-again", "where it listens, with the list once more"
    REQUEST_CAME = "request-came", "to the router, at `path`"
    PAIR_CHOSEN = "pair-chosen", "`prefill`, `decode`"
    LEGS_SENT = "legs-sent", "the request went to both, `prefill` and `decode`"
    ATTEMPT_ENDED = "attempt-ended", "the router's wait for both legs is over, however it ended"
    DECODE_ANSWERED = "decode-answered", "with `leg_status`"
    DECODE_LEG_BROKE = "decode-leg-broke", "the connection to `decode`"
    PREFILL_LEG_BROKE = "prefill-leg-broke", "the connection to `prefill`"
    RETRIED = "retried", "with another room"
    REQUEST_LEFT = "request-left", "answered with `status`"
    WORKER_MISSED = "worker-missed", "it does not answer at `url`"
    WORKER_UNWELL = "worker-unwell", "or answers badly: the line's reason tells"
    CANARY = "canary", "a request of the router's own"
    # A request at an engine.
    REQUEST_ARRIVED = "request-arrived", "with the bootstrap `host` and `port` it brought"
    REQUEST_TOKENIZED = "request-tokenized", "`inputs` of them"
    REQUEST_ANSWERED = "request-answered", "at `path` with `status`: when a stream begins, when any other answer ends"
    REQUEST_FINISHED = "request-finished", "as `finish` says"
    REQUEST_CUT = "request-cut", "one that ran was cut short"
    ABORT_REQUESTED = "abort-requested", "somebody asked it over HTTP to abort requests, answered with `status`"
    CLIENT_LEFT = "client-left", "it closed its connection, or aborted the request"
    GAVE_UP_REQUEST = "gave-up-request", "a prefill, one that waited for its page list; the line names no room"
    ROOM_USED_UP = "room-used-up", "a scheduler fell over a room whose entry was gone: two requests had it"
    # Prefill and decode of one room.
    HAS_REQUEST = "has-request", "only a prefill that got the room's HTTP request writes it"
    ROOM_OPENED = "room-opened", "the prefill has the room's page list, and waits for its request or has it"
    BOOTSTRAP_GIVEN = "bootstrap-given", "`addr` is the bootstrap server the room's request brought"
    PAGE_LIST_SENDS = "page-list-sends", "the decode sends the page list now"
    PAGE_LIST_SENT = "page-list-sent", "it is out by now"
    PAGE_LIST_ARRIVES = "page-list-arrives", "at the prefill, now"
    PAGE_LIST_ARRIVED = "page-list-arrived", "the prefill has it by now"
    SENDER_STARTED = "sender-started", "for a room the line does not name"
    CACHE_SENDS = "cache-sends", 'a chunk, the `last` one is "1"'
    TRANSFER_DONE = "transfer-done", "the prefill's half"
    CACHE_ARRIVES = "cache-arrives", "the whole KV cache is on the decode, now"
    CACHE_ARRIVED = "cache-arrived", "it is there by now"
    TRANSFER_MEASURED = "transfer-measured", "`bytes` in `seconds`"
    WAITED_FOR_PAGES = "waited-for-pages", "the decode's pages, for `seconds`"
    PREFILL_TIMES = "prefill-times", "`times`"
    DECODE_TIMES = "decode-times", "`times`"
    GAVE_UP_UNMET = "gave-up-unmet", "a decode, before any page list went out"
    GAVE_UP_WAITING = "gave-up-waiting", "a decode, by its time limit, which the line does not tell"
    GAVE_UP_WITHOUT_PAGES = "gave-up-without-pages", "a decode, which had no pages or slot for the room until then"
    ABORT_SENDS = "abort-sends", "to the rank at `addr`"
    ABORT_ARRIVES = "abort-arrives", "at the prefill"
    ABORT_TALK = "abort-talk", "between the two sides, after one of them had given the room up"
    # The bootstrap server of a prefill, as its decodes see it.
    BOOTSTRAP_DIALLED = "bootstrap-dialled", "at `addr`, or `host` and `port`: no good answer"
    BOOTSTRAP_REFUSED = "bootstrap-refused", "or none at all: the line's reason tells"
    BOOTSTRAP_ANSWERED = "bootstrap-answered", "it is there, and answered `status`"
    BOOTSTRAP_MISSED = "bootstrap-missed", "nobody answers at `addr`"
    HEARTBEAT_MISSED = "heartbeat-missed", "the first of several"
    HEARTBEATS_LOST = "heartbeats-lost", "as many as it takes to give a prefill up"


class Speaker(str):
    """Who writes a line: the name of an adapter. One object per name, so `is` works."""

    __slots__ = ()
    _known: ClassVar[dict[str, Speaker]] = {}

    SGLANG: ClassVar[Speaker]
    SGLANG_ROUTER: ClassVar[Speaker]
    SMG: ClassVar[Speaker]
    MINI_LB: ClassVar[Speaker]
    PDCTL_ENGINE: ClassVar[Speaker]
    PDCTL_ROUTER: ClassVar[Speaker]
    LAUNCHER: ClassVar[Speaker]

    def __new__(cls, name: str) -> Speaker:
        return cls._known.setdefault(name, str.__new__(cls, name))

    def __reduce__(self) -> tuple[type[Speaker], tuple[str]]:
        return (Speaker, (str(self),))

    @property
    def value(self) -> str:
        return str(self)


Speaker.SGLANG = Speaker("sglang")
Speaker.SGLANG_ROUTER = Speaker("sglang-router")
Speaker.SMG = Speaker("smg")
Speaker.MINI_LB = Speaker("mini_lb")
Speaker.PDCTL_ENGINE = Speaker("pdctl-engine")
Speaker.PDCTL_ROUTER = Speaker("pdctl-router")
Speaker.LAUNCHER = Speaker("pdctl-launch")


class Level(str, Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class Measure(NamedTuple):
    """A value that says how long one stretch of a room's life took: its name, the stretch, and its unit in seconds."""

    value: str
    stretch: str
    unit: float = 1.0


class Row(NamedTuple):
    """One kind of log line. `literal` is in every line the row matches and is searched first; `pattern` reads the rest.

    pattern: matched at the start of the message, that is, after prefix and colour codes are removed. Named groups are
    the row's variables; the agreed names are room, rid, rank, reason, host, port, addr, prefill, decode, request_id,
    attempt, status, seconds, bytes, pages, speed, rank_ip, rank_port, other_room, path; a row may add its own.
    role: prefill, decode, router, or "" if both kinds of engine write it. A line with a role tells the role of the
    file it is in (engines/identify.py).
    phase: what it proves about its room; None if it says nothing about one room.
    cause: the catalogue code whose cause this line proves or suggests; "" for none.
    echo: it names an effect, never a cause.
    needs: the flag or level without which the line is not written ("--log-level debug", "--log-requests", …), "" if
    it is always written.
    example: one whole real line with its prefix. It is a test.
    proves: what else follows from the line; code that reads logs asks for this, never for `id`.
    reached: for a line that ends a room, the step the room had reached; None if that does not follow.
    measures: how long a part of the room's life took.
    follows: the id of the row it continues; it matches only after a line of that row, or of this one.
    """

    id: str
    speaker: Speaker
    level: Level
    role: str
    literal: bytes
    pattern: str
    example: str
    span: Span = Span()
    phase: Phase | None = None
    backend: str = ""
    cause: str = ""
    echo: bool = False
    needs: str = ""
    proves: tuple[Sign, ...] = ()
    reached: Phase | None = None
    measures: Measure | None = None
    follows: str = ""


class Hint(NamedTuple):
    """A detail of a row's line that only some releases write: `pattern` matches the start of what `detail` returns."""

    row: str
    detail: Callable[[Said], str]
    pattern: str
    span: Span


class Adapter(NamedTuple):
    """`rows`: in the order in which they are tried.

    shares: the speaker whose lines it also writes, because it contains that one's code or copies its messages.
    dated: the spans of its rows and hints are releases, so a log shows which release wrote it.
    at_info: rows of `shares` that are at DEBUG there and at INFO here.
    names_every_room: an engine that writes a line for each request and page list of a room, so no line means neither
    arrived.
    kind: for a router, its name in engines/kinds.py; "" for an engine.
    pairs_at_debug: a router that names the pair of a request only at DEBUG.
    names_address: a router that names the bootstrap address it sends with each room, which may differ from its list.
    reads_prefill: a router that reports a request as answered only once it has read the prefill's whole answer too.
    writes_utc: a router whose lines carry UTC without saying so, whatever its host's zone.
    """

    speaker: Speaker
    rows: tuple[Row, ...]
    shares: Speaker | None = None
    dated: bool = False
    hints: tuple[Hint, ...] = ()
    at_info: frozenset[str] = frozenset()
    names_every_room: bool = False
    kind: str = ""
    pairs_at_debug: bool = False
    names_address: bool = False
    reads_prefill: bool = False
    writes_utc: bool = False


VARIABLE = "PDCTL_ENGINES"
FORM = "see docs/new-engine.md for the form"
BRINGS = ("ADAPTER", "SURFACE")  # an engine's logs, and what it serves over HTTP (engines/reported_settings.py)


def brought(modules: str, what: str, kind: type[T]) -> tuple[T, ...]:
    """`what` of every module that has it. Raise UsageError for a module that cannot be imported, or has none of BRINGS,
    or has something else than a `kind` under that name."""
    found = []
    for name in filter(None, (word.strip() for word in modules.split(","))):
        brings = _imported(name)
        if brings.keys().isdisjoint(BRINGS):
            missing = " and no ".join(BRINGS)
            raise UsageError(f"${VARIABLE} names {name}, which has no {missing}", FORM)
        if what in brings:
            one = brings[what]
            if not issubclass(type(one), kind):  # isinstance asks the object itself, which may raise anything
                wrong = f"whose {what} is of type {type(one).__name__}, not {kind.__name__}"
                raise UsageError(f"${VARIABLE} names {name}, {wrong}", FORM)
            found.append(one)
    return tuple(found)


def _imported(name: str) -> Mapping[str, Any]:
    """The names that a module of the user's defines."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(
            f"${VARIABLE} names {name}, which is not the name of a module", "as in: PDCTL_ENGINES=my.adapter"
        )
    try:
        return vars(importlib.import_module(name))
    except (Exception, SystemExit) as error:  # the code is the user's and may raise anything
        if limit_reached(error) is not None:
            raise
        fix = f"correct it, install the package it is in, or take it out of ${VARIABLE}"
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        why = " ".join(f"{kind}{error}".split())
        raise UsageError(f"${VARIABLE} names {name}, which cannot be imported: {why}", fix) from None
