"""Any bytes, arriving in any pieces, come out as the lines a plain split gives."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.logs.blocks import Buffer, blocks, count_lines, count_newlines

SIZE = 64


class Pieces:
    """A stream that gives the bytes in pieces of the sizes asked for, in turn."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes, self._turn = data, sizes, 0

    def readinto(self, target: memoryview, /) -> int:
        size = min(self._sizes[self._turn % len(self._sizes)], len(target), len(self._data))
        self._turn += 1
        target[:size] = self._data[:size]
        self._data = self._data[size:]
        return size

    def close(self) -> None:
        """Nothing is open."""


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.binary(max_size=3 * SIZE).map(lambda line: line.replace(b"\n", b".")), max_size=12),
    st.booleans(),
    st.lists(st.integers(1, 200), min_size=1, max_size=5),
    st.integers(0, 1000),
)
def test_blocks_are_whole_lines_or_pieces_of_one(
    lines: list[bytes], ended: bool, sizes: list[int], offset: int
) -> None:
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    buffer = Buffer(SIZE)
    covered, total = offset, 0
    for block in blocks(Pieces(data, sizes), buffer, offset):
        at = block.offset - offset
        text = bytes(buffer.data[block.start : block.end])
        assert text == data[at : at + len(text)]  # offsets are right
        assert block.offset <= covered < block.offset + len(text)  # nothing is left out
        if block.long_line is None:
            assert at == 0 or data[at - 1 : at] == b"\n"
            assert text.endswith(b"\n") or at + len(text) == len(data)
            assert block.offset == covered
        else:
            first = block.long_line.offset - offset
            assert first == 0 or data[first - 1 : first] == b"\n"
            assert b"\n" not in data[first : at + len(text) - 1]
            assert block.long_line.head == data[first : first + SIZE]
        covered = block.offset + len(text)
        total += count_lines(buffer, block)
    assert covered == offset + len(data)
    assert total == data.count(b"\n")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 300), st.sampled_from([1, 9, 90]))
def test_newlines_are_counted_however_dense(data: bytes, start: int, end: int, width: int) -> None:
    text = bytearray(data.replace(b"a", b"x" * width + b"\n"))
    start, end = min(start, len(text)), min(end, len(text))
    assert count_newlines(text, start, max(start, end)) == text.count(b"\n", start, max(start, end))
