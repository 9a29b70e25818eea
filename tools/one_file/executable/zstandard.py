"""The part of the package zstandard that pdctl uses, on top of the libzstd that is linked into the executable."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

_READ = 1 << 17  # bytes to read from the source at a time: libzstd's ZSTD_DStreamInSize()
_UNKNOWN = (1 << 64) - 1  # ZSTD_CONTENTSIZE_UNKNOWN; one less: ZSTD_CONTENTSIZE_ERROR


class ZstdError(Exception):
    """The input is not valid zstd data."""


class Source(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Buffer(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t))


def _function(name: str, result: type | None, *arguments: object) -> Callable[..., int]:
    function = getattr(ctypes.CDLL(None), name)
    function.restype, function.argtypes = result, arguments
    found: Callable[..., int] = function
    return found


_create = _function("ZSTD_createDStream", ctypes.c_void_p)
_free = _function("ZSTD_freeDStream", ctypes.c_size_t, ctypes.c_void_p)
_is_error = _function("ZSTD_isError", ctypes.c_uint, ctypes.c_size_t)
_content_size = _function("ZSTD_getFrameContentSize", ctypes.c_ulonglong, ctypes.c_char_p, ctypes.c_size_t)
_decompress = _function(
    "ZSTD_decompressStream", ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(_Buffer), ctypes.POINTER(_Buffer)
)


def frame_content_size(head: bytes) -> int:
    """The content size in bytes from the frame header `head`; -1 if it is not given. Raise ZstdError if invalid."""
    size = _content_size(head, len(head))
    if size == _UNKNOWN - 1:
        raise ZstdError("error when determining content size")
    return -1 if size == _UNKNOWN else size


class _Reader:
    """Reads all frames of a source, one after another."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._chunk = b""
        self._input = _Buffer()
        self._stream = _create()
        if not self._stream:
            raise MemoryError

    def __del__(self) -> None:
        if getattr(self, "_stream", 0):
            _free(self._stream)

    def readinto(self, target: memoryview) -> int:
        """Fill `target`; return the number of bytes, fewer only at the end. Raise ZstdError if the input is damaged."""
        space = (ctypes.c_char * len(target)).from_buffer(target)
        output = _Buffer(ctypes.addressof(space), len(target), 0)
        while output.pos < output.size:
            if self._input.pos == self._input.size:
                self._chunk = self._source.read(_READ)
                data = ctypes.cast(ctypes.c_char_p(self._chunk), ctypes.c_void_p)
                self._input = _Buffer(data, len(self._chunk), 0)
            before = self._input.pos, output.pos
            code = _decompress(self._stream, ctypes.byref(output), ctypes.byref(self._input))
            if _is_error(code):
                raise ZstdError("zstd decompress error")
            if not self._chunk and before == (self._input.pos, output.pos):
                break
        return int(output.pos)


class ZstdDecompressor:
    def stream_reader(self, source: Source, *, read_across_frames: bool) -> _Reader:
        if not read_across_frames:
            raise NotImplementedError
        return _Reader(source)
