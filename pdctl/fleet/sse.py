"""The payloads of a text/event-stream, out of pieces of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DONE = b"[DONE]"  # how OpenAI's and sglang's streams end
MAX_LINE = 8 * 1024 * 1024  # bytes; a stream without line ends is no event stream


def payloads(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What follows each `data:`, DONE the last. Lines end at \\n only: JSON texts may hold U+2028."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            yield data
            if data == DONE:
                return
        if len(rest) > MAX_LINE:
            return
