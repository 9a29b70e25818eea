"""Where a room stands (SGLang's KVPoll, 0.5.23), what it has moved, why it failed; `FakeSender`, `FakeReceiver`.

A failure has a stable code, and SGLang's own sentence followed by what was missing and where. Requests that name the
fake bootstrap host (warm-up and health) get a room whose other end is never waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.engine.transfer.transport import Pages

ABORTED = "Aborted by AbortReq."
ABORTED_BY_DECODE = "Aborted by decode-side abort notification."


class KVPoll(IntEnum):
    """Ranks of a tensor-parallel group agree on the minimum: one failed rank fails all, the slowest decides."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING_FOR_INPUT = 2
    TRANSFERRING = 3
    SUCCESS = 4

    @property
    def label(self) -> str:
        """The spelling of SGLang's log lines: `KVPoll.WaitingForInput`."""
        return "KVPoll." + self.name.title().replace("_", "")

    @property
    def final(self) -> bool:
        return self in (KVPoll.FAILED, KVPoll.SUCCESS)

    def advanced(self, to: KVPoll) -> KVPoll:
        """Return the later state: states increase, a failure overrides any that is not final, and final ones stay."""
        if self.final:
            return self
        return to if to == KVPoll.FAILED else max(self, to)


@dataclass(frozen=True, slots=True)
class TransferStats:
    """What one room has moved so far, to or from this rank; the ranks of an instance add up to the room.

    Seconds and bytes. `handshake` ends when the other side is known to be ready. `transfer` is everything after that,
    including the prefill's computing between two chunks; `moving` is the part of it in which bytes moved. `descriptors`
    are contiguous blocks, and `room_nbytes` is what all ranks together move for these pages.
    """

    pages: int = 0
    nbytes: int = 0
    chunks: int = 0
    handshake: float = 0.0
    transfer: float = 0.0
    descriptors: int = 0
    room_nbytes: int = 0
    moving: float = 0.0

    @property
    def gb_s(self) -> float:
        """10⁹ bytes per second while bytes moved; 0 if none did."""
        return self.nbytes / self.moving / 1e9 if self.moving > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ManagerStats:
    """Totals since a KV manager started; `rooms` and `draining` are current counts."""

    rooms: int
    draining: int
    peers: int
    succeeded: int
    failed: int
    rejected_frames: int
    nbytes: int


class FailureCode(str, Enum):
    ABORTED = "aborted"
    BOOTSTRAP_TIMEOUT = "bootstrap_timeout"
    WAITING_TIMEOUT = "waiting_timeout"
    BOOTSTRAP_UNREACHABLE = "bootstrap_unreachable"
    RANK_UNREACHABLE = "rank_unreachable"
    MISMATCH = "mismatch"
    PREFILL_LOST = "prefill_lost"
    DECODE_LOST = "decode_lost"
    UNKNOWN_SESSION = "unknown_session"
    UNKNOWN_ROOM = "unknown_room"
    DUPLICATE_ROOM = "duplicate_room"
    BAD_PAGES = "bad_pages"
    TRANSFER = "transfer"
    CHECKSUM = "checksum"
    DP_CONFLICT = "dp_conflict"
    NO_DP_RANK = "no_dp_rank"
    STALE_ENDPOINT = "stale_endpoint"
    MANAGER_DIED = "manager_died"


@dataclass(frozen=True, slots=True)
class Failure:
    """`code` is one of FailureCode, `peer_rank` or `context_corruption` (of a role), or what a newer peer sent."""

    code: str
    message: str


class RoomFailedError(Exception):
    """Something a room waited for will not come; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def aborted(reason: str) -> Failure:
    return Failure(FailureCode.ABORTED.value, reason)


# With these codes, what one side saw holds for the other side's client too; with any other it gets SGLang's sentence.
SHARED = (
    FailureCode.MISMATCH.value,
    FailureCode.RANK_UNREACHABLE.value,
    FailureCode.DP_CONFLICT.value,
    FailureCode.NO_DP_RANK.value,
)
# Only the request names DP ranks: no other pair would serve it, and a router should not blame this one.
THE_REQUESTS = (FailureCode.DP_CONFLICT.value, FailureCode.NO_DP_RANK.value)


def http_status(code: str) -> int:
    """Return the HTTP status for the client of a failed room."""
    return 400 if code in THE_REQUESTS else 500


def given_up(code: str, reason: str) -> Failure:
    """Return the failure that a prefill rank derives from an abort."""
    return Failure(code, reason) if code in SHARED and reason else aborted(ABORTED_BY_DECODE)


def timed_out(room: int, seconds: float, limit: float, state: KVPoll, missing: str) -> Failure:
    """`missing` names what did not come, and from where. A wait far beyond its limit shows that this process hung."""
    code = FailureCode.BOOTSTRAP_TIMEOUT if state == KVPoll.BOOTSTRAPPING else FailureCode.WAITING_TIMEOUT
    waited = f"Request {room} timed out after {seconds:.1f}s in {state.label} (limit {limit:.1f}s)"
    return Failure(code.value, f"{waited}: {missing}")


def bootstrap_unreachable(address: str, detail: str) -> Failure:
    message = f"Could not fetch prefill parallel info from bootstrap_addr: {address}: {detail}"
    return Failure(FailureCode.BOOTSTRAP_UNREACHABLE.value, message)


def prefill_lost(address: str, detail: str) -> Failure:
    message = f"Lost connection with prefill instance (bootstrap_addr: {address}): {detail}"
    return Failure(FailureCode.PREFILL_LOST.value, message)


def decode_lost(session: str, endpoint: str, detail: str) -> Failure:
    message = f"Decode instance could be dead, remote session {session} ({endpoint}) is not alive: {detail}"
    return Failure(FailureCode.DECODE_LOST.value, message)


def failure_of(code: FailureCode, message: str) -> Failure:
    return Failure(code.value, message)


class FakeSender:
    """For requests that name the fake bootstrap host: everything succeeds at once and nothing is sent."""

    drained = True
    failure: Failure | None = None
    peers: tuple[str, ...] = ()

    def __init__(self, room: int, rid: str) -> None:
        self.room = room
        self.rid = rid
        self.stats = TransferStats()
        self._state = KVPoll.WAITING_FOR_INPUT

    def poll(self) -> KVPoll:
        return self._state

    def send(self, pages: Pages, last: bool, metadata: bytes = b"") -> None:
        del metadata
        self.stats = TransferStats(pages=self.stats.pages + len(pages), chunks=self.stats.chunks + 1)
        if last:
            self._state = KVPoll.SUCCESS

    def abort(self, reason: str = ABORTED, code: str = FailureCode.ABORTED.value) -> None:
        self.failure = Failure(code, reason)
        self._state = KVPoll.FAILED

    def clear(self) -> None:
        return


class FakeReceiver:
    """For requests that name the fake bootstrap host: ready at once, and done as soon as the pages are announced."""

    failure: Failure | None = None
    peers: tuple[str, ...] = ()

    def __init__(self, room: int, rid: str) -> None:
        self.room = room
        self.rid = rid
        self.metadata: bytes | None = None
        self.stats = TransferStats()
        self._state = KVPoll.WAITING_FOR_INPUT

    @property
    def drained(self) -> bool:
        return self._state.final

    def poll(self) -> KVPoll:
        return self._state

    def send_metadata(self, pages: Pages, prefix_pages: int = 0) -> None:
        """`metadata` stays empty: there is no first token, and the scheduler accepts any."""
        del prefix_pages
        self.stats = TransferStats(pages=len(pages))
        self.metadata = b""
        self._state = KVPoll.SUCCESS

    def abort(self, reason: str = ABORTED, code: str = FailureCode.ABORTED.value) -> None:
        self.failure = Failure(code, reason)
        self._state = KVPoll.FAILED

    def clear(self) -> None:
        return
