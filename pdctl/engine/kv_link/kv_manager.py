"""What the KV managers of both roles share: the rank's settings and context, the counters, decoding of frames."""

from __future__ import annotations

import logging
import platform
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.config.process_log import LogRate
from pdctl.engine.drill.kv_faults import faults_for
from pdctl.engine.ipc.channels import SocketKeys
from pdctl.engine.ipc.messages import FrameError
from pdctl.engine.kv_link.bootstrap_client import FOLLOW_ROOM, BootstrapError
from pdctl.engine.kv_link.kv_frames import Frame, LinkError, clipped, codec, tcp
from pdctl.engine.kv_link.kv_loop import KvLoop
from pdctl.engine.kv_link.rank_shape import RankShape, room_page_bytes
from pdctl.engine.kv_link.room_state import ManagerStats
from pdctl.open_files import OpenFilesWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.deployment_secret import DeploymentSecret
    from pdctl.engine.kv_link.bootstrap_client import RankKey
    from pdctl.engine.kv_link.kv_frames import Abort, Link, LinkEvent
    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Transport

log = logging.getLogger("pdctl.engine")

TEND_EVERY = 1.0  # seconds between closing connections that strangers opened to the transport's port and left
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_identity() -> str:
    """Return an id that all processes of one running machine share, whatever addresses it has."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return f"{platform.node()}-{uuid.getnode():x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggConfig:
    """`bootstrap_*` is a prefill's own server; a decode learns it from each request.

    `dp_*` counts replicas of the instance (SGLang's system DP), `attn_dp_*` the attention DP groups of one TP group;
    one of the two sizes is 1. `model`, `layers` and `kv_heads` are the whole model's; 0: derived from this rank's pool.
    """

    role: str  # prefill | decode
    rank_ip: str  # where peers reach this rank's sockets
    page_size: int  # tokens
    kv_dtype: str  # of the pool, resolved; both sides must agree on the spelling
    backend: str = "shm"  # nixl | shm | mooncake | fake
    bootstrap_host: str = ""
    bootstrap_port: int = 0
    http_port: int = 0
    model: str = ""  # the same for all engines whose KV caches are interchangeable
    layers: int = 0
    kv_heads: int = 0
    attn_tp_rank: int = 0
    attn_tp_size: int = 1
    attn_dp_rank: int = 0
    attn_dp_size: int = 1
    dp_rank: int = 0
    dp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    load_balance_method: str = FOLLOW_ROOM
    query_dp_rank: bool = False  # SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK: even if it follows the room
    bootstrap_timeout: float = 300.0
    waiting_timeout: float = 300.0
    heartbeat_interval: float = 5.0
    heartbeat_max_failure: int = 2
    registration_delay: float = 1.0  # before the second attempt, then doubled (sglang 0.5.23)
    topology_timeout: float = 15.0  # sglang 0.5.23: 15 attempts, one a second
    connect_timeout: float = 5.0  # for a rank's answer to a registration
    unclaimed_ttl: float = 30.0  # how long a prefill keeps a page list that no request has claimed
    refusal_ttl: float = 60.0  # how long a prefill remembers that a decode gave up a room before its request came
    transfer_threads: int = 0  # threads that decode ranks are spread over; 0: by cores
    drain_grace: float = 30.0  # sglang 0.5.23 DEFERRED_DECODE_KV_RELEASE_TIMEOUT
    tell_unclaimed: bool = True  # whether the decode is told that its page list was dropped (SGLang's never is)
    tell_given_up: bool = True  # whether the prefill is told of a room given up before its page list (SGLang's: never)
    secret: DeploymentSecret | None = None  # without it peers need none, and any that reaches the port is served
    faults: str = ""  # of this rank's transport, in addition to those of PDCTL_FAULTS

    @property
    def write_grace(self) -> float:
        """How long a prefill lets a write of a failed room go on: half of what the decode waits before it reuses pages.

        The other half allows for the time that news of the failure takes to arrive.
        """
        return self.drain_grace / 2

    @property
    def dp_group(self) -> int:
        """Which of the instance's `dp_groups` this rank serves; the prefill DP rank in a request means this number."""
        return self.attn_dp_rank if self.dp_size == 1 else self.dp_rank

    @property
    def dp_groups(self) -> int:
        return self.attn_dp_size if self.dp_size == 1 else self.dp_size

    @property
    def follows_room(self) -> bool:
        """Whether prefill DP rank = room % dp_groups, on both sides; `auto` means that on a prefill (sglang 0.5.23)."""
        return self.load_balance_method in (FOLLOW_ROOM, "auto")

    def is_fake(self, bootstrap_host: str) -> bool:
        """Return whether a request names FAKE_BOOTSTRAP_HOST (warm-up, health): neither side moves a byte for it."""
        return self.backend == "fake" or bootstrap_host == FAKE_BOOTSTRAP_HOST


def shape_of(config: DisaggConfig, geometry: PoolGeometry) -> RankShape:
    """Return what a rank with this config and pool tells its peers."""
    mla = geometry.slabs_per_layer == 1
    heads = config.kv_heads or (1 if mla else geometry.kv_heads * config.attn_tp_size)
    return RankShape(
        model=config.model,
        num_layers=config.layers or geometry.layers * config.pp_size,
        num_kv_heads=1 if mla else heads,
        head_dim=geometry.head_dim,
        mla=mla,
        page_size=config.page_size,
        kv_dtype=config.kv_dtype,
        attn_tp_size=config.attn_tp_size,
        attn_tp_rank=config.attn_tp_rank,
        pp_size=config.pp_size,
        pp_rank=config.pp_rank,
        dp_groups=config.dp_groups,
    )


@dataclass(frozen=True, slots=True, eq=False)
class RankContext:
    """`host` is the machine's identity, not its address. `wake` is called whenever a room has changed."""

    config: DisaggConfig
    transport: Transport
    geometry: PoolGeometry
    shape: RankShape
    room_page_bytes: int  # one page of a room over all ranks of this rank's group, if it is a decode's
    loop: KvLoop
    wake: Callable[[], None]
    host: str
    rate: LogRate = field(default_factory=lambda: LogRate(log))  # for what peers and clients can trigger repeatedly
    _warned: set[str] = field(default_factory=set)

    @property
    def endpoint(self) -> str:
        """This rank's PULL socket, at the address peers dial."""
        return self.loop.endpoint

    def warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text)


class KvManager(ABC):
    """`wake` is called on the manager's thread whenever a room has changed; it must not block.

    `died` is called there with a reason if the thread ends on an unexpected error.
    """

    def __init__(
        self,
        config: DisaggConfig,
        transport: Transport,
        geometry: PoolGeometry,
        wake: Callable[[], None],
        died: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._died = died
        self._open_files = OpenFilesWatch(log)
        self.loop = KvLoop(f"kv-{config.role}", config.rank_ip, self, SocketKeys.of(config.secret))
        self.loop.faults = faults_for(config.attn_tp_rank, self.loop.later)
        shape = shape_of(config, geometry)
        self.context = RankContext(
            config=config,
            transport=self._prepared(transport, config),
            geometry=geometry,
            shape=shape,
            room_page_bytes=room_page_bytes(shape, geometry),
            loop=self.loop,
            wake=wake,
            host=host_identity(),
        )
        self.succeeded = 0
        self.failed = 0
        self.moved_bytes = 0
        self._rejected = 0

    def _prepared(self, transport: Transport, config: DisaggConfig) -> Transport:
        """Return `transport`, wrapped as this role needs it."""
        del config
        return transport

    @property
    def config(self) -> DisaggConfig:
        return self.context.config

    @property
    def transport(self) -> Transport:
        return self.context.transport

    @property
    def endpoint(self) -> str:
        """This rank's PULL socket, at the address peers dial."""
        return self.loop.endpoint

    def start(self) -> None:
        self.loop.start()
        self.loop.call(self._tend)

    def _tend(self) -> None:
        """Do the regular upkeep that no request triggers, every TEND_EVERY seconds."""
        self._open_files.look()
        if self.transport.caps.peer_progress:
            self.transport.close_left()
        self.loop.later(TEND_EVERY, self._tend)

    @property
    def ended(self) -> bool:
        """Whether the manager's thread has ended: every room has failed and new ones fail at once."""
        return self.loop.ended

    def close(self) -> None:
        """Fail the rooms that are left, wait briefly for the peers to acknowledge, and close the transport."""
        if self.loop.stop():
            self.transport.close()
        else:
            log.error("KV manager thread did not end in time; its transport stays open until the process ends")

    def release(self) -> bool:
        """End as `close` does, but leave the transport, without peers, to a successor. False: it is still in use."""
        return self.loop.stop() and self._detach()

    def _detach(self) -> bool:
        return True

    @abstractmethod
    def stats(self) -> ManagerStats: ...

    def _stats(self, rooms: int, draining: int, peers: int) -> ManagerStats:
        return ManagerStats(rooms, draining, peers, self.succeeded, self.failed, self._rejected, self.moved_bytes)

    def on_frame(self, frame: bytes) -> None:
        if self.loop.faults is not None:
            self.loop.faults.passing(frame, "in.", self._decode_frame)
        else:
            self._decode_frame(frame)

    def _decode_frame(self, frame: bytes) -> bool:
        """Drop a frame that cannot be decoded, with a log line; the thread goes on (that of sglang 0.5.13 died)."""
        try:
            message = codec.decode(frame)
        except FrameError as error:
            self._rejected += 1
            self.context.rate.warning(
                "Rejected a frame of %d bytes on %s: %s", len(frame), self.endpoint, clipped(str(error))
            )
            self.on_unreadable(frame, str(error))
        else:
            self._deliver(message)
        return True

    def _deliver(self, message: Frame) -> None:
        """Handle a frame. One of few places that catch everything: a frame is one peer's, the thread serves them all.

        What a frame can contain is checked where it is used. An unexpected error ends the session that sent the frame,
        with a traceback in the log, and no other; errors outside a frame still end the thread, and with it the rank.
        """
        try:
            self.on_message(message)
        except Exception as error:
            self._rejected += 1
            log.exception("A %s frame hit an exception; its session ends", type(message).__name__)
            self.on_poisonous(message, f"{type(error).__name__}: {error}")

    def on_unreadable(self, frame: bytes, why: str) -> None:
        """A frame was rejected; its sender may be owed an answer."""
        del frame, why

    @abstractmethod
    def on_poisonous(self, message: Frame, why: str) -> None:
        """A frame that could be decoded raised an unexpected error: end what its session has here."""

    @abstractmethod
    def on_message(self, message: Frame) -> None: ...

    @abstractmethod
    def on_link(self, link: Link, event: LinkEvent) -> None: ...

    @abstractmethod
    def advance(self) -> float | None: ...

    @abstractmethod
    def on_stop(self) -> None: ...

    @property
    @abstractmethod
    def idle(self) -> bool: ...

    def on_crash(self, reason: str) -> None:
        self._died(reason)

    @abstractmethod
    def on_death(self) -> None: ...


class RoomNotices:
    """Sends one frame per room, without an answer: if it does not arrive, the prefill's own deadline still holds."""

    def __init__(self, loop: KvLoop, address: str) -> None:
        """`address` is that of the bootstrap server that knows the ranks."""
        self._loop = loop
        self._address = address
        self._endpoints: dict[RankKey, str] = {}

    def forget(self) -> None:
        """Forget the endpoints: the ranks may be different ones by now."""
        self._endpoints.clear()

    def give(self, key: RankKey, frame: Abort, unproven: str = "") -> None:
        """Find the rank and send `frame`. `unproven`: the server's host, until it is known to be of the deployment."""
        known = self._endpoints.get(key)
        if known is not None:
            self._send(known, frame)
        else:
            self._loop.spawn(self._find(key, frame, unproven), lambda why: self._untold(frame, why))

    async def _find(self, key: RankKey, frame: Abort, unproven: str) -> None:
        try:
            found = await self._loop.bootstrap.rank_endpoint(self._address, key, unproven)
        except BootstrapError as error:
            self._untold(frame, error.logged)
            return
        endpoint = self._endpoints[key] = tcp(found.rank_ip, found.rank_port)
        self._send(endpoint, frame)

    def _send(self, endpoint: str, frame: Abort) -> None:
        try:
            self._loop.send_once(endpoint, codec.encode(frame))
        except LinkError as error:
            self._untold(frame, str(error))
            return
        log.info("room=%d given up before any page list; told %s", frame.room, endpoint)

    def _untold(self, frame: Abort, why: str) -> None:
        log.info(
            "room=%d given up before any page list, and prefill %s cannot be told: %s", frame.room, self._address, why
        )
