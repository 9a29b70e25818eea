"""What every part of a KV manager knows of its rank; it never changes while the manager lives."""

from __future__ import annotations

import logging
import platform
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.engine.config.log_rate import LogRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.kv_link.kv_config import DisaggConfig
    from pdctl.engine.kv_link.kv_loop import KvLoop
    from pdctl.engine.kv_link.rank_shape import RankShape
    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Transport

log = logging.getLogger("pdctl.engine")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_identity() -> str:
    """The same for all processes of one running machine, whatever addresses it has."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return f"{platform.node()}-{uuid.getnode():x}"


@dataclass(frozen=True, slots=True, eq=False)
class RankContext:
    """`host` is the machine's identity, not its address. `wake` is called whenever a room changed."""

    config: DisaggConfig
    transport: Transport
    geometry: PoolGeometry
    shape: RankShape
    loop: KvLoop
    wake: Callable[[], None]
    host: str
    rate: LogRate = field(default_factory=lambda: LogRate(log))  # for what peers and clients can repeat
    _warned: set[str] = field(default_factory=set)

    @property
    def endpoint(self) -> str:
        """This rank's PULL socket, as peers dial it."""
        return self.loop.endpoint

    def warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text)
