"""Who holds which KV pages: contiguous runs of free ones, and the pages that each running request reads.

Contiguous, so that transfers merge and attention reads without a copy. A request's pages are kept in token order
(sglang's req_to_token, by page instead of by token); some of them may belong to the prefix cache: those are the row's
to read and not to give back.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

Pages = npt.NDArray[np.int32]

RESERVED_PAGES = 1  # page 0: where padded and dummy writes go; never handed out


class PageLeakError(RuntimeError):
    """Page accounting does not add up: a page was freed twice, or is missing while nothing runs."""


class PageAllocator:
    """Free pages as sorted runs. Not thread-safe: one scheduler loop owns it."""

    def __init__(self, num_pages: int) -> None:
        if num_pages <= RESERVED_PAGES:
            raise ValueError(f"a pool of {num_pages} pages has none to hand out: page 0 is reserved")
        self.num_pages = num_pages
        self._starts = [RESERVED_PAGES]
        self._lengths = [num_pages - RESERVED_PAGES]
        self._used = np.zeros(num_pages, dtype=bool)
        self._free = num_pages - RESERVED_PAGES

    @property
    def free_pages(self) -> int:
        return self._free

    @property
    def used_pages(self) -> int:
        return self.num_pages - RESERVED_PAGES - self._free

    def alloc(self, count: int, after: int = -1) -> Pages | None:
        """`count` pages, or None when fewer are free: the shortest run that holds them all, else the longest first.

        `after`: a page whose owner wants more. The pages right behind it come first, so that its run stays one.
        """
        if count < 0:
            raise ValueError(f"cannot allocate {count} pages")
        if count > self._free:
            return None
        parts: list[Pages] = []
        missing = count
        if after >= 0 and after + 1 in self._starts and count:
            parts.append(self._take_at(self._starts.index(after + 1), count))
            missing -= len(parts[0])
        while missing:
            parts.append(self._take(missing))
            missing -= len(parts[-1])
        pages = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
        self._used[pages] = True
        self._free -= count
        return pages

    def free(self, pages: Pages | Sequence[int]) -> None:
        """Give pages back. Raises PageLeakError, and frees nothing, when one of them is not out."""
        given = np.unique(np.asarray(pages, dtype=np.int32))
        if len(given) != len(pages):
            raise PageLeakError(f"a page is named twice in one free: {np.sort(np.asarray(pages)).tolist()}")
        if not len(given):
            return
        if given[0] < RESERVED_PAGES or given[-1] >= self.num_pages:
            raise PageLeakError(f"pages {given.tolist()} are not within 1..{self.num_pages - 1}")
        idle = given[~self._used[given]]
        if len(idle):
            raise PageLeakError(f"pages freed twice: {idle.tolist()}")
        self._used[given] = False
        self._free += len(given)
        for run in np.split(given, np.flatnonzero(np.diff(given) != 1) + 1):
            self._insert(int(run[0]), len(run))

    def check(self, expected_used: int | None = None) -> None:
        """Raise PageLeakError unless the books balance; `expected_used` is 0 when the scheduler is idle."""
        listed = sum(self._lengths)
        used = int(self._used.sum())
        if listed != self._free or used + self._free != self.num_pages - RESERVED_PAGES:
            raise PageLeakError(
                f"page books differ: {listed} listed free, {self._free} counted free, {used} used, "
                f"{self.num_pages - RESERVED_PAGES} in all"
            )
        if expected_used is not None and used != expected_used:
            held = np.flatnonzero(self._used)[:16].tolist()
            raise PageLeakError(f"KV pool leak: {used} pages out, {expected_used} expected; the first: {held}")

    def _take(self, count: int) -> Pages:
        """The start of the best run: at most `count` pages of it."""
        fitting = min((length for length in self._lengths if length >= count), default=0)
        return self._take_at(self._lengths.index(fitting or max(self._lengths)), count)

    def _take_at(self, index: int, count: int) -> Pages:
        start, length = self._starts[index], self._lengths[index]
        taken = min(count, length)
        if taken == length:
            del self._starts[index], self._lengths[index]
        else:
            self._starts[index] += taken
            self._lengths[index] -= taken
        return np.arange(start, start + taken, dtype=np.int32)

    def _insert(self, start: int, length: int) -> None:
        """Add a free run, joined with its neighbours."""
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and start + length == self._starts[index]:
            length += self._lengths[index]
            del self._starts[index], self._lengths[index]
        if index and self._starts[index - 1] + self._lengths[index - 1] == start:
            self._lengths[index - 1] += length
        else:
            self._starts.insert(index, start)
            self._lengths.insert(index, length)


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
