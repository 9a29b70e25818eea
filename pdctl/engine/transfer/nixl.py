"""KV pages through NIXL over UCX: one-sided writes into the peer's pool (same host: cma, at memory-copy speed).

Settings (measured in docs/performance.md): no progress thread, which would burn a whole core;
`ucx_error_handling_mode=none` where all peers share the host, and the UCX module list cut to cma there. With UCX's ib
module loaded, a process that made an agent can crash in a library destructor at normal interpreter exit: engine
processes therefore leave through os._exit.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pdctl.engine.transfer import memory
from pdctl.engine.transfer.base import Buffer, Caps, Cut, Op, OpState, TransferError, TransferPlan, require_compatible
from pdctl.engine.transfer.pages import block_indices, expanded_rows, require_pairs, strided_rows, whole_pages

if TYPE_CHECKING:
    import mmap
    from types import ModuleType

    from pdctl.engine.cache.geometry import PoolGeometry
    from pdctl.engine.transfer.base import Pages

PACKAGES = ("nixl", "nixl_cu12", "nixl_cu13")
INITIATOR = "NIXL_INIT_AGENT"


class Descriptor(msgspec.Struct, frozen=True):
    """Where the pool of an agent lies."""

    agent: str
    metadata: bytes
    address: int
    nbytes: int
    device: int
    kind: str  # DRAM | VRAM


@dataclass(frozen=True, slots=True)
class Lists:
    """Prepared descriptor lists of both sides; blocks are chosen from them by index."""

    local: Any
    remote: Any
    whole: bool


def load(cma_only: bool) -> ModuleType:
    """The binding's API module. Raises ImportError when no NIXL wheel is installed (macOS has none).

    `cma_only`: every peer and the pool are in this host's memory. UCX reads its module list when its library loads, and
    without the ib and cuda modules there is nothing that could crash at exit.
    """
    if cma_only:
        os.environ.setdefault("UCX_MODULES", "cma")
    installed = [name for name in PACKAGES if importlib.util.find_spec(name)]
    if not installed:
        raise ImportError(f"none of {', '.join(PACKAGES)} is installed (pip install 'pdctl[engine]' on Linux has it)")
    api = importlib.import_module(f"{installed[0]}._api")
    # The binding prints to stdout in a format of its own: let its warnings go where ours go.
    logger = logging.getLogger("nixl")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.WARNING)
    return api


class NixlTransport:
    """`same_host`: every peer is on this machine. Not thread-safe by itself; the agent locks (strict) all the same."""

    name = "nixl"

    def __init__(self, same_host: bool = True) -> None:
        self.caps = Caps(sync_post=False, peer_progress=True, same_host=same_host, death=True, gpu=True)
        self._mode = "none" if same_host else "peer"
        self._agent: Any = None
        self._errors: tuple[type[Exception], ...] = ()
        self._memory: mmap.mmap | None = None
        self._pool: Descriptor | None = None
        self._region: Any = None
        self._peers: dict[str, Descriptor] = {}
        self._plans: list[TransferPlan] = []

    def allocate(self, nbytes: int) -> memoryview:
        if self._memory is not None:
            raise TransferError("nixl: this transport already has a pool")
        self._memory = memory.anonymous(nbytes)
        return memoryview(self._memory)[:nbytes]

    def register(self, buffer: Buffer) -> None:
        if self._pool is not None:
            raise TransferError("nixl: this transport already has a pool")
        if isinstance(buffer, memoryview):
            address, device, kind = memory.address(buffer), 0, "DRAM"
        else:
            device = max(buffer.get_device(), 0)
            address, kind = buffer.data_ptr(), "DRAM" if buffer.get_device() < 0 else "VRAM"
        self._start(kind)
        try:
            self._region = self._agent.register_memory([(address, buffer.nbytes, device, "")], kind)
            metadata = self._agent.get_agent_metadata()
        except self._errors as error:
            raise TransferError(f"nixl: cannot register {buffer.nbytes} bytes of {kind}: {error}") from None
        self._pool = Descriptor(self._agent.name, metadata, address, buffer.nbytes, device, kind)

    def _start(self, kind: str) -> None:
        try:
            api = load(cma_only=self.caps.same_host and kind == "DRAM")
            bindings = importlib.import_module(f"{api.__package__}._bindings")
        except ImportError as error:
            raise TransferError(f"nixl: {error}") from None
        self._errors = _error_classes(bindings)
        strict = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        config = api.nixl_agent_config(enable_prog_thread=False, backends=[], sync_mode=strict)
        try:
            self._agent = api.nixl_agent(f"pdctl-{uuid.uuid4().hex[:16]}", config)
            self._agent.create_backend("UCX", {"ucx_error_handling_mode": self._mode})
        except self._errors as error:
            raise TransferError(f"nixl: UCX cannot start: {error}; check UCX_TLS and UCX_NET_DEVICES") from None

    def descriptor(self) -> bytes:
        return msgspec.msgpack.encode(self._own())

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        try:
            theirs = msgspec.msgpack.decode(descriptor, type=Descriptor)
        except msgspec.DecodeError as error:
            raise TransferError(f"nixl: peer {peer} sent no nixl descriptor ({error})") from None
        self.drop_peer(peer)
        if not self._known(theirs.agent):
            try:
                self._agent.add_remote_agent(theirs.metadata)
            except self._errors as error:
                raise TransferError(f"nixl: cannot load the agent of peer {peer}: {error}") from None
        self._peers[peer] = theirs

    def _known(self, agent: str) -> bool:
        """One agent serves every connection of its process: it goes with the last of them."""
        return any(descriptor.agent == agent for descriptor in self._peers.values())

    def drop_peer(self, peer: str) -> None:
        for plan in [plan for plan in self._plans if plan.peer == peer]:
            self._plans.remove(plan)
            plan.state.local.release()
            plan.state.remote.release()
        known = self._peers.pop(peer, None)
        if known is None or self._known(known.agent):
            return
        try:
            self._agent.remove_remote_agent(known.agent)
        except self._errors:
            return  # its metadata went with the connection

    def plan(self, peer: str, local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> TransferPlan:
        cut = require_compatible(local, remote, cut)
        own, theirs = self._own(), self._peers.get(peer)
        if theirs is None:
            raise TransferError(f"nixl: peer {peer} was never added")
        if remote.nbytes > theirs.nbytes or local.nbytes > own.nbytes:
            raise TransferError(f"nixl: peer {peer}: a pool is smaller than its geometry says ({remote.nbytes} bytes)")
        ours, peers = (cut.local_slab, cut.local_slab + cut.slabs), (cut.remote_slab, cut.remote_slab + cut.slabs)
        whole = whole_pages(local, remote, cut)
        lists = Lists(
            self._prepare(INITIATOR, own, local, ours, whole),
            self._prepare(theirs.agent, theirs, remote, peers, whole),
            whole,
        )
        plan = TransferPlan(peer, local, remote, cut, lists)
        self._plans.append(plan)
        return plan

    def _prepare(
        self, agent: str, pool: Descriptor, geometry: PoolGeometry, slabs: tuple[int, int], whole: bool
    ) -> Any:  # noqa: ANN401  # an opaque handle of the binding
        rows = strided_rows(geometry, pool.address, slabs, whole)
        rows[:, 2] = pool.device
        try:
            try:
                return self._agent.prep_xfer_dlist(agent, rows, pool.kind)
            except (TypeError, ValueError):  # releases without strided lists know (address, length, device) only
                return self._agent.prep_xfer_dlist(agent, expanded_rows(rows), pool.kind)
        except self._errors as error:
            raise TransferError(f"nixl: cannot prepare {len(rows)} rows for {agent}: {error}") from None

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        require_pairs(src_pages, dst_pages, plan.local, plan.remote)
        op = Op(plan.peer, plan.nbytes(len(src_pages)), OpState.DONE)
        if not len(src_pages):
            return op
        lists: Lists = plan.state
        src = block_indices(src_pages, plan.cut.slabs, plan.local.num_pages, lists.whole)
        dst = block_indices(dst_pages, plan.cut.slabs, plan.remote.num_pages, lists.whole)
        try:
            op.handle = self._agent.make_prepped_xfer("WRITE", lists.local, src, lists.remote, dst)
            self._settle(op, self._agent.transfer(op.handle))
        except self._errors as error:
            self._fail(op, error)
        return op

    def poll(self, op: Op) -> OpState:
        if op.state == OpState.RUNNING:
            try:
                self._settle(op, self._agent.check_xfer_state(op.handle))
            except self._errors as error:
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
        handle, op.handle = op.handle, None
        if handle is None:
            return op.state != OpState.RUNNING
        try:
            handle.release()
        except self._errors:
            op.handle = handle  # still writing: the caller decides how long to wait for it
            return False
        return True

    def progress(self) -> None:
        if self._agent is not None:
            self._agent.get_new_notifs()

    def close(self) -> None:
        """Give everything back in the order the binding wants; the agent goes last."""
        for peer in list(self._peers):
            self.drop_peer(peer)
        if self._region is not None:
            self._agent.deregister_memory(self._region)
        self._region = self._pool = self._agent = None
        if self._memory is not None:
            memory.close(self._memory)
            self._memory = None

    def _own(self) -> Descriptor:
        if self._pool is None:
            raise TransferError("nixl: no pool registered")
        return self._pool


def _error_classes(bindings: ModuleType) -> tuple[type[Exception], ...]:
    """The binding raises instead of returning "ERR"; its exceptions share no base but Exception."""
    found = [getattr(bindings, name) for name in dir(bindings) if name.endswith("Error")]
    return tuple(item for item in found if isinstance(item, type) and issubclass(item, Exception))
