"""What stands for the other end of a socket in a target, held to what it stands for when it is defined.

A stand-in that takes less than the real thing makes findings that are none; one that takes more hides some.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def takes(call: Callable[..., Any]) -> list[tuple[str, object, object]]:
    """Names, kinds and defaults of the arguments."""
    return [(one.name, one.kind, one.default) for one in inspect.signature(call).parameters.values()]


def instead_of(real: Callable[..., Any]) -> Callable[[F], F]:
    """A function with the arguments of `real`, a method without its self."""

    def held(stand_in: F) -> F:
        wanted = [one for one in takes(real) if one[0] != "self"]
        if takes(stand_in) != wanted:
            raise TypeError(f"{stand_in.__qualname__} takes {takes(stand_in)}, {real.__qualname__} {wanted}")
        return stand_in

    return held


def stands_for(real: type) -> Callable[[C], C]:
    """A class each of whose methods `real` has, with the same arguments."""

    def held(stand_in: C) -> C:
        for name, method in vars(stand_in).items():
            if not inspect.isfunction(method) or name == "__init__":
                continue
            if not hasattr(real, name):
                raise TypeError(f"{real.__qualname__} has no {name}; {stand_in.__qualname__} has one")
            given, wanted = takes(method), takes(getattr(real, name))
            if given != wanted:
                raise TypeError(f"{stand_in.__qualname__}.{name} takes {given}, {real.__qualname__}'s {wanted}")
        return stand_in

    return held


@stands_for(asyncio.Transport)
class Taker(asyncio.Transport):
    """The transport of a connection whose peer takes everything. Reader, writer and protocol above it are asyncio's."""

    def __init__(self, extra: Any = None) -> None:
        super().__init__(extra)
        self.data = bytearray()
        self.protocol: asyncio.Protocol | None = None
        self._closing = False
        self.over = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.data += data

    def pause_reading(self) -> None:
        """All that the peer sent has been read before."""

    def resume_reading(self) -> None:
        """As above."""

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing and self.protocol is not None:
            self._closing = True
            asyncio.get_running_loop().call_soon(_end, self)

    def abort(self) -> None:
        self.close()


def _end(taker: Taker) -> None:
    if taker.protocol is not None:
        taker.protocol.connection_lost(None)
    taker.over = True


def connection(data: bytes, address: tuple[str, int], sock: socket.socket) -> tuple[asyncio.StreamReader, Any, Taker]:
    """Reader and writer of a connection on which `data` came and then the end. `sock` takes its options."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    transport = Taker({"socket": sock, "peername": address, "sockname": address})
    protocol = transport.protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    protocol.connection_made(transport)
    reader.feed_data(data)
    reader.feed_eof()
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop), transport
