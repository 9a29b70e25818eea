"""KV pages through the Mooncake transfer engine over TCP: host memory, any hosts, no help needed from the peer.

Needs the package mooncake-transfer-engine-non-cuda and, even for TCP, the system's libibverbs. Peers find each other
directly (P2PHANDSHAKE), without a metadata server. A normal start writes one ERROR line of Mooncake's own to stderr
("Local segment descriptor not found"). SGLang's `mooncake` means RDMA; this engine uses TCP under both of SGLang's
names.
"""

from __future__ import annotations

import importlib
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from pdctl.engine.ipc.messages import MALFORMED
from pdctl.engine.transfer import segment
from pdctl.engine.transfer.transport import (
    Blocks,
    Buffer,
    Caps,
    Cut,
    Op,
    OpState,
    TransferError,
    TransferPlan,
    require_compatible,
    require_pairs,
    sides,
    spans,
)

if TYPE_CHECKING:
    import mmap
    from types import ModuleType

    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Pages

LOG_LEVEL = "MC_LOG_LEVEL"
PACKAGE = "mooncake-transfer-engine-non-cuda"
SYSTEM_PACKAGES = "libibverbs1 libnl-3-200 libnl-route-3-200"  # their Debian and Ubuntu names
# A TCP lane queues 1024 requests, keeps 1024 more pending, and refuses any beyond that. Only waiting shows that a whole
# batch is done: the call that does not block checks only its first request (0.3.13).
BATCH = 1024
IN_FLIGHT = 2  # batches: the next is handed over while the previous one is on the wire


Address = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Descriptor(msgspec.Struct, frozen=True):
    session: Annotated[str, Meta(min_length=1, max_length=300)]  # host:port of the peer's engine
    address: Address
    nbytes: Address


@dataclass(frozen=True, slots=True)
class CopyRoute:
    """A route from our pool to the peer's: the address of each pool's first byte, and the blocks to move."""

    session: str
    ours: int
    theirs: int
    here: Blocks
    there: Blocks


def load() -> ModuleType:
    """Return the binding. Raise ImportError that says what to install."""
    given = os.environ.get(LOG_LEVEL)
    os.environ[LOG_LEVEL] = given or "ERROR"  # by default it logs every start at length
    try:
        return _binding()
    except ImportError:
        if given is None:
            del os.environ[LOG_LEVEL]  # it means nothing to any other backend
        raise


def _binding() -> ModuleType:
    try:
        return importlib.import_module("mooncake.engine")
    except ModuleNotFoundError:
        raise ImportError(f"{PACKAGE} is not installed (pip install {PACKAGE}; Linux only)") from None
    except ImportError as error:  # the shared libraries it is linked with
        raise ImportError(f"{PACKAGE} cannot be loaded: {error} (apt install {SYSTEM_PACKAGES})") from None


class MooncakeTransport:
    """`post` returns when the peer has acknowledged every byte; several threads may post at once."""

    name = "mooncake"
    caps = Caps(sync_post=True, peer_progress=False, same_host=False, death=True, gpu=False)

    def __init__(self, rank_ip: str) -> None:
        """`rank_ip` is where peers reach this process."""
        self._host = f"[{rank_ip}]" if ":" in rank_ip else rank_ip
        self._engine: Any = None
        self._memory: mmap.mmap | None = None
        self._pool: Descriptor | None = None
        self._peers: dict[str, Descriptor] = {}

    def allocate(self, nbytes: int) -> memoryview:
        if self._memory is not None:
            raise TransferError("mooncake: this transport already has a pool")
        self._memory = segment.anonymous(nbytes)
        return memoryview(self._memory)[:nbytes]

    def register(self, buffer: Buffer) -> None:
        if not isinstance(buffer, memoryview):
            raise TransferError(f"mooncake: {PACKAGE} does not know GPU memory; nixl does")
        if self._pool is not None:
            raise TransferError("mooncake: this transport already has a pool")
        try:
            engine = load().TransferEngine()
        except ImportError as error:
            raise TransferError(f"mooncake: {error}") from None
        code = engine.initialize(self._host, "P2PHANDSHAKE", "tcp", "")
        if code:
            raise TransferError(f"mooncake: the transfer engine cannot start on {self._host} (code {code})")
        address = segment.address(buffer)
        code = engine.register_memory(address, buffer.nbytes)
        if code:
            raise TransferError(f"mooncake: cannot register {buffer.nbytes} bytes (code {code})")
        self._engine = engine
        self._pool = Descriptor(f"{self._host}:{engine.get_rpc_port()}", address, buffer.nbytes)

    def descriptor(self) -> bytes:
        return msgspec.msgpack.encode(self._own())

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        try:
            theirs = msgspec.msgpack.decode(descriptor, type=Descriptor)
        except MALFORMED as error:
            raise TransferError(f"mooncake: peer {peer} sent no mooncake descriptor ({error})") from None
        self._peers[peer] = theirs  # the first write opens the connection

    def drop_peer(self, peer: str) -> None:
        self._peers.pop(peer, None)

    def plan(self, peer: str, local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> TransferPlan:
        cut = require_compatible(local, remote, cut)
        own, theirs = self._own(), self._peers.get(peer)
        if theirs is None:
            raise TransferError(f"mooncake: peer {peer} was never added")
        if remote.nbytes > theirs.nbytes or local.nbytes > own.nbytes:
            raise TransferError(
                f"mooncake: peer {peer}: a pool is smaller than its geometry says ({remote.nbytes} bytes)"
            )
        here, there = sides(local, remote, cut)
        route = CopyRoute(theirs.session, own.address, theirs.address, here, there)
        return TransferPlan(peer, local, remote, cut, route, here.per_page)

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        require_pairs(src_pages, dst_pages, plan.local, plan.remote)
        route: CopyRoute = plan.state
        found = spans(route.here, route.there, src_pages, dst_pages)
        sources, targets = (found.src + route.ours).tolist(), (found.dst + route.theirs).tolist()
        lengths, flying, failed = found.lengths.tolist(), deque[int](), False
        for first in range(0, len(lengths), BATCH):
            if failed:
                break
            part = slice(first, first + BATCH)
            batch = self._engine.batch_transfer_async_write(
                route.session, sources[part], targets[part], lengths[part]
            )  # fmt: skip
            if batch in (0, -1, 2**64 - 1):
                failed = True
            else:
                flying.append(batch)
            if len(flying) >= IN_FLIGHT:
                failed |= bool(self._engine.get_batch_transfer_status([flying.popleft()]))
        while flying:  # even after a failure: wait for what was handed over, so that nothing moves after this
            failed |= bool(self._engine.get_batch_transfer_status([flying.popleft()]))
        if failed:
            return Op(plan.peer, 0, OpState.FAILED, f"the mooncake engine {route.session} did not take the bytes")
        return Op(plan.peer, plan.nbytes(len(src_pages)), OpState.DONE, descriptors=len(lengths))

    def poll(self, op: Op) -> OpState:
        return op.state

    def release(self, op: Op) -> bool:
        return op.state != OpState.RUNNING

    def progress(self, lane: int | None = None) -> None:
        del lane

    def close_left(self, lane: int | None = None) -> None:
        del lane

    def close(self) -> None:
        self._peers.clear()
        if self._pool is not None:
            self._engine.unregister_memory(self._pool.address)
        self._engine = self._pool = None
        if self._memory is not None:
            segment.close(self._memory)
            self._memory = None

    def _own(self) -> Descriptor:
        if self._pool is None:
            raise TransferError("mooncake: no pool registered")
        return self._pool
