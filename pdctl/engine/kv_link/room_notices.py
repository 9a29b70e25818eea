"""Word to prefill ranks there is no connection with: a room is given up, nobody should wait for it there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pdctl.engine.kv_link.bootstrap_client import BootstrapError
from pdctl.engine.kv_link.kv_frames import codec
from pdctl.engine.kv_link.kv_sockets import LinkError, tcp

if TYPE_CHECKING:
    from pdctl.engine.kv_link.bootstrap_rows import RankKey
    from pdctl.engine.kv_link.kv_frames import Abort
    from pdctl.engine.kv_link.kv_loop import KvLoop

log = logging.getLogger("pdctl.engine")


class RoomNotices:
    """One frame each, without an answer: where it does not arrive, the prefill's own deadline still holds."""

    def __init__(self, loop: KvLoop, address: str) -> None:
        """`address`: the bootstrap server that knows the ranks."""
        self._loop = loop
        self._address = address
        self._endpoints: dict[RankKey, str] = {}

    def forget(self) -> None:
        """The ranks may be others by now."""
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
