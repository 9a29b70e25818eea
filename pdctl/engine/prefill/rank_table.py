"""The bootstrap server's table and its answers: the instance's shape, each rank's endpoint, each room's DP rank.

Registrations are accepted if they are signed with the deployment secret, or come from this instance's hosts. Without a
secret this is SGLang's protocol, which has no authentication. Two checks then keep strangers out: a rank registers the
address it calls from, and the instance's shape is known from its own command line.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pdctl.engine.ipc.messages import MALFORMED
from pdctl.engine.kv_link.bootstrap_client import RankRow, RoomQuery, RoomRank
from pdctl.http_auth import SIGNATURE, Verifier
from pdctl.loopback import parse_ip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdctl.deployment_secret import DeploymentSecret
    from pdctl.layout.shape import Shape

log = logging.getLogger("pdctl.engine")

T = TypeVar("T")

MAX_ROOMS = 1 << 17  # announced DP ranks; each is asked for once, within seconds

PARAMETERS = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
OPTIONAL = ("kv_cache_dtype", "kv_layout", "prefill_http_port")  # the first rank that gives a value decides
# aiohttp's text when a handler raises: the answer of sglang 0.5.23 to a value that is not an integer.
CRASHED = "500 Internal Server Error\n\nServer got itself in trouble"
MAX_RANKS = 1 << 16  # of one prefill instance; a row that claims more is not believed


@dataclass(frozen=True, slots=True)
class BootstrapRequest:
    """`peer` and `own` are the addresses of the connection's two ends; empty if there is no connection."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    target: str = ""
    signature: str = ""
    peer: str = ""
    own: str = ""


@dataclass(frozen=True, slots=True)
class BootstrapResponse:
    status: int
    body: bytes
    content_type: str
    allow: str = ""
    close: bool = False  # close the connection after the answer

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        found = [(b"content-type", self.content_type.encode()), (b"content-length", b"%d" % len(self.body))]
        if self.allow:
            found.append((b"allow", self.allow.encode()))
        if self.close:
            found.append((b"connection", b"close"))
        return found


def text(status: int, body: str, kind: str = "text/plain", allow: str = "", close: bool = False) -> BootstrapResponse:
    return BootstrapResponse(status, body.encode(), f"{kind}; charset=utf-8", allow, close)


def document(value: dict[str, object]) -> BootstrapResponse:
    """Return a JSON answer, spaced as by aiohttp's json_response: byte for byte the same as SGLang's."""
    return text(200, json.dumps(value), "application/json")


class BodyError(ValueError):
    """A body that cannot be accepted; the text names the field."""


@dataclass(frozen=True, slots=True)
class RoomEntry:
    dp_rank: int
    at: float  # time.monotonic()


class RankTable:
    """The first row decides the instance's shape, as in sglang; later rows only fill their slots."""

    def __init__(self) -> None:
        self._first: RankRow | None = None
        self._given: dict[str, str | int] = {}
        self._ranks: dict[tuple[int, ...], RankRow] = {}  # dp group, attn cp rank, attn tp rank, pp rank
        self._rooms: dict[int, RoomEntry] = {}

    def clear(self) -> None:
        """Forget everything: the instance is no longer a prefill."""
        self._first = None
        for memory in (self._given, self._ranks, self._rooms):
            memory.clear()

    @property
    def registered(self) -> tuple[int, int]:
        row = self._first
        expected = row.dp_size * row.attn_cp_size * row.attn_tp_size * row.pp_size if row else 0
        return len(self._ranks), expected

    @property
    def _complete(self) -> bool:
        count, expected = self.registered
        return expected > 0 and count >= expected

    def put(self, body: bytes, misfit: Callable[[RankRow], str] = lambda row: "") -> BootstrapResponse:
        """Register a rank. `misfit` returns why a row must be refused, or an empty string."""
        try:
            row = _parse(body, RankRow)
        except BodyError as error:
            return text(400, str(error))
        if why := misfit(row):
            return text(403, why)
        first = self._first
        if first is not None and first.dsv41_spec_layout != row.dsv41_spec_layout:
            return text(400, "DeepSeek-V4.1 DSpark PD layout differs across prefill ranks")
        if first is not None and first.decode_allocation_policy != row.decode_allocation_policy:
            return text(400, "Inconsistent prefill allocation policies")
        count, expected = self.registered
        if first is not None and row.slot not in self._ranks and count >= expected:
            return text(400, f"all {expected} ranks of this instance are registered; there is no other")
        self._first = first or row
        for name in OPTIONAL:
            if getattr(row, name) is not None:
                self._given.setdefault(name, getattr(row, name))
        self._ranks[row.slot] = row
        log.debug(
            "Register prefill bootstrap: DP%d CP%d TP%d PP%d with rank_ip: %s and rank_port: %s (%d/%d registered)",
            row.dp_group, row.attn_cp_rank, row.attn_tp_rank, row.pp_rank, row.rank_ip, row.rank_port, *self.registered,
        )  # fmt: skip
        return text(200, "OK")

    def get(self, query: dict[str, str]) -> BootstrapResponse:
        given = [query.get(name, "") for name in PARAMETERS]
        if not all(given):
            return text(400, "Missing inputs for bootstrap server.")
        try:
            wants_shape = all(int(value) == -1 for value in given)
            if not self._complete:
                return text(503, f"Prefill server not fully registered yet ({len(self._ranks)} workers registered).")
            return self._shape() if wants_shape else self._rank(given)
        except ValueError:
            return text(500, CRASHED, close=True)  # as by aiohttp after a crash

    def _rank(self, given: list[str]) -> BootstrapResponse:
        """Look up rank by rank, as sglang does: an unknown one is a 404 even if a later one is not an integer."""
        slot: tuple[int, ...] = ()
        for value in given:
            slot += (int(value),)
            if not any(known[: len(slot)] == slot for known in self._ranks):
                dp, cp, tp, pp = given
                return text(404, f"Bootstrap info not found for dp_rank={dp} cp_rank={cp} tp_rank={tp} pp_rank={pp}")
        row = self._ranks[slot]
        endpoint: dict[str, object] = {"rank_ip": row.rank_ip, "rank_port": int(row.rank_port)}
        return document({**endpoint, "instance_id": row.instance_id} if row.instance_id else endpoint)

    def _shape(self) -> BootstrapResponse:
        """Key order and the null keys are sglang 0.5.23's; two keys appear only when they have a value."""
        row = self._first
        if row is None:
            raise AssertionError("a complete table has a first row")
        http_port = self._given.get("prefill_http_port")
        fields = {
            "attn_tp_size": row.attn_tp_size,
            "attn_cp_size": row.attn_cp_size,
            "dp_size": row.dp_size,
            "pp_size": row.pp_size,
            "page_size": int(row.page_size),
            "kv_cache_dtype": self._given.get("kv_cache_dtype"),
            "follow_bootstrap_room": row.follows_room,
            "enable_dsa_cache_layer_split": row.enable_dsa_cache_layer_split,
            "dsv41_spec_layout": row.dsv41_spec_layout,
            "kv_layout": self._given.get("kv_layout"),
            "decode_allocation_policy": row.decode_allocation_policy,
            "enable_kv_cache_sharding": row.enable_kv_cache_sharding,
            "prefill_http_port": int(http_port) if http_port is not None else None,
            "target_tp_rank": None,
            "target_tp_ranks": None,
            "target_cp_ranks": None,
            "target_pp_ranks": None,
            "required_dst_info_num": None,
            "required_prefill_response_num": None,
        }
        optional = ("dsv41_spec_layout", "kv_layout")
        return document({key: value for key, value in fields.items() if value is not None or key not in optional})

    @property
    def addresses(self) -> set[str]:
        """The addresses of the registered ranks."""
        return {row.rank_ip for row in self._ranks.values()}

    def register_dp_rank(self, body: bytes) -> BootstrapResponse:
        try:
            entry = _parse(body, RoomRank)
        except BodyError as error:
            return text(400, str(error))
        if len(self._rooms) >= MAX_ROOMS:
            del self._rooms[next(iter(self._rooms))]  # the oldest
        self._rooms[int(entry.bootstrap_room)] = RoomEntry(int(entry.dp_rank), time.monotonic())
        log.debug("Registered dp_rank=%s for bootstrap_room=%s", entry.dp_rank, entry.bootstrap_room)
        return text(200, "OK")

    def query_dp_ranks(self, body: bytes) -> BootstrapResponse:
        try:
            query = _parse(body, RoomQuery)
        except BodyError as error:
            return text(400, str(error))
        rooms = [int(room) for room in query.bootstrap_rooms]
        return document({str(room): self._rooms[room].dp_rank for room in rooms if room in self._rooms})

    def drop_rooms_older_than(self, seconds: float) -> int:
        """Drop old rooms; return how many."""
        limit = time.monotonic() - seconds
        old = [room for room, entry in self._rooms.items() if entry.at < limit]
        for room in old:
            del self._rooms[room]
        return len(old)


def _parse(body: bytes, kind: type[T]) -> T:
    """Decode a body. Raise BodyError; msgspec's text ends in the path of the field (`at `$.rank_port``)."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise BodyError(str(error)) from None
    except MALFORMED as error:
        raise BodyError(f"the body is not JSON: {error}") from None


class RegistrationCheck:
    """`shape` is the instance's, from its command line; if None, the first row decides, as in sglang."""

    def __init__(self, shape: Shape | None = None, secret: DeploymentSecret | None = None) -> None:
        self._shape = shape
        self._verifier = Verifier(secret) if secret is not None else None

    @property
    def signed(self) -> bool:
        """Whether a request that passes `unsigned` is known to come from this deployment."""
        return self._verifier is not None

    def unsigned(self, request: BootstrapRequest) -> str:
        """Return why a request that changes the table is answered 401, or an empty string if it may be read."""
        if self._verifier is None:
            return ""
        if not request.signature:
            return (
                f"this prefill takes registrations signed with its deployment secret only ({SIGNATURE} is missing); "
                "SGLang ranks need an instance without one: pdctl launch --no-deployment-secret"
            )
        return self._verifier.refuse(request.signature, request.method, request.target, request.body)

    def misfit(self, row: RankRow, request: BootstrapRequest) -> str:
        """Return why a row is refused: it is not of this instance, or not the sender's to register."""
        sizes = (row.dp_size, row.attn_cp_size, row.attn_tp_size, row.pp_size)
        shape = self._shape
        if shape is not None:
            expected = (shape.dp_ranks, shape.cp, shape.attn_tp_size, shape.pp)
            if sizes != expected:
                return f"dp, cp, tp and pp sizes {sizes} are not those of this instance: {expected}"
        for name, index, size in zip(("dp", "cp", "tp", "pp"), row.slot, sizes, strict=True):
            if index >= size and shape is not None:
                return f"{name} rank {index} does not exist: this instance has {size}"
        if sizes[0] * sizes[1] * sizes[2] * sizes[3] > MAX_RANKS:
            return f"dp, cp, tp and pp sizes {sizes} are more than {MAX_RANKS} ranks"
        if parse_ip(row.rank_ip) is None:
            return f"rank_ip {row.rank_ip[:64]!r} is not an IP address"
        return "" if self._verifier is not None else foreign(request, (row.rank_ip,))


def foreign(request: BootstrapRequest, known: Iterable[str]) -> str:
    """Return why the sender is a stranger, if it calls neither from this machine nor from a `known` address."""
    peer = parse_ip(request.peer)
    if peer is None or peer.is_loopback or peer == parse_ip(request.own):
        return ""
    if any(peer == parse_ip(one) for one in known):
        return ""
    return (
        f"{request.peer} may not register {', '.join(sorted(set(known)))[:200] or 'anything'}: a rank registers the "
        "address it calls from (set SGLANG_HOST_IP on that rank, or start the instance with a deployment secret)"
    )
