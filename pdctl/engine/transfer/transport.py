"""The interface behind which KV bytes move: what every transport offers, the values passed, the base of wrappers.

Above this interface there are only pages, never addresses. One `post` carries one KV chunk for all layers; a post may
block for the whole copy (nixl over cma and shm do), so a prefill leaves posts to a few threads (workers.py). Everything
else belongs to one thread at a time, and no call for a peer may run beside that peer's `drop_peer`.

A page list is an int32 array; element i of the source goes to element i of the destination. Whatever is contiguous on
both sides becomes one copy: page lists become runs, or blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from pdctl.engine.kvcache.pool_geometry import Layout
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
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
    """What the layer above needs to know of a transport."""

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
    """Which part of each page goes where: `slabs` slabs from `local_slab` on, and `heads` KV heads of each.

    Pipeline stages hold some of the peer's layers; ranks of a different attention TP size hold more or fewer of its
    heads.
    """

    slabs: int
    heads: int
    local_slab: int = 0
    remote_slab: int = 0
    local_head: int = 0
    remote_head: int = 0

    @classmethod
    def whole(cls, geometry: PoolGeometry) -> Cut:
        """Return the cut that moves everything, for two pools of one shape."""
        return cls(slabs=geometry.num_slabs, heads=geometry.kv_heads)

    def all_heads(self, local: PoolGeometry, remote: PoolGeometry) -> bool:
        """Return whether whole items move."""
        return self.heads == local.kv_heads == remote.kv_heads


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """A peer's pool as seen from ours, prepared once. `state` belongs to the transport that made the plan.

    A page moves in `per_page` pieces. Plans with the same `lane` must be posted by one thread at a time; with None,
    several threads may post different plans at once.
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
    """One posted chunk. A FAILED op has an `error`; once an op is FAILED or DONE, nothing moves any more.

    `descriptors` counts the pieces the chunk was handed over in; a transport may still join neighbours. A RUNNING op
    need not be checked before `due` (monotonic seconds; 0: check soon). One that has not `begun` waits for a thread
    (workers.py).
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
        """Return page-aligned memory for one pool, already faulted in; freed by `close`."""
        ...

    def register(self, buffer: Buffer) -> None:
        """Make `buffer` the pool that peers write into and that we send from. Call once per transport."""
        ...

    def descriptor(self) -> bytes:
        """Return what a peer needs to reach the registered pool: under 1 KiB, carried by the registration frame."""
        ...

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        """Add a peer. Raise TransferError with both values if it uses another transport or cannot be reached."""
        ...

    def drop_peer(self, peer: str) -> None:
        """Forget a peer and every plan made for it; harmless if it is unknown."""
        ...

    def plan(self, peer: str, local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> TransferPlan:
        """Prepare writes to a peer; no `cut` moves everything. Raise TransferError if a pool does not hold the cut."""
        ...

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        """Copy page src_pages[i] of our pool to page dst_pages[i] of the peer's, in every slab of the plan."""
        ...

    def poll(self, op: Op) -> OpState: ...

    def release(self, op: Op) -> bool:
        """Free an op's resources. Return False if it was running and could not be stopped: bytes may still move."""
        ...

    def progress(self, lane: int | None = None) -> None:
        """Lend the calling thread to transfers that need the target's help (caps.peer_progress).

        `lane` limits this to what plans of that lane use.
        """
        ...

    def close_left(self, lane: int | None = None) -> None:
        """Close connections that strangers opened to the transport's listener and left; caps.peer_progress only."""
        ...

    def close(self) -> None: ...


def require_compatible(local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> Cut:
    """Return `cut`, or the cut that moves everything. Raise TransferError with both values of a mismatch.

    Layout and number of pages may differ. Without a cut, the pools must hold the same layers and heads.
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


def find_layer(transport: object, kind: type[T]) -> T | None:
    """Return the first transport of `kind`, from this one inwards; None if there is none."""
    while not isinstance(transport, kind):
        if not isinstance(transport, TransportWrapper):
            return None
        transport = transport._inner
    return transport


NO_PAGES: Pages = np.empty(0, dtype=np.int32)


class PageRun(NamedTuple):
    """`count` consecutive pages, from `src` on to `dst` on."""

    src: int
    dst: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here


def runs(src: Pages, dst: Pages) -> list[PageRun]:
    """Return the shortest list of runs that moves every pair in order; a run ends where either side jumps."""
    if len(src) == 0:
        return []
    # Runs before every write, while the caches hold KV bytes: a numpy call costs more than a short list, so use few.
    froms, tos, count = src.tolist(), dst.tolist(), len(src)
    if froms == list(range(froms[0], froms[0] + count)) and tos == list(range(tos[0], tos[0] + count)):
        return [PageRun(froms[0], tos[0], count)]
    ends = (np.flatnonzero((src[1:] - src[:-1] != 1) | (dst[1:] - dst[:-1] != 1)) + 1).tolist()
    starts = [0, *ends]
    return [PageRun(froms[start], tos[start], end - start) for start, end in zip(starts, [*ends, count], strict=True)]


def require_pages(what: str, pages: Pages, num_pages: int) -> None:
    """Raise TransferError unless every page exists in a pool of `num_pages`."""
    # Viewed as unsigned, a negative number is large.
    if len(pages) and int(np.maximum.reduce(pages.view(np.uint32))) >= num_pages:
        raise TransferError(f"{what}: page {_outside(pages, num_pages)} is outside the pool of {num_pages} pages")


def require_pairs(src: Pages, dst: Pages, local: PoolGeometry, remote: PoolGeometry) -> None:
    """Raise TransferError unless both lists are equally long and every page exists."""
    if len(src) != len(dst):
        raise TransferError(f"{len(src)} source pages cannot go to {len(dst)} destination pages")
    require_pages("source", src, local.num_pages)
    require_pages("destination", dst, remote.num_pages)


def _outside(pages: Pages, num_pages: int) -> int:
    return int(pages[(pages < 0) | (pages >= num_pages)][0])


class Unit(Enum):
    """The largest piece of a page that is contiguous on both sides."""

    PAGE = "every slab of the cut: both pools keep the slabs of a page together"
    ITEM = "one slab: whole items move"
    HEADS = "some heads of one slab: both pools are head-major"
    TOKEN = "one token of one slab: some of its heads move"
    HEAD = "one head of one token: only one pool is head-major"


def unit(local: PoolGeometry, remote: PoolGeometry, cut: Cut) -> Unit:
    # With one head, or one token, either order is the same.
    ordered = [one.layout for one in (local, remote) if one.kv_heads > 1 and one.page_size > 1]
    by_head = [layout == Layout.HEAD_MAJOR for layout in ordered]
    if any(by_head) and not all(by_head):
        return Unit.HEAD
    if not cut.all_heads(local, remote):
        return Unit.HEADS if any(by_head) else Unit.TOKEN
    both = local.layout == Layout.PAGE_MAJOR and remote.layout == Layout.PAGE_MAJOR
    return Unit.PAGE if both else Unit.ITEM


@dataclass(frozen=True, slots=True)
class Blocks:
    """One side of a cut as equal blocks: block i is `length` bytes at `first` + i * `stride` from the pool's start.

    In any layout, every page, item, token row or head starts at a multiple of its own size from the pool's start. So
    three numbers describe them all, however many there are, and a page list becomes a list of block numbers.
    """

    first: int
    length: int
    stride: int
    count: int
    slab_numbers: Pages  # what each slab of the cut adds to a block's number
    page_step: int  # what one page adds
    inner: tuple[tuple[int, int], ...] = ()  # within one page of one slab: how many, and what the next one adds

    @property
    def per_page(self) -> int:
        return len(self.slab_numbers) * math.prod(count for count, _ in self.inner)

    def numbers(self, pages: Pages) -> Pages:
        """Return block numbers slab by slab: neighbouring pages stay neighbours. Both sides use the same order."""
        found = self.slab_numbers[:, None] + pages * np.int32(self.page_step)
        for count, step in self.inner:
            found = found[..., None] + np.arange(count, dtype=np.int32) * np.int32(step)
        return np.ascontiguousarray(found.ravel())

    def rows(self, base: int) -> npt.NDArray[np.uint64]:
        """Return the one row (address, length, device, stride, count) from which nixl derives all blocks."""
        return np.array([[base + self.first, self.length, 0, self.stride, self.count]], dtype=np.uint64)


def blocks(geometry: PoolGeometry, unit: Unit, slabs: int, first_slab: int, heads: int, first_head: int) -> Blocks:
    """Return the blocks of some slabs and heads of a pool. Raise TransferError if there are too many to number."""
    if unit == Unit.PAGE:
        first, length = geometry.address(first_slab, 0), slabs * geometry.item_bytes
        return Blocks(first, length, geometry.page_stride, geometry.num_pages, np.zeros(1, dtype=np.int32), 1)
    first, length, size, inner = _inside(geometry, unit, heads, first_head)
    count = geometry.nbytes // size
    if count > np.iinfo(np.int32).max:
        raise TransferError(f"a pool of {count} pieces of {size} bytes is too large: pieces are numbered in 32 bits")
    numbers = np.arange(first_slab, first_slab + slabs) * (geometry.slab_stride // size) + first // size
    return Blocks(first % size, length, size, count, numbers.astype(np.int32), geometry.page_stride // size, inner)


def _inside(
    geometry: PoolGeometry, unit: Unit, heads: int, first_head: int
) -> tuple[int, int, int, tuple[tuple[int, int], ...]]:
    """Return, for one item, the first block's offset, length and stride in bytes, and the rest as in Blocks.inner."""
    head, tokens = geometry.head_bytes, geometry.page_size
    if unit == Unit.ITEM:
        return 0, geometry.item_bytes, geometry.item_bytes, ()
    if unit == Unit.HEADS:
        return first_head * tokens * head, heads * tokens * head, geometry.item_bytes, ()
    if unit == Unit.TOKEN:
        return first_head * head, heads * head, geometry.token_bytes, ((tokens, 1),)
    inner = ((tokens, geometry.token_stride // head), (heads, geometry.head_stride // head))
    return first_head * geometry.head_stride, head, head, inner


def sides(local: PoolGeometry, remote: PoolGeometry, cut: Cut) -> tuple[Blocks, Blocks]:
    """Return the blocks that move, on our side and the peer's: both lists have the same length and order."""
    one = unit(local, remote, cut)
    return (
        blocks(local, one, cut.slabs, cut.local_slab, cut.heads, cut.local_head),
        blocks(remote, one, cut.slabs, cut.remote_slab, cut.heads, cut.remote_head),
    )


class Spans(NamedTuple):
    """Contiguous writes, as offsets from the starts of the pools and lengths in bytes; all three equally long."""

    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


def spans(here: Blocks, there: Blocks, src: Pages, dst: Pages) -> Spans:
    """Return the fewest writes that move these pages in this order: neighbours on both sides are joined."""
    if len(src) == 0:
        none = np.empty(0, dtype=np.int64)
        return Spans(none, none, none)
    froms = here.numbers(src).astype(np.int64) * here.stride + here.first
    tos = there.numbers(dst).astype(np.int64) * there.stride + there.first
    apart = (np.diff(froms) != here.length) | (np.diff(tos) != here.length)
    starts = np.concatenate(([0], np.flatnonzero(apart) + 1))
    lengths = np.diff(np.concatenate((starts, [len(froms)]))) * here.length
    return Spans(froms[starts], tos[starts], lengths)


def pieces(local: PoolGeometry, remote: PoolGeometry, cut: Cut, src: Pages, dst: Pages) -> int:
    """Return how many contiguous writes move these pages if neighbours on both sides are joined."""
    one = unit(local, remote, cut)
    if one not in (Unit.PAGE, Unit.ITEM):
        here, _ = sides(local, remote, cut)
        return len(src) * here.per_page
    layers = Layout.PAGE_MAJOR not in (local.layout, remote.layout)
    if one == Unit.PAGE:
        joins = cut.slabs == local.num_slabs == remote.num_slabs
        return len(runs(src, dst)) if joins else len(src)
    return (len(runs(src, dst)) if layers else len(src)) * cut.slabs


def expanded_rows(strided: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the same blocks one by one, as (address, length, device), for nixl releases without strided lists."""
    parts = []
    for address, length, device, stride, count in strided.tolist():
        block = np.empty((count, 3), dtype=np.uint64)
        block[:, 0] = np.uint64(address) + np.arange(count, dtype=np.uint64) * np.uint64(stride)
        block[:, 1:] = (length, device)
        parts.append(block)
    return np.concatenate(parts)
