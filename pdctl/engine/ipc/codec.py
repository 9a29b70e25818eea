"""Typed, versioned, size-limited frames: the only thing that crosses a ZMQ socket of the embedded engine.

A frame is 4 bytes (b"PD", format version, kind of codec) and a msgpack body: one tagged struct. Nothing is unpickled.
"""

from __future__ import annotations

from array import array
from typing import Any, Generic, TypeVar, Union

import msgspec

FORMAT = 1
HEADER = 4

T = TypeVar("T", bound=msgspec.Struct)


# What msgspec raises on bytes that are not a message. Text that is not UTF-8 raises a ValueError that is not msgspec's;
# the checks of a struct may raise the others, on numbers and sizes that the sender claims.
MALFORMED = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, MemoryError)


class FrameError(ValueError):
    """A frame that cannot be read; the text says which rule it broke. The receiver drops it, logs it and goes on."""


class Codec(Generic[T]):
    """Encodes and decodes one closed family of structs (each declared with `tag=…`)."""

    def __init__(self, name: str, kind: int, structs: tuple[type[T], ...], max_bytes: int = 64 << 20) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self._header = bytes((0x50, 0x44, FORMAT, kind))
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_as_list)
        # A union built at run time: typing.Union accepts a tuple on every Python we support.
        union: Any = Union[structs]  # noqa: UP007
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)

    def encode(self, message: T) -> bytes:
        return self._header + self._encoder.encode(message)

    def decode(self, frame: bytes | memoryview) -> T:
        """Return the struct in `frame`. Raise FrameError for a wrong size, header or version, or a malformed body."""
        size = len(frame)
        if size > self.max_bytes:
            raise FrameError(f"{self.name}: frame of {size} bytes is over the limit of {self.max_bytes}")
        head = bytes(frame[:HEADER])
        if len(head) < HEADER or head[:2] != self._header[:2] or head[3] != self._header[3]:
            raise FrameError(f"{self.name}: not a frame of this socket (starts with {head!r})")
        if head[2] != FORMAT:
            raise FrameError(f"{self.name}: frame format {head[2]}, this engine speaks {FORMAT}")
        try:
            return self._decoder.decode(frame[HEADER:])
        except MALFORMED as error:
            raise FrameError(f"{self.name}: {error or type(error).__name__}") from None


def _as_list(value: object) -> object:
    """Return an array of numbers as a list; raise TypeError for other types that msgpack does not have."""
    if isinstance(value, array):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be encoded")
