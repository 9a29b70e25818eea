"""The interface behind which KV bytes move: what every transport offers, the values that cross it, and wrappers' base.

Above this line there are pages only, never addresses. One `post` carries one KV chunk for all layers; a post may block
for the whole copy (nixl over cma and shm do), so a prefill leaves posts to a few threads (workers.py). Everything
else belongs to one thread at a time, and nothing of a peer may run beside `drop_peer` of that peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pdctl.engine.kvcache.pool_geometry import PoolGeometry

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pdctl.engine.kvcache.pool_geometry import PoolGeometry

    Pages = npt.NDArray[np.int32]

T = TypeVar("T")


class TransferError(RuntimeError):
    """A transport that cannot be set up, or a peer that cannot be reached; the text names which and why."""


class OpState(IntEnum):
    FAILED = 0
    RUNNING = 1
    DONE = 2


@dataclass(frozen=True, slots=True)
class Caps:
    """What the layer above must know of a transport."""

    sync_post: bool
    peer_progress: bool  # an op that is not done when posted needs the target to call `progress`
    same_host: bool  # peers on other hosts cannot be reached
    death: bool  # a post to a dead peer fails
    gpu: bool
    prompt: bool = False  # a post takes no longer than a copy of its bytes, whatever the peer does


class DeviceMemory(Protocol):
    """A pool in GPU memory: the four methods of a torch tensor that a transport needs."""

    @property
    def nbytes(self) -> int: ...
    def data_ptr(self) -> int: ...
    def get_device(self) -> int: ...


Buffer = memoryview | DeviceMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Which part of each page goes where: `slabs` slabs from `local_slab` on, and of each `heads` KV heads.

    Pipeline stages hold some of the peer's layers; ranks of another attention TP size hold more or fewer of its heads.
    """

    slabs: int
    heads: int
    local_slab: int = 0
    remote_slab: int = 0
    local_head: int = 0
    remote_head: int = 0

    @classmethod
    def whole(cls, geometry: PoolGeometry) -> Cut:
        """Everything, for two pools of one shape."""
        return cls(slabs=geometry.num_slabs, heads=geometry.kv_heads)

    def all_heads(self, local: PoolGeometry, remote: PoolGeometry) -> bool:
        """Whether whole items move."""
        return self.heads == local.kv_heads == remote.kv_heads


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """One peer's pool seen from ours, prepared once. `state` belongs to the transport that made the plan.

    A page moves in `per_page` pieces. Plans of one `lane` want one thread at a time; None: any thread may post it while
    others post others.
    """

    peer: str
    local: PoolGeometry
    remote: PoolGeometry
    cut: Cut
    state: Any
    per_page: int = 0
    lane: int | None = None

    def nbytes(self, pages: int) -> int:
        cut, one = self.cut, self.local
        return pages * cut.slabs * one.page_size * cut.heads * one.head_dim * one.itemsize


@dataclass(slots=True)
class Op:
    """One posted chunk. A FAILED op has an `error`; a FAILED or DONE op is settled: nothing moves any more.

    `descriptors` counts the pieces the chunk was handed over in; a transport may still join neighbours. A RUNNING op is
    worth another look at `due` (monotonic seconds); 0: soon. One that has not `begun` waits for a thread (workers.py).
    """

    peer: str
    nbytes: int
    state: OpState
    error: str = ""
    handle: Any = None
    descriptors: int = 0
    due: float = 0.0
    begun: bool = True
    sums: bytes = b""


class Transport(Protocol):
    """`post` and `poll` report a failed transfer in the Op; only set-up raises (TransferError)."""

    name: str
    caps: Caps

    def allocate(self, nbytes: int) -> memoryview:
        """Page-aligned memory for one pool, already touched; freed by `close`."""
        ...

    def register(self, buffer: Buffer) -> None:
        """Make `buffer` the pool that peers write into and that we send from. Once per transport."""
        ...

    def descriptor(self) -> bytes:
        """What a peer needs to reach the registered pool; under 1 KiB, carried by the registration frame."""
        ...

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        """Raises TransferError naming both values when the peer speaks another transport or cannot be reached."""
        ...

    def drop_peer(self, peer: str) -> None:
        """Forget a peer and every plan made for it; harmless when unknown."""
        ...

    def plan(self, peer: str, local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> TransferPlan:
        """Without a `cut` everything moves. Raises TransferError where the pools do not hold what the cut says."""
        ...

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        """Copy page src_pages[i] of our pool to page dst_pages[i] of the peer's, in every slab of the plan."""
        ...

    def poll(self, op: Op) -> OpState: ...

    def release(self, op: Op) -> bool:
        """Free an op's resources. False when it was still running and could not be stopped: bytes may yet move."""
        ...

    def progress(self, lane: int | None = None) -> None:
        """Lend the calling thread to transfers that need the target's help (caps.peer_progress).

        `lane`: what plans of that lane use, and nothing else.
        """
        ...

    def close_left(self, lane: int | None = None) -> None:
        """Close what strangers opened to the transport's own listener and left; with caps.peer_progress only."""
        ...

    def close(self) -> None: ...


def require_compatible(local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> Cut:
    """The cut that moves everything, or `cut`. Raises TransferError naming both values of what does not fit.

    Layout and number of pages may differ. Without a cut the pools must hold the same layers and heads.
    """
    names = ("slabs_per_layer", "page_size", "head_dim", "itemsize")
    for name in names if cut else ("layers", "kv_heads", *names):
        ours, theirs = getattr(local, name), getattr(remote, name)
        if ours != theirs:
            raise TransferError(f"KV pool geometry mismatch: {name} is {ours} here and {theirs} on the peer")
    if cut is None:
        return Cut.whole(local)
    for where, pool, slab, head in (
        ("here", local, cut.local_slab, cut.local_head),
        ("on the peer", remote, cut.remote_slab, cut.remote_head),
    ):
        if not (slab >= 0 and slab + cut.slabs <= pool.num_slabs and cut.slabs > 0):
            raise TransferError(f"slabs {slab}..{slab + cut.slabs - 1} are not in the pool {where} ({pool.num_slabs})")
        if not (head >= 0 and head + cut.heads <= pool.kv_heads and cut.heads > 0):
            raise TransferError(f"heads {head}..{head + cut.heads - 1} are not in the pool {where} ({pool.kv_heads})")
    return cut


class TransportWrapper:
    def __init__(self, inner: Transport) -> None:
        self.name = inner.name
        self.caps = inner.caps
        self._inner = inner

    def allocate(self, nbytes: int) -> memoryview:
        return self._inner.allocate(nbytes)

    def register(self, buffer: Buffer) -> None:
        self._inner.register(buffer)

    def descriptor(self) -> bytes:
        return self._inner.descriptor()

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        self._inner.add_peer(peer, descriptor)

    def drop_peer(self, peer: str) -> None:
        self._inner.drop_peer(peer)

    def plan(self, peer: str, local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> TransferPlan:
        return self._inner.plan(peer, local, remote, cut)

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        return self._inner.post(plan, src_pages, dst_pages)

    def poll(self, op: Op) -> OpState:
        return self._inner.poll(op)

    def release(self, op: Op) -> bool:
        return self._inner.release(op)

    def progress(self, lane: int | None = None) -> None:
        self._inner.progress(lane)

    def close_left(self, lane: int | None = None) -> None:
        self._inner.close_left(lane)

    def close(self) -> None:
        self._inner.close()


def find(transport: object, kind: type[T]) -> T | None:
    """The first transport of `kind` from this one inwards."""
    while not isinstance(transport, kind):
        if not isinstance(transport, TransportWrapper):
            return None
        transport = transport._inner
    return transport
