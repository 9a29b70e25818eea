"""A transport around another one, which it passes everything to: the base of those that change one thing."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Buffer, Cut, Op, OpState, Pages, TransferPlan, Transport

T = TypeVar("T")


class Around:
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

    def progress(self) -> None:
        self._inner.progress()

    def close(self) -> None:
        self._inner.close()


def find(transport: object, kind: type[T]) -> T | None:
    """The first transport of `kind` from this one inwards."""
    while not isinstance(transport, kind):
        if not isinstance(transport, Around):
            return None
        transport = transport._inner
    return transport
