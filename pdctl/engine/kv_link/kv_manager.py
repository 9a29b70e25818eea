"""What the KV managers of both roles share: the rank's context, the transport, the counters, decoding of frames."""

from __future__ import annotations

import logging
import platform
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.engine.config.process_log import LogRate
from pdctl.engine.drill.kv_faults import faults_for
from pdctl.engine.ipc.channels import SocketKeys
from pdctl.engine.ipc.messages import FrameError
from pdctl.engine.kv_link.bootstrap_client import BootstrapError
from pdctl.engine.kv_link.kv_frames import Frame, LinkError, clipped, codec, tcp
from pdctl.engine.kv_link.kv_loop import KvLoop
from pdctl.engine.kv_link.rank_shape import RankShape
from pdctl.engine.kv_link.room_state import ManagerStats
from pdctl.open_files import OpenFilesWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.kv_link.bootstrap_client import RankKey
    from pdctl.engine.kv_link.kv_frames import Abort, Link, LinkEvent
    from pdctl.engine.kv_link.rank_shape import DisaggConfig
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


@dataclass(frozen=True, slots=True, eq=False)
class RankContext:
    """`host` is the machine's identity, not its address. `wake` is called whenever a room has changed."""

    config: DisaggConfig
    transport: Transport
    geometry: PoolGeometry
    shape: RankShape
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
        self.context = RankContext(
            config=config,
            transport=self._prepared(transport, config),
            geometry=geometry,
            shape=RankShape.of(config, geometry),
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
            self._untold(frame, error.message)
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
