"""Prefill and decode managers with real sockets, a real bootstrap server and real bytes, in threads or in processes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from pdctl.engine.decode.decode_manager import DecodeManager
from pdctl.engine.decode.receiver import Receiver
from pdctl.engine.kv_link.kv_manager import DisaggConfig
from pdctl.engine.kv_link.room_state import KVPoll
from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry
from pdctl.engine.prefill.bootstrap_server import BootstrapServer
from pdctl.engine.prefill.prefill_manager import PrefillManager
from pdctl.engine.prefill.sender import Sender
from pdctl.engine.transfer import select
from pdctl.engine.transfer.transport import Transport
from tests.engine.conftest import variables_of_one_process

HOST = "127.0.0.1"
PATIENCE = 60.0  # seconds; a busy machine is slow, never this slow

PREFILL = DisaggConfig(role="prefill", rank_ip=HOST, page_size=4, kv_dtype="float32", bootstrap_host=HOST)
DECODE = DisaggConfig(role="decode", rank_ip=HOST, page_size=4, kv_dtype="float32")


def geometry(
    layout: Layout = Layout.LAYER_MAJOR, num_pages: int = 32, page_size: int = 4, layers: int = 3
) -> PoolGeometry:
    return PoolGeometry(
        layers=layers, num_pages=num_pages, page_size=page_size, kv_heads=2, head_dim=8, itemsize=4, layout=layout
    )


def pages(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


async def _settled() -> None:
    """Let a connection that was accepted in the last moment be closed too."""
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # what closing a connection leaves for the next turn of the loop


class Bootstrap:
    """A bootstrap server in a thread of its own, as it runs beside the HTTP server."""

    def __init__(self, port: int = 0) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.server = BootstrapServer(HOST, port)
        self.run(self.server.start())

    @property
    def port(self) -> int:
        return self.server.port

    def run(self, coroutine: object) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)  # type: ignore[arg-type]

    def close(self) -> None:
        self.run(self.server.stop())
        self.run(_settled())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


class Woken:
    """What a scheduler does: sleep until the manager wakes it, then look."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def wait(self, what: str, check: Callable[[], object], seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not check():
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {seconds} s")
            self.event.wait(0.02)
            self.event.clear()


@dataclass
class Side:
    """One rank: its manager, its pool, its scheduler's bell."""

    manager: PrefillManager | DecodeManager
    pool: np.ndarray
    shape: PoolGeometry
    woken: Woken = field(default_factory=Woken)

    def item(self, slab: int, page: int) -> np.ndarray:
        """Token by token, head by head, whatever the layout; a view, but in head-major."""
        shape, start = self.shape, self.shape.address(slab, page)
        item = self.pool[start : start + shape.item_bytes]
        if shape.layout != Layout.HEAD_MAJOR:
            return item
        return item.reshape(shape.kv_heads, shape.page_size, shape.head_bytes).swapaxes(0, 1).ravel()

    def until(self, room: Sender | Receiver, state: KVPoll, seconds: float = PATIENCE) -> None:
        """Wait for `state`; fail at once when the room ends in another one."""

        def there() -> bool:
            now = room.poll()
            if now.final and now != state:
                raise AssertionError(f"room {room.room} is {now.name}, not {state.name}: {room.failure}")
            return now == state or (state != KVPoll.FAILED and now > state)

        self.woken.wait(f"{state.name} of room {room.room}", there, seconds)

    def until_drained(self, room: Sender | Receiver, seconds: float = PATIENCE) -> None:
        self.woken.wait(f"drained room {room.room}", lambda: room.drained, seconds)


def open_side(
    kind: type[PrefillManager | DecodeManager],
    config: DisaggConfig,
    shape: PoolGeometry,
    seed: int,
    wrap: Callable[[Transport], Transport] | None = None,
) -> Side:
    with variables_of_one_process():
        transport = select.create(config.backend, config.rank_ip, lanes=2 if kind is PrefillManager else 1)
        transport = wrap(transport) if wrap else transport
        memory = transport.allocate(shape.nbytes)
        transport.register(memory)
    pool = np.frombuffer(memory, dtype=np.uint8)
    pool[:] = np.random.default_rng(seed).integers(0, 256, shape.nbytes, dtype=np.uint8)
    woken = Woken()
    side = Side(kind(config, transport, shape, woken.event.set), pool, shape, woken)
    side.manager.start()
    return side


@contextlib.contextmanager
def prefill_side(
    port: int,
    shape: PoolGeometry | None = None,
    registered: bool = True,
    wrap: Callable[[Transport], Transport] | None = None,
    **settings: object,
) -> Iterator[Side]:
    """`registered`: wait until the bootstrap server knows the rank. `wrap`: what to put around the transport."""
    config = replace(PREFILL, bootstrap_port=port, **settings)  # type: ignore[arg-type]
    side = open_side(PrefillManager, config, shape or geometry(), 1, wrap)
    try:
        if registered:
            assert side.manager.registered.wait(PATIENCE), side.manager.registration_failure
        yield side
    finally:
        side.manager.close()


@contextlib.contextmanager
def decode_side(
    shape: PoolGeometry | None = None, wrap: Callable[[Transport], Transport] | None = None, **settings: object
) -> Iterator[Side]:
    config = replace(DECODE, **settings)  # type: ignore[arg-type]
    side = open_side(DecodeManager, config, shape or geometry(), 2, wrap)
    try:
        yield side
    finally:
        side.manager.close()


@contextlib.contextmanager
def bootstrap(port: int = 0) -> Iterator[Bootstrap]:
    server = Bootstrap(port)
    try:
        yield server
    finally:
        server.close()
