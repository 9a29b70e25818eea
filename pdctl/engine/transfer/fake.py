"""The transport `fake`: no byte moves, and every operation is done when it is posted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.transfer import segment
from pdctl.engine.transfer.transport import (
    Buffer,
    Caps,
    Cut,
    Op,
    OpState,
    TransferError,
    TransferPlan,
    require_compatible,
    require_pairs,
)

if TYPE_CHECKING:
    import mmap

    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Pages

DESCRIPTOR = b"fake"


class FakeTransport:
    """Every op is done when posted; page lists are checked as a real transport would."""

    name = "fake"
    caps = Caps(sync_post=True, peer_progress=False, same_host=False, death=False, gpu=True, prompt=True)

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def allocate(self, nbytes: int) -> memoryview:
        self._memory = segment.anonymous(nbytes)
        return memoryview(self._memory)[:nbytes]

    def register(self, buffer: Buffer) -> None:
        del buffer

    def descriptor(self) -> bytes:
        return DESCRIPTOR

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        if descriptor != DESCRIPTOR:
            raise TransferError(f"peer {peer} does not use the fake transport")

    def drop_peer(self, peer: str) -> None:
        del peer

    def plan(self, peer: str, local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> TransferPlan:
        return TransferPlan(peer, local, remote, require_compatible(local, remote, cut), None)

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        require_pairs(src_pages, dst_pages, plan.local, plan.remote)
        return Op(plan.peer, 0, OpState.DONE)  # nothing moved: no bytes, no descriptors

    def poll(self, op: Op) -> OpState:
        return op.state

    def release(self, op: Op) -> bool:
        return op.state != OpState.RUNNING

    def progress(self, lane: int | None = None) -> None:
        del lane

    def close_left(self, lane: int | None = None) -> None:
        del lane

    def close(self) -> None:
        if self._memory is not None:
            segment.close(self._memory)
            self._memory = None
