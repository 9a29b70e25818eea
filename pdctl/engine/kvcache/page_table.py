"""Which pages each running request reads, in token order (sglang's req_to_token, by page instead of by token).

Some of them may belong to the prefix cache; those are the row's to read and not to give back.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pdctl.engine.kvcache.allocator import PageLeakError, Pages


class PageTable:
    """A fixed number of rows, one per running request; a row holds its page ids in token order."""

    def __init__(self, rows: int, max_pages: int) -> None:
        self._pages: npt.NDArray[np.int32] = np.zeros((rows, max_pages), dtype=np.int32)
        self._used: npt.NDArray[np.int32] = np.zeros(rows, dtype=np.int32)
        self._lent = np.zeros((rows, max_pages), dtype=bool)
        self._free = list(range(rows - 1, -1, -1))
        self._taken = np.zeros(rows, dtype=bool)

    @property
    def free_rows(self) -> int:
        return len(self._free)

    def acquire(self) -> int | None:
        """A free row, or None when every row is taken."""
        if not self._free:
            return None
        row = self._free.pop()
        self._taken[row] = True
        self._used[row] = 0
        self._lent[row] = False
        return row

    def extend(self, row: int, pages: Pages) -> None:
        """Append pages to a row. Raises IndexError, naming the limit, when the row is full."""
        self._require(row)
        start = int(self._used[row])
        end = start + len(pages)
        if end > self._pages.shape[1]:
            raise IndexError(f"row {row} would hold {end} pages; a row has room for {self._pages.shape[1]}")
        self._pages[row, start:end] = pages
        self._used[row] = end

    def lend(self, row: int, start: int, stop: int) -> None:
        """The pages from `start` to `stop` belong to the prefix cache: `release` will not hand them back."""
        self._require(row)
        self._lent[row, start:stop] = True

    def truncate(self, row: int, keep: int) -> Pages:
        """Take the pages after the first `keep` out of a row; returns a copy of them, for PageAllocator.free."""
        self._require(row)
        if self._lent[row, keep:].any():
            raise PageLeakError(f"row {row}: pages after the first {keep} belong to the prefix cache")
        gone: Pages = self._pages[row, keep : self._used[row]].copy()
        self._used[row] = min(keep, int(self._used[row]))
        return gone

    def pages(self, row: int) -> Pages:
        """The row's pages: a view, valid until the row is extended or released."""
        self._require(row)
        view: Pages = self._pages[row, : self._used[row]]
        return view

    def release(self, row: int) -> Pages:
        """Free the row and hand back a copy of the pages it owned, for PageAllocator.free."""
        pages: Pages = self.pages(row)[~self._lent[row, : self._used[row]]]
        self._taken[row] = False
        self._free.append(row)
        return pages

    def check(self, expected_rows: int | None = None) -> None:
        """Raise PageLeakError unless the rows add up; `expected_rows` is 0 when the scheduler is idle."""
        taken = int(self._taken.sum())
        if taken + len(self._free) != len(self._taken):
            raise PageLeakError(f"page table books differ: {taken} taken, {len(self._free)} free of {len(self._taken)}")
        if expected_rows is not None and taken != expected_rows:
            raise PageLeakError(f"page table leak: {taken} rows out, {expected_rows} expected")

    def _require(self, row: int) -> None:
        if not self._taken[row]:
            raise PageLeakError(f"row {row} is not taken")
