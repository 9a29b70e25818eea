"""Word to prefill ranks there is no connection with: a room is given up, nobody should wait for it there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pdctl.engine.kv_link.bootstrap_client import BootstrapError, attempt, rank_endpoint
from pdctl.engine.kv_link.kv_frames import codec
from pdctl.engine.kv_link.kv_sockets import LinkError, tcp

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.kv_link.bootstrap_rows import RankEndpoint, RankKey
    from pdctl.engine.kv_link.kv_frames import Abort
    from pdctl.engine.kv_link.kv_loop import Loop

log = logging.getLogger("pdctl.engine")


class Notices:
    """One frame each, without an answer: where it does not arrive, the prefill's own deadline still holds."""

    def __init__(self, loop: Loop, address: str, unproven: Callable[[], str]) -> None:
        """`address`: the bootstrap server that knows the ranks; `unproven`: its host, until one took a registration."""
        self._loop = loop
        self._unproven = unproven
        self._address = address
        self._endpoints: dict[RankKey, str] = {}

    def forget(self) -> None:
        """The ranks may be others by now."""
        self._endpoints.clear()

    def give(self, key: RankKey, frame: Abort) -> None:
        known = self._endpoints.get(key)
        if known is not None:
            self._send(known, frame)
            return
        address = self._address
        self._loop.submit(
            lambda: attempt(lambda: rank_endpoint(address, key)),
            lambda found: self._found(key, found, frame),
            lambda why: self._untold(frame, why),
            self._unproven(),
        )

    def _found(self, key: RankKey, found: RankEndpoint | BootstrapError, frame: Abort) -> None:
        if isinstance(found, BootstrapError):
            self._untold(frame, found.message)
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
