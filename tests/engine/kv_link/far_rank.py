"""A prefill or decode rank in an OS process of its own, to be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from pdctl.engine.kv_link.room_state import KVPoll
from pdctl.engine.kvcache.pool_geometry import PoolGeometry
from tests.engine.kv_link.rig import HOST, PATIENCE, bootstrap, decode_side, pages, prefill_side
from tests.engine.processes import pipe, started


class FarRank:
    """`ask` sends one order and waits for its answer."""

    def __init__(self, role: str, port: int, shape: PoolGeometry, own_server: bool = True, **settings: Any) -> None:
        self._pipe, theirs = pipe()
        self._process = started(_serve, theirs, role, port, shape, own_server, settings)
        theirs.close()
        self.endpoint = self._receive()

    def ask(self, *order: Any) -> Any:
        self._pipe.send(order)
        return self._receive()

    def tell(self, *order: Any) -> None:
        self._pipe.send(order)

    def _receive(self) -> Any:
        if not self._pipe.poll(PATIENCE):
            raise AssertionError(f"the far rank said nothing within {PATIENCE} s")
        return self._pipe.recv()

    def signal(self, number: signal.Signals) -> None:
        if self._process.pid is not None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process.is_alive():
            self.signal(signal.SIGKILL)
        self._process.join(PATIENCE)

    def close(self) -> None:
        self.kill()
        self._pipe.close()
        self._process.close()


@contextlib.contextmanager
def far_rank(role: str, port: int, shape: PoolGeometry, **settings: Any) -> Iterator[FarRank]:
    rank = FarRank(role, port, shape, **settings)
    try:
        yield rank
    finally:
        rank.close()


def _serve(
    pipe: Connection, role: str, port: int, shape: PoolGeometry, own_server: bool, settings: dict[str, Any]
) -> None:
    rooms: dict[int, Any] = {}
    server = bootstrap(port) if role == "prefill" and own_server else contextlib.nullcontext()
    side = prefill_side(port, shape, **settings) if role == "prefill" else decode_side(shape, **settings)
    with server, side as here, contextlib.suppress(EOFError):
        pipe.send(here.manager.endpoint)
        while True:
            name, room, *rest = pipe.recv()
            if name == "open" and role == "prefill":
                rooms[room] = here.manager.sender(room, f"far-{room}")
            elif name == "open":
                rooms[room] = here.manager.receiver(room, f"far-{room}", HOST, rest[0])
                here.until(rooms[room], KVPoll.WAITING_FOR_INPUT)
                rooms[room].send_metadata(pages(*rest[1]))
            elif name == "send":
                rooms[room].send(pages(*rest[0]), last=True, metadata=b"far")
            elif name == "item":
                pipe.send(here.item(room, rest[0]).tobytes())
                continue
            failure = rooms[room].failure
            pipe.send((rooms[room].poll(), failure.message if failure else ""))
    os._exit(0)
