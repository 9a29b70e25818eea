"""Why a room failed: a stable code, and SGLang's own sentence (0.5.23) followed by what was missing and where."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pdctl.engine.kv_link.room_state import KVPoll

ABORTED = "Aborted by AbortReq."
ABORTED_BY_DECODE = "Aborted by decode-side abort notification."


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
    """`code` is one of FailureCode, or whatever a newer peer sent."""

    code: str
    message: str

    def exception_text(self, room: int) -> str:
        """As SGLang prints it behind `with exception`."""
        return f"KVTransferError(bootstrap_room={room}): {self.message}"


class RoomFailedError(Exception):
    """What a room waited for will not come; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def aborted(reason: str) -> Failure:
    return Failure(FailureCode.ABORTED.value, reason)


# What one side saw of the pair is as true for the other's client; of anything else SGLang's sentence is told.
SHARED = (
    FailureCode.MISMATCH.value,
    FailureCode.RANK_UNREACHABLE.value,
    FailureCode.DP_CONFLICT.value,
    FailureCode.NO_DP_RANK.value,
)
# DP ranks are named by the request alone: no other pair would serve it, and no router should think less of this one.
THE_REQUESTS = (FailureCode.DP_CONFLICT.value, FailureCode.NO_DP_RANK.value)


def http_status(code: str) -> int:
    """What the client of a room that failed gets."""
    return 400 if code in THE_REQUESTS else 500


def given_up(code: str, reason: str) -> Failure:
    """What a prefill rank makes of an abort."""
    return Failure(code, reason) if code in SHARED and reason else aborted(ABORTED_BY_DECODE)


def timed_out(room: int, seconds: float, limit: float, state: KVPoll, missing: str) -> Failure:
    """`missing` names what did not come and from where. A wait far beyond its limit shows that this process hung."""
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


def of(code: FailureCode, message: str) -> Failure:
    return Failure(code.value, message)
