"""What a message says beyond its row: reasons, statuses and times, wherever they occur in a line.

Reasons travel from engine to router and into answers. From sglang 0.5.3 to 0.5.23, sglang-router, smg, pdctl's own
engine and router, and the kernel errors they quote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.quick_definitions import NamedTuple, compile_late

if TYPE_CHECKING:
    import re

HEARTBEAT_INTERVAL = 5.0  # seconds between heartbeats (SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL), or health checks
HEARTBEAT_TRIES = 2  # failures in a row until a prefill is given up (SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE)
# While there is no output, sglang checks at this interval, in seconds, whether the client is still connected
# (srt/environ.py, SGLANG_REQUEST_STATE_WAIT_TIMEOUT, 0.5.3 to 0.5.23): its line comes at most this much later.
CLIENT_POLL = 4.0
REFUSED = "refused"
NO_ANSWER = "no answer"
NO_ADDRESS = "not an address"  # of a bootstrap address that a request gave (pdctl's own engine)
UNREGISTERED = "not fully registered"
NOBODY_THERE = (REFUSED, "no connection", "reset")  # a worker that gives a bad answer is there
CLOSED_BY_KERNEL = (REFUSED, "reset", "disconnected", "closed the connection")  # on behalf of a process that is gone
CLIENT_CLOSED = "the client closed the connection"

# A decode's failed look-up of a prefill, and the status with which a bootstrap server answered (pdctl's own engine).
_UNFETCHED = compile_late(
    r"Could not fetch prefill parallel info from (?:bootstrap_addr: )?(?P<addr>[^\s:]+:\d+|\[\S+\]:\d+)"
)
_LOOKUP_ANSWERED = compile_late(r"https?://\S+?: (?P<status>[1-5]\d\d)\b")
_UNUSABLE = (  # an answer, or a connection, that names no status
    (" answered something else than SGLang's: ", "something else than SGLang's bootstrap server"),
    (": its answer cannot be used (", "what cannot be used"),
    (": no HTTP answer (", "no HTTP"),
)
_HEARTBEATS = compile_late(r"\b(\d{1,3}) heartbeats failed")
_CHECKS = compile_late(r"\bHealth check (\d{1,3}) failed\b")
_TIMED_OUT = compile_late(
    r" timed out after (?P<seconds>[\d.]+)s in KVPoll\.(?P<state>\w+)(?: \(limit (?P<limit>[\d.]+)s\))?"
)
_OVERDUE = compile_late(
    r"total_ms=\S*: (?P<leg>prefill|decode) \S+ (?:did not finish|sent no byte) within (?P<flag>--[a-z-]{1,40})"
)
_LEG_LOST = compile_late(r"\b(?P<leg>prefill|decode) https?://\S+ (?:closed the connection|no connection)")
_LEG_UNREACHED = compile_late(r"\b(?P<leg>prefill|decode) https?://\S+ no connection")
_LEG_ANSWERED = compile_late(r"\b(?P<leg>prefill|decode) (?P<url>https?://\S+) answered (?P<status>[45]\d\d)\b")
_TOKENS_WRITTEN = compile_late(r"'completion_tokens': (\d{1,9})\b")
_LATENCY = compile_late(r"'e2e_latency': (\d+(?:\.\d+)?)")
_SEVERAL_SAMPLES = compile_late(r"""['"]n['"]: ?(?:[2-9]|[1-9]\d)\b|\bn=(?:[2-9]|[1-9]\d)\b""")
_LOST_NODE = compile_late(r"\bits node (\S+)")


# The times of one request as SGLang reports them at its end (ReqTimeStats, 0.5.3 to 0.5.23).
# `name=1.23ms` in sglang 0.5.3 and 0.5.13+, `name(1.23ms)` inside 0.5.8's sums.
_TIME = compile_late(r"(\w+)(?:=|\()([\d.]+)ms")
_FILES = compile_late(r"^the hard limit of open files is \d+, .*\(ulimit -Hn (\d{1,9}),")
_SPEED = compile_late(r"transfer_speed=([\d.]+) ?GB/s")
_TOTAL = compile_late(r"transfer_total=([\d.]+) ?MB")
_ENTRY = compile_late(r"entry_time=([\d.]+)")
TRANSFER = "transfer"
# SGLang's field → the part of the room's life, by role.
PARTS = {
    "prefill": {
        "bootstrap_duration": "bootstrap wait", "bootstrap_queue_duration": "bootstrap wait",
        "queue_duration": "queue", "forward_duration": "prefill forward", "transfer_duration": TRANSFER,
    },
    "decode": {
        "prealloc_duration": "prealloc", "prealloc_queue_duration": "prealloc", "bootstrap_duration": "handshake",
        "alloc_wait_duration": "prealloc", "transfer_duration": TRANSFER, "queue_duration": "decode queue",
        "forward_duration": "decode",
    },
}  # fmt: skip


class TimedOut(NamedTuple):
    """A time-out, in seconds. `limit`: as the line names it, None if it does not, as in SGLang's lines."""

    seconds: float
    state: str
    limit: float | None


class OverdueLeg(NamedTuple):
    """`leg`: "prefill" or "decode". `flag`: the router's limit that it exceeded."""

    leg: str
    flag: str


class LegAnswer(NamedTuple):
    """What pdctl's router reports about a leg; the published routers name no room in such a line."""

    leg: str
    url: str
    status: str


class TimeStats(NamedTuple):
    """`parts`: name and seconds, in order. `entry`: when the request arrived, on the clock of the line's timestamp.

    entry is None before 0.5.13. bytes: of the transfer; speed: its GB/s; None if not reported.
    """

    parts: tuple[tuple[str, float], ...]
    entry: float | None
    bytes: float | None
    speed: float | None

    @property
    def transfer_seconds(self) -> float | None:
        return self.bytes / 1e9 / self.speed if self.bytes and self.speed else None


def looked_up(text: str) -> str | None:
    """The bootstrap server whose failed look-up is the reason a room was given up; None for any other reason."""
    found = _UNFETCHED.search(text)
    return found["addr"] if found else None


def lookup_answer(text: str) -> str:
    """What was answered where the bootstrap server should be: a status, else words; "" if the line names no answer."""
    found = _LOOKUP_ANSWERED.search(text)
    return found["status"] if found else next((words for said, words in _UNUSABLE if said in text), "")


def failed_heartbeats(text: str) -> int | None:
    """How many heartbeats failed in a row; None if the line does not say."""
    return _count(_HEARTBEATS, text)


def failed_checks(text: str) -> int | None:
    """How many heartbeats or health checks failed in a row; None if the line does not say."""
    return _count(_HEARTBEATS, text) or _count(_CHECKS, text)


def timed_out(text: str) -> TimedOut | None:
    found = _TIMED_OUT.search(text)
    seconds = numerals.real(found["seconds"]) if found else None
    if found is None:
        return None
    return TimedOut(seconds or 0.0, found["state"], numerals.real(found["limit"]))


def overdue_leg(text: str) -> OverdueLeg | None:
    """The leg for which pdctl's router ended the room; the published routers name no room in such a line."""
    found = _OVERDUE.search(text)
    return OverdueLeg(found["leg"], found["flag"]) if found else None


def tokens_written(text: str) -> int | None:
    """How many tokens of its answer an engine had written, according to the answer's line."""
    found = _TOKENS_WRITTEN.search(text)
    return numerals.whole(found[1]) if found else None


def lost_leg(text: str) -> str:
    """ "prefill" or "decode" if pdctl's router says that it lost the connection to that leg; else ""."""
    found = _LEG_LOST.search(text)
    return found["leg"] if found else ""


def unreached_leg(text: str) -> str:
    """ "prefill" or "decode" if pdctl's router says that it could not connect to that leg at all; else ""."""
    found = _LEG_UNREACHED.search(text) if " no connection" in text else None  # a batch's rooms take long to search
    return found["leg"] if found else ""


def leg_answer(text: str) -> LegAnswer | None:
    found = _LEG_ANSWERED.search(text) if " answered " in text else None
    return LegAnswer(found["leg"], found["url"], found["status"]) if found else None


def client_closed(text: str) -> bool:
    """Whether an engine's answer line says that the client left; only pdctl's engine says so explicitly."""
    return f"'message': '{CLIENT_CLOSED}'" in text


def end_to_end(text: str) -> float | None:
    """Seconds from request to answer, according to the answer's line."""
    found = _LATENCY.search(text)
    return float(found[1]) if found else None


def several_samples(text: str) -> bool:
    """Whether the request asks for n > 1."""
    return _SEVERAL_SAMPLES.search(text) is not None


def lost_node(text: str) -> str:
    """The Slurm node with which a process was lost, "" if none is named."""
    found = _LOST_NODE.search(text)
    return found[1] if found else ""


def time_stats(text: str, role: str) -> TimeStats:
    """The times in the line with which an engine of this role ends a request."""
    names = PARTS[role]
    parts = [
        (names[field], milliseconds / 1000)
        for field, length in _TIME.findall(text)
        if field in names and (milliseconds := numerals.real(length)) is not None
    ]
    speed, total = _real(_SPEED, text), _real(_TOTAL, text)
    return TimeStats(tuple(parts), _real(_ENTRY, text), total * 1e6 if total else None, speed or None)


def files_wanted(text: str) -> int | None:
    """The limit of open files that an engine asks for which refuses to start under a lower one."""
    return _count(_FILES, text)


def entry_of(line: bytes) -> float | None:
    """When the request of such a line arrived, epoch seconds; None for another line."""
    return _real(_ENTRY, line.decode("ascii", "replace")) if b" entry_time=" in line else None


def _real(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return numerals.real(found[1]) if found else None


def _count(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return numerals.whole(found[1]) or 1 if found else None
