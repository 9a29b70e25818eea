"""The HTTP calls engines make to a prefill's bootstrap server, and their JSON bodies, as in sglang 0.5.23."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

import h11
import msgspec
from msgspec import Meta

from pdctl import name_lookup
from pdctl.deployment_secret import ENV, DeploymentSecret
from pdctl.engine.ipc.messages import MALFORMED
from pdctl.http_auth import SIGNATURE, sign

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FOLLOW_ROOM = "follow_bootstrap_room"
EARLY = "early"  # the only policy of sglang 0.5.23 that we implement: decode reserves pages before the prefill runs

Size = Annotated[int, Meta(ge=1, le=1 << 20)]
Index = Annotated[int, Meta(ge=0, le=1 << 20)]
Port = Annotated[int, Meta(ge=1, le=65535)]
# sglang casts these two with int(), so numbers written as strings are accepted.
Word = Annotated[str, Meta(max_length=256)]
Numeric = int | Annotated[str, Meta(pattern=r"^\s*[0-9]{1,9}\s*$")]
TIMEOUT = 5.0  # seconds, sglang 0.5.23
HEALTH_TIMEOUT = 3.0
MAX_ANSWER = 1 << 20  # bytes
READ = 1 << 16
# For peers that have never served a room: each may hold a connection for its whole timeout.
MOST_UNPROVEN, OF_ONE_HOST = 512, 64
LOGGED = 500  # bytes of a useless answer
# Answers of bootstrap servers that a client may be told: they say nothing of any other server.
KNOWN = re.compile(
    r"Missing inputs for bootstrap server\.|Prefill server not fully registered yet \(\d{1,9} workers registered\)\.|"
    r"Bootstrap info not found for( \w{1,16}=\d{1,9}){4}"
)
T = TypeVar("T")


class RankRow(msgspec.Struct, frozen=True):
    """PUT /route: one prefill rank. Unknown keys are ignored, as in SGLang."""

    attn_tp_size: Size
    attn_tp_rank: Index
    attn_cp_size: Size
    attn_cp_rank: Index
    attn_dp_size: Size
    attn_dp_rank: Index
    pp_size: Size
    pp_rank: Index
    system_dp_size: Size
    system_dp_rank: Index
    rank_ip: Word
    rank_port: Numeric
    page_size: Numeric
    kv_cache_dtype: Word | None
    load_balance_method: Word | None = FOLLOW_ROOM
    prefill_http_port: Numeric | None = None
    decode_allocation_policy: Word = EARLY
    enable_dsa_cache_layer_split: bool = False
    enable_kv_cache_sharding: bool = False
    kv_layout: Word | None = None
    dsv41_spec_layout: dict[str, Any] | None = None
    instance_id: Word | None = None  # pdctl's engine only: identifies one lifetime of one rank process

    @property
    def follows_room(self) -> bool:
        return self.load_balance_method == FOLLOW_ROOM

    @property
    def dp_size(self) -> int:
        return self.attn_dp_size if self.system_dp_size == 1 else self.system_dp_size

    @property
    def dp_group(self) -> int:
        return self.attn_dp_rank if self.system_dp_size == 1 else self.system_dp_rank

    @property
    def slot(self) -> tuple[int, int, int, int]:
        """The row's place in the table: DP group, attention CP rank, attention TP rank, PP rank."""
        return self.dp_group, self.attn_cp_rank, self.attn_tp_rank, self.pp_rank


class ParallelInfo(msgspec.Struct, frozen=True):
    """A prefill instance's shape: what a decode needs from the answer to the all -1 query. Newer keys are ignored."""

    attn_tp_size: Size
    attn_cp_size: Size
    dp_size: Size
    pp_size: Size
    page_size: Size | None = None
    kv_cache_dtype: Word | None = None
    follow_bootstrap_room: bool = True
    prefill_http_port: int | None = None


class RankEndpoint(msgspec.Struct, frozen=True):
    """`instance_id` is empty if the rank registered none (SGLang's ranks do not)."""

    rank_ip: Word
    rank_port: Port
    instance_id: Word = ""


class RoomRank(msgspec.Struct, frozen=True):
    """POST /register_dp_rank. sglang casts both with int()."""

    bootstrap_room: int | Annotated[str, Meta(pattern=r"^\s*-?[0-9]{1,19}\s*$")]
    dp_rank: Numeric


class RoomQuery(msgspec.Struct, frozen=True):
    """POST /query_dp_ranks."""

    bootstrap_rooms: list[int | Annotated[str, Meta(pattern=r"^\s*-?[0-9]{1,19}\s*$")]]


@dataclass(frozen=True, slots=True)
class RankKey:
    """Which rank of a prefill instance; -1 everywhere asks for the instance's shape."""

    dp: int
    cp: int
    tp: int
    pp: int

    @property
    def query(self) -> str:
        return f"prefill_dp_rank={self.dp}&prefill_cp_rank={self.cp}&target_tp_rank={self.tp}&target_pp_rank={self.pp}"


SHAPE = RankKey(-1, -1, -1, -1)


def leader_key(dp: int) -> RankKey:
    """Return the rank of DP group `dp` whose failure the prefill's client is told."""
    return RankKey(dp, 0, 0, 0)


class BootstrapError(Exception):
    """A call without a usable answer; `status` and `text` are the answer's, if any. `final`: retrying cannot help.

    message: what clients are told. It quotes nothing of an answer: whoever may name a bootstrap host in a request
    would read other servers' answers with it. `logged`: the same with what was answered, for this process's log.
    errno: of the connection or, negative, of the name's lookup that failed; 0 for anything else.
    """

    def __init__(
        self, message: str, final: bool = False, status: int = 0, text: str = "", errno: int = 0, logged: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.logged = logged or message
        self.final = final
        self.status = status
        self.text = text
        self.errno = errno


class BootstrapClient:
    """The calls of one event loop. Each raises BootstrapError, which names the URL, what happened and the likely cause.

    `unproven` is the host of a peer that has not accepted a registration yet. Such a peer may keep us waiting, so at
    most OF_ONE_HOST queries to one such host run at once, and MOST_UNPROVEN in all; no other query waits for them.
    """

    def __init__(self) -> None:
        self._unproven = asyncio.Semaphore(MOST_UNPROVEN)
        self._hosts: dict[str, asyncio.Semaphore] = {}  # one per unproven host that is being queried
        self._asked: Counter[str] = Counter()

    async def parallel_info(self, address: str, unproven: str = "") -> ParallelInfo:
        return await self._get(address, SHAPE, ParallelInfo, unproven)

    async def rank_endpoint(self, address: str, key: RankKey, unproven: str = "") -> RankEndpoint:
        return await self._get(address, key, RankEndpoint, unproven)

    async def health(self, address: str) -> None:
        await self.call(address, "GET", "/health", timeout=HEALTH_TIMEOUT)

    async def register_rank(self, address: str, row: RankRow) -> None:
        await self.call(address, "PUT", "/route", msgspec.json.encode(row))

    async def register_dp_rank(self, address: str, row: RoomRank) -> None:
        await self.call(address, "POST", "/register_dp_rank", msgspec.json.encode(row))

    async def query_dp_rank(self, address: str, room: int, unproven: str = "") -> int | None:
        """Return the DP rank a prefill announced for `room`; None if it has not yet."""
        async with self._turn(unproven):
            body = await self.call(address, "POST", "/query_dp_ranks", msgspec.json.encode(RoomQuery([room])))
        return _parse(address, "/query_dp_ranks", body, dict[str, Index]).get(str(room))

    async def _get(self, address: str, key: RankKey, kind: type[T], unproven: str) -> T:
        target = "/route?" + key.query
        async with self._turn(unproven):
            body = await self.call(address, "GET", target)
        return _parse(address, target, body, kind)

    @contextlib.asynccontextmanager
    async def _turn(self, unproven: str) -> AsyncIterator[None]:
        if not unproven:
            yield
            return
        host = self._hosts.setdefault(unproven, asyncio.Semaphore(OF_ONE_HOST))
        self._asked[unproven] += 1
        try:
            async with host, self._unproven:
                yield
        finally:
            self._asked[unproven] -= 1
            if not self._asked[unproven]:
                del self._asked[unproven], self._hosts[unproven]

    async def call(
        self, address: str, method: str, target: str, body: bytes | None = None, timeout: float = TIMEOUT
    ) -> bytes:
        """Return the body of a 200 answer, which must be complete within `timeout` seconds."""
        url = f"http://{address}{target.partition('?')[0]}"
        try:
            parts = urlsplit(f"//{address}")
            host, port = parts.hostname, parts.port
            if parts.netloc != address or host is None or port is None or "@" in address:
                raise ValueError("host:port is needed")
            head = h11.Request(method=method, target=target, headers=_headers(address, method, target, body))
        except (ValueError, h11.LocalProtocolError) as error:
            raise BootstrapError(f"{url}: not an address ({error})", True) from None
        try:
            status, text = await _exchange(host, port, head, body or b"", timeout)
        except ValueError as error:  # a name that cannot be looked up: a label is too long, empty or not valid IDNA
            raise BootstrapError(f"{url}: not an address ({error})", True) from None
        except (OSError, asyncio.TimeoutError, h11.RemoteProtocolError) as error:
            number = getattr(error, "errno", None) or 0
            message = f"{url}: {_cause(error, timeout)}"
            raise BootstrapError(message, errno=number, logged=f"{message}: {error}") from None
        if status != 200:
            raise refused(url, status, text[:LOGGED].decode("utf-8", "replace"))
        return text


def _headers(address: str, method: str, target: str, body: bytes | None) -> list[tuple[str, str]]:
    headers = [("host", address), ("connection", "close")]
    if body is not None:
        headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
        secret = _secret(os.environ.get(ENV, ""))
        if secret is not None:
            headers.append((SIGNATURE, sign(secret, method, target, body)))
    return headers


async def _exchange(host: str, port: int, head: h11.Request, body: bytes, timeout: float) -> tuple[int, bytes]:
    until = time.monotonic() + timeout
    addresses = await _look_up(host, port, timeout)
    return await asyncio.wait_for(_ask(addresses, head, body), max(0.001, until - time.monotonic()))


async def _look_up(host: str, port: int, timeout: float) -> list[name_lookup.Address]:
    """Look up a name. Others may wait for the same one, so the lookup goes on even if this call is cancelled."""
    found = asyncio.wrap_future(name_lookup.begin(host, port))
    try:
        return await asyncio.wait_for(asyncio.shield(found), timeout)
    except asyncio.TimeoutError as error:
        if getattr(error, "strerror", None):
            raise  # the lookup itself timed out
        raise name_lookup.lookup_timeout(host, timeout) from None


async def _ask(addresses: list[name_lookup.Address], head: h11.Request, body: bytes) -> tuple[int, bytes]:
    reader, writer = await _dial(addresses)
    try:
        http = h11.Connection(h11.CLIENT)
        sent = (http.send(head), http.send(h11.Data(data=body)) if body else b"", http.send(h11.EndOfMessage()))
        writer.write(b"".join(part or b"" for part in sent))
        status, text = 0, bytearray()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await _read(reader))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                text += event.data
                if len(text) > MAX_ANSWER:
                    raise h11.RemoteProtocolError(f"the answer is longer than {MAX_ANSWER >> 20} MiB")
            elif isinstance(event, h11.EndOfMessage):
                return status, bytes(text)
    finally:
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(READ)
    except ConnectionError as error:  # the connection was made, so something listens there
        raise h11.RemoteProtocolError(f"the connection was closed, {error.strerror}") from None


async def _dial(addresses: list[name_lookup.Address]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that accepts."""
    failed: OSError | None = None
    for address in addresses:
        try:
            return await asyncio.open_connection(address.host, int(str(address.sockaddr[1])), family=address.family)
        except OSError as error:  # noqa: PERF203  # asyncio's own words name the address once more
            failed = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
    raise failed or OSError("the name has no address")


def _parse(address: str, target: str, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except MALFORMED as error:
        path = target.partition("?")[0]
        told = "not UTF-8" if isinstance(error, UnicodeDecodeError) else error  # names types and our own fields
        message = f"http://{address}{path} answered something else than SGLang's: {told}"
        logged = f"{message}: {body[:LOGGED].decode('utf-8', 'replace')}"
        raise BootstrapError(message, True, logged=logged) from None


@functools.cache
def _secret(path: str) -> DeploymentSecret | None:
    """Return the secret that signs registrations; a bootstrap server without one ignores the signature."""
    return DeploymentSecret.read(Path(path)) if path else None


def _cause(error: Exception, timeout: float) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is the prefill running, and is this its --disaggregation-bootstrap-port?"
    if isinstance(error, asyncio.TimeoutError) and not getattr(error, "strerror", None):
        return f"no answer within {timeout:.0f} s; is the port open from this host?"
    if isinstance(error, h11.RemoteProtocolError):
        what = str(error).partition(":")[0]  # h11 quotes the bytes behind it
        return f"no HTTP answer ({what}); is this the bootstrap port, not a rank's?"
    return getattr(error, "strerror", None) or str(error)


def refused(url: str, status: int, text: str) -> BootstrapError:
    """Return the error for an answer other than 200."""
    known = KNOWN.fullmatch(text.strip())
    message = f"{url}: {status}; not a bootstrap server's answer"
    if known is not None:
        old = " (a server of sglang 0.5.8 or older)" if status == 400 else ""
        message = f"{url}: {status} {known[0]}{old}"
    elif status in (404, 405):
        message = f"{url}: {status}; no bootstrap server there: is this a prefill's HTTP port?"
    return BootstrapError(message, 400 <= status < 500, status, text, logged=f"{url}: {status} {text}")
