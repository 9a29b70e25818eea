"""KV pages through NIXL over UCX: one-sided writes into the peer's pool (same host: cma, at memory-copy speed).

Settings (measured in docs/performance.md): no progress thread, which would burn a whole core;
`ucx_error_handling_mode=none` where all peers share the host, and the UCX module list cut to cma there. With UCX's ib
module loaded, a process that made an agent can crash in a library destructor at normal interpreter exit: engine
processes therefore leave through os._exit.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import logging
import os
import tempfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    expanded_rows,
    require_compatible,
    require_pairs,
    sides,
)

if TYPE_CHECKING:
    import mmap
    from types import ModuleType

    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Pages

PACKAGES = ("nixl", "nixl_cu12", "nixl_cu13")
UCX_WRITES = 1 << 16  # bytes that UCX writes first to a file in shared memory
INITIATOR = "NIXL_INIT_AGENT"
CLOSING_TURNS = 128  # each takes a few microseconds if there is nothing to read
MOST_BLOCKS = 1 << 27  # of one pool; the library keeps some tens of bytes for each


Kind = Literal["DRAM", "VRAM"]
Address = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class AgentDescriptor(msgspec.Struct, frozen=True):
    """Where an agent's pool lies. It comes from a peer, so `Agent.add` checks it against the metadata."""

    agent: Annotated[str, Meta(min_length=1, max_length=128)]
    metadata: Annotated[bytes, Meta(min_length=1, max_length=65536)]
    address: Address
    nbytes: Address
    device: Annotated[int, Meta(ge=0, lt=1 << 16)]
    kind: Kind


@dataclass(frozen=True, slots=True)
class Memory:
    """A pool, in the terms the binding uses."""

    address: int
    nbytes: int
    device: int
    kind: Kind


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Prepared descriptor lists of both sides, and how pages map to indices into them."""

    agent: Agent
    local: Any
    remote: Any
    here: Blocks
    there: Blocks

    def release(self) -> None:
        self.local.release()
        self.remote.release()


def load(cma_only: bool) -> ModuleType:
    """Return the binding's API module. Raise ImportError if no NIXL wheel is installed (macOS has none).

    `cma_only`: every peer and the pool are in this host's memory. UCX reads its module list when its library loads;
    without the ib and cuda modules nothing can crash at exit.
    """
    if cma_only:
        os.environ.setdefault("UCX_MODULES", "cma")
    installed = [name for name in PACKAGES if importlib.util.find_spec(name)]
    if not installed:
        raise ImportError(f"none of {', '.join(PACKAGES)} is installed (pip install nixl-cu12; Linux only)")
    api = importlib.import_module(f"{installed[0]}._api")
    # The binding prints to stdout in a format of its own: send its warnings where ours go.
    logger = logging.getLogger("nixl")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.WARNING)
    return api


def home_advice(home: str) -> str:
    """What to do if NIXL may not look into HOME for its optional file of settings; "" if it may."""
    try:
        Path(home, ".nixl.cfg").stat()
    except FileNotFoundError:
        return ""
    except OSError:
        return f"this user may not enter HOME={home}: set HOME to a directory of this user"
    return ""


def ucx_advice(shared_memory: str = "/dev/shm") -> str:
    """What to check if UCX cannot start: its error code does not tell, and it always creates a file in /dev/shm."""
    try:
        with tempfile.TemporaryFile(dir=shared_memory) as file:
            file.write(bytes(UCX_WRITES))
            file.flush()
    except OSError as error:
        if error.errno == errno.EFBIG:
            return "files may be no larger than `ulimit -f` says, and UCX needs larger ones: ulimit -f unlimited"
        return f"{shared_memory}: {error.strerror}; it must be writable and have room (mount -o remount,rw,size=1G)"
    return "check UCX_TLS and UCX_NET_DEVICES"


class Agent:
    """One nixl agent. Its calls take turns (strict): if UCX copies by itself (cma), a post holds it for the whole copy.

    Raises TransferError if the agent cannot be set up; `errors` are the classes that `transfer` and `state` raise when
    a write has failed.
    """

    def __init__(self, pool: Memory, mode: str, cma_only: bool) -> None:
        """`mode` is UCX's error handling: `none` (same host) or `peer`."""
        try:
            api = load(cma_only)
            bindings = importlib.import_module(f"{api.__package__}._bindings")
        except ImportError as error:
            raise TransferError(f"nixl: {error}") from None
        self.errors = _error_classes(bindings)
        self.plans: dict[str, list[Lists]] = {}  # by peer
        self._peers: dict[str, AgentDescriptor] = {}
        self._lock = threading.Lock()  # one thread may add a peer while another drops one of the same process
        config = api.nixl_agent_config(
            enable_prog_thread=False, backends=[], sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        )
        # std::filesystem's errors and those of its parser of settings arrive as RuntimeErrors.
        refusals: tuple[type[Exception], ...] = (*self.errors, RuntimeError)
        try:
            self._agent = api.nixl_agent(f"pdctl-{uuid.uuid4().hex[:16]}", config)
        except refusals as error:
            advice = "; ".join(filter(None, (str(error), home_advice(os.environ.get("HOME", "")))))
            raise TransferError(f"nixl: the agent cannot start: {advice}") from None
        try:
            self._agent.create_backend("UCX", {"ucx_error_handling_mode": mode})
        except self.errors as error:
            raise TransferError(f"nixl: UCX cannot start: {error}; {ucx_advice()}") from None
        try:
            self._region = self._agent.register_memory([(pool.address, pool.nbytes, pool.device, "")], pool.kind)
            metadata = self._agent.get_agent_metadata()
        except self.errors as error:
            raise TransferError(f"nixl: cannot register {pool.nbytes} bytes of {pool.kind}: {error}") from None
        self.own = AgentDescriptor(self._agent.name, metadata, pool.address, pool.nbytes, pool.device, pool.kind)

    @property
    def load(self) -> int:
        """The number of peers it serves."""
        return len(self._peers)

    def add(self, peer: str, theirs: AgentDescriptor) -> None:
        """Add a peer. Raise TransferError unless its metadata belong to the agent named and cover all of its pool."""
        with self._lock:
            known = self._knows(theirs.agent)
            if not known:
                self._load(peer, theirs)
            pool = [(theirs.address, theirs.nbytes, theirs.device)]
            try:
                held = self._agent.check_remote_metadata(theirs.agent, self._agent.get_xfer_descs(pool, theirs.kind))
            except self.errors:
                held = False
            if not held:
                if not known:
                    self._forget(theirs.agent)
                raise TransferError(
                    f"nixl: peer {peer} names {theirs.nbytes} bytes of {theirs.kind} at {theirs.address:#x}, which its "
                    "agent has not registered"
                )
            self._peers[peer] = theirs
            self.plans[peer] = []

    def _load(self, peer: str, theirs: AgentDescriptor) -> None:
        try:
            loaded = self._agent.add_remote_agent(theirs.metadata)
        except self.errors as error:
            raise TransferError(f"nixl: cannot load the agent of peer {peer}: {error}") from None
        name = loaded.decode(errors="replace") if isinstance(loaded, bytes) else str(loaded)
        if name != theirs.agent:
            if not self._knows(name):
                self._forget(name)
            raise TransferError(f"nixl: peer {peer} says that its agent is {theirs.agent}; its metadata are {name}'s")

    def _forget(self, agent: str) -> None:
        try:
            self._agent.remove_remote_agent(agent)
        except self.errors:
            return  # its metadata went with the connection

    def _knows(self, agent: str) -> bool:
        """Return whether a peer uses that agent: one agent serves all connections of its process."""
        return any(descriptor.agent == agent for descriptor in self._peers.values())

    def drop(self, peer: str) -> None:
        with self._lock:
            for lists in self.plans.pop(peer):
                lists.release()
            known = self._peers.pop(peer)
            if not self._knows(known.agent):
                self._forget(known.agent)

    def peer(self, peer: str) -> AgentDescriptor:
        return self._peers[peer]

    def lists(self, peer: str, here: Blocks, there: Blocks) -> Lists:
        theirs = self._peers[peer]
        if max(here.count, there.count) > MOST_BLOCKS:
            raise TransferError(f"nixl: {there.count} blocks of peer {peer} are more than the {MOST_BLOCKS} we prepare")
        local = self._prepare(INITIATOR, self.own, here)
        try:
            made = Lists(self, local, self._prepare(theirs.agent, theirs, there), here, there)
        except TransferError:
            local.release()
            raise
        self.plans[peer].append(made)
        return made

    def _prepare(self, agent: str, pool: AgentDescriptor, blocks: Blocks) -> Any:  # noqa: ANN401  # a handle of the binding
        rows = blocks.rows(pool.address)
        rows[:, 2] = pool.device
        try:
            try:
                return self._agent.prep_xfer_dlist(agent, rows, pool.kind)
            except (TypeError, ValueError):  # releases without strided lists take (address, length, device) only
                return self._agent.prep_xfer_dlist(agent, expanded_rows(rows), pool.kind)
        except self.errors as error:
            raise TransferError(f"nixl: cannot prepare {blocks.count} blocks for {agent}: {error}") from None

    def make(self, lists: Lists, src: Any, dst: Any) -> Any:  # noqa: ANN401  # index arrays in, a handle out
        return self._agent.make_prepped_xfer("WRITE", lists.local, src, lists.remote, dst)

    def transfer(self, handle: Any) -> str:  # noqa: ANN401
        return str(self._agent.transfer(handle))

    def state(self, handle: Any) -> str:  # noqa: ANN401
        return str(self._agent.check_xfer_state(handle))

    def progress(self) -> None:
        self._agent.get_new_notifs()

    def close(self) -> None:
        """Release everything in the order the binding requires; the agent goes last."""
        for peer in list(self._peers):
            self.drop(peer)
        self._agent.deregister_memory(self._region)
        self._region = self._agent = None


def _error_classes(bindings: ModuleType) -> tuple[type[Exception], ...]:
    """Return the exceptions the binding raises instead of returning "ERR"; their only common base is Exception."""
    found = [getattr(bindings, name) for name in dir(bindings) if name.endswith("Error")]
    return tuple(item for item in found if isinstance(item, type) and issubclass(item, Exception))


class NixlTransport:
    """`same_host`: every peer is on this machine. Set-up, and the posts of one lane, need one thread at a time.

    A post over cma holds its agent for the whole copy, so a small one behind a large one waits for all of it. Each of
    `lanes` has an agent of its own; a new peer goes to the lane with the fewest peers (`TransferPlan.lane`).
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
        self._memory = segment.anonymous(nbytes)
        return memoryview(self._memory)[:nbytes]

    def register(self, buffer: Buffer) -> None:
        if self._agents:
            raise TransferError("nixl: this transport already has a pool")
        if isinstance(buffer, memoryview):
            pool = Memory(segment.address(buffer), buffer.nbytes, 0, "DRAM")
        else:
            device = buffer.get_device()
            pool = Memory(buffer.data_ptr(), buffer.nbytes, max(device, 0), "DRAM" if device < 0 else "VRAM")
        mode, cma_only = "none" if self.caps.same_host else "peer", self.caps.same_host and pool.kind == "DRAM"
        self._agents = [Agent(pool, mode, cma_only) for _ in range(self._lanes)]

    def descriptor(self) -> bytes:
        return msgspec.msgpack.encode(self._main().own)

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        try:
            theirs = msgspec.msgpack.decode(descriptor, type=AgentDescriptor)
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
            self._take_status(op, lists.agent.transfer(op.handle[1]))
        except lists.agent.errors as error:
            self._fail(op, error)
        return op

    def poll(self, op: Op) -> OpState:
        if op.state == OpState.RUNNING:
            agent, handle = op.handle
            try:
                self._take_status(op, agent.state(handle))
            except agent.errors as error:
                self._fail(op, error)
        return op.state

    def _take_status(self, op: Op, status: str) -> None:
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

    def progress(self, lane: int | None = None) -> None:
        for agent in self._agents if lane is None else self._agents[lane : lane + 1]:
            agent.progress()

    def close_left(self, lane: int | None = None) -> None:
        """Close connections that strangers left: UCX keeps each one until it reads from it, 16 per turn."""
        for _ in range(CLOSING_TURNS):
            self.progress(lane)

    def close(self) -> None:
        for agent in self._agents:
            agent.close()
        self._agents.clear()
        self._agent_of.clear()
        if self._memory is not None:
            segment.close(self._memory)
            self._memory = None

    def _main(self) -> Agent:
        if not self._agents:
            raise TransferError("nixl: no pool registered")
        return self._agents[0]
