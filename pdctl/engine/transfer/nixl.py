"""KV pages through NIXL over UCX: one-sided writes into the peer's pool (same host: cma, at memory-copy speed)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pdctl.engine.ipc.codec import MALFORMED
from pdctl.engine.transfer import memory
from pdctl.engine.transfer.pages import require_pairs, sides
from pdctl.engine.transfer.transport import (
    Buffer,
    Caps,
    Cut,
    Op,
    OpState,
    TransferError,
    TransferPlan,
    require_compatible,
)
from pdctl.engine.transfer.ucx import Agent, Descriptor, Lists, Memory, load

if TYPE_CHECKING:
    import mmap

    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Pages

__all__ = ["NixlTransport", "load"]


class NixlTransport:
    """`same_host`: every peer is on this machine. Set-up, and the posts of one lane, want one thread at a time.

    A post over cma holds its agent for the whole copy, so that a small one behind a large one waits for all of it.
    Each of `lanes` has an agent of its own; a peer is served by the lane that has fewest (`TransferPlan.lane`).
    """

    name = "nixl"

    def __init__(self, same_host: bool = True, lanes: int = 1) -> None:
        self.caps = Caps(
            sync_post=False, peer_progress=True, same_host=same_host, death=True, gpu=True, prompt=same_host
        )
        self._lanes = lanes
        self._memory: mmap.mmap | None = None
        self._agents: list[Agent] = []  # the first is the one that peers write to
        self._agent_of: dict[str, Agent] = {}

    def allocate(self, nbytes: int) -> memoryview:
        if self._memory is not None:
            raise TransferError("nixl: this transport already has a pool")
        self._memory = memory.anonymous(nbytes)
        return memoryview(self._memory)[:nbytes]

    def register(self, buffer: Buffer) -> None:
        if self._agents:
            raise TransferError("nixl: this transport already has a pool")
        if isinstance(buffer, memoryview):
            pool = Memory(memory.address(buffer), buffer.nbytes, 0, "DRAM")
        else:
            device = buffer.get_device()
            pool = Memory(buffer.data_ptr(), buffer.nbytes, max(device, 0), "DRAM" if device < 0 else "VRAM")
        mode, cma_only = "none" if self.caps.same_host else "peer", self.caps.same_host and pool.kind == "DRAM"
        self._agents = [Agent(pool, mode, cma_only) for _ in range(self._lanes)]

    def descriptor(self) -> bytes:
        return msgspec.msgpack.encode(self._main().own)

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        try:
            theirs = msgspec.msgpack.decode(descriptor, type=Descriptor)
        except MALFORMED as error:
            raise TransferError(f"nixl: peer {peer} sent no nixl descriptor ({error})") from None
        self.drop_peer(peer)
        if theirs.agent in {agent.own.agent for agent in self._agents}:
            raise TransferError(f"nixl: peer {peer} names an agent of this process as its own")
        agent = min(self._agents, key=lambda agent: agent.load)
        agent.add(peer, theirs)
        self._agent_of[peer] = agent

    def drop_peer(self, peer: str) -> None:
        agent = self._agent_of.pop(peer, None)
        if agent is not None:
            agent.drop(peer)

    def plan(self, peer: str, local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> TransferPlan:
        cut = require_compatible(local, remote, cut)
        own, agent = self._main().own, self._agent_of.get(peer)
        if agent is None:
            raise TransferError(f"nixl: peer {peer} was never added")
        if remote.nbytes > agent.peer(peer).nbytes or local.nbytes > own.nbytes:
            raise TransferError(f"nixl: peer {peer}: a pool is smaller than its geometry says ({remote.nbytes} bytes)")
        lists = agent.lists(peer, *sides(local, remote, cut))
        return TransferPlan(peer, local, remote, cut, lists, lists.here.per_page, self._agents.index(agent))

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        require_pairs(src_pages, dst_pages, plan.local, plan.remote)
        op = Op(plan.peer, plan.nbytes(len(src_pages)), OpState.DONE)
        if not len(src_pages):
            return op
        lists: Lists = plan.state
        src, dst = lists.here.numbers(src_pages), lists.there.numbers(dst_pages)
        op.descriptors = len(src)
        try:
            op.handle = (lists.agent, lists.agent.make(lists, src, dst))
            self._settle(op, lists.agent.transfer(op.handle[1]))
        except lists.agent.errors as error:
            self._fail(op, error)
        return op

    def poll(self, op: Op) -> OpState:
        if op.state == OpState.RUNNING:
            agent, handle = op.handle
            try:
                self._settle(op, agent.state(handle))
            except agent.errors as error:
                self._fail(op, error)
        return op.state

    def _settle(self, op: Op, status: str) -> None:
        if status == "ERR":
            op.error = "UCX reported a failed write"
        op.state = {"DONE": OpState.DONE, "PROC": OpState.RUNNING}.get(status, OpState.FAILED)
        if op.state != OpState.RUNNING:
            self.release(op)

    def _fail(self, op: Op, error: Exception) -> None:
        op.state, op.error, op.nbytes = OpState.FAILED, str(error), 0
        self.release(op)

    def release(self, op: Op) -> bool:
        if op.handle is None:
            return op.state != OpState.RUNNING
        agent, handle = op.handle
        try:
            handle.release()
        except agent.errors:
            return False  # still writing: the caller decides how long to wait for it
        op.handle = None
        return True

    def progress(self) -> None:
        if self._agents:
            self._agents[0].progress()

    def close(self) -> None:
        for agent in self._agents:
            agent.close()
        self._agents.clear()
        self._agent_of.clear()
        if self._memory is not None:
            memory.close(self._memory)
            self._memory = None

    def _main(self) -> Agent:
        if not self._agents:
            raise TransferError("nixl: no pool registered")
        return self._agents[0]
