"""Who holds which KV pages: free runs, the pages each running request reads, and the prefix cache (`RadixCache`).

Contiguous, so that transfers merge and attention reads without a copy. A request's pages are kept in token order
(sglang's req_to_token, by page instead of by token). Some of them may belong to the prefix cache: the row reads those
but does not give them back.

The prefix cache keeps pages after their request and finds them again by the tokens they hold (sglang 0.5.23
srt/mem_cache/radix_cache.py): a tree over token ids, page by page, whose edges carry whole pages of tokens and the
pages of the pool that hold their K and V. A request locks the path it reads, which keeps every page of it. When pages
run out, unlocked ones are evicted, the end of the least recently used branch first. No clock is involved, so every rank
of a group decides alike.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


Pages = npt.NDArray[np.int32]

RESERVED_PAGES = 1  # page 0: the target of padded and dummy writes; never handed out


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
        """Return `count` pages: of the shortest run that holds all, else the longest first; None if fewer are free.

        `after` is a page whose owner wants more. The pages right behind it come first, so that its run stays
        contiguous.
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
        """Give pages back. If one of them is not allocated, raise PageLeakError and free nothing."""
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
        """Raise PageLeakError unless the counts agree; `expected_used` is 0 when the scheduler is idle."""
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
        """Take at most `count` pages from the start of the best run."""
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
        """Add a free run, merged with its neighbours."""
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
        """Return a free row, or None if every row is taken."""
        if not self._free:
            return None
        row = self._free.pop()
        self._taken[row] = True
        self._used[row] = 0
        self._lent[row] = False
        return row

    def extend(self, row: int, pages: Pages) -> None:
        """Append pages to a row. Raise IndexError with the limit if the row is full."""
        self._require(row)
        start = int(self._used[row])
        end = start + len(pages)
        if end > self._pages.shape[1]:
            raise IndexError(f"row {row} would hold {end} pages; a row has room for {self._pages.shape[1]}")
        self._pages[row, start:end] = pages
        self._used[row] = end

    def lend(self, row: int, start: int, stop: int) -> None:
        """Mark the pages from `start` to `stop` as the prefix cache's: `release` will not hand them back."""
        self._require(row)
        self._lent[row, start:stop] = True

    def truncate(self, row: int, keep: int) -> Pages:
        """Drop all but the first `keep` pages of a row. Return a copy of those dropped, for PageAllocator.free."""
        self._require(row)
        if self._lent[row, keep:].any():
            raise PageLeakError(f"row {row}: pages after the first {keep} belong to the prefix cache")
        gone: Pages = self._pages[row, keep : self._used[row]].copy()
        self._used[row] = min(keep, int(self._used[row]))
        return gone

    def pages(self, row: int) -> Pages:
        """Return the row's pages: a view, valid until the row is extended or released."""
        self._require(row)
        view: Pages = self._pages[row, : self._used[row]]
        return view

    def release(self, row: int) -> Pages:
        """Free the row and return a copy of the pages it owned, for PageAllocator.free."""
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


Tokens = npt.NDArray[np.int32]
NO_TOKENS: Tokens = np.empty(0, dtype=np.int32)


class Node:
    """An edge and its end: `pages` hold the K and V of `tokens`; `locks` counts the requests that read them."""

    __slots__ = ("children", "locks", "pages", "parent", "tokens", "used")

    def __init__(self, tokens: Tokens, pages: Pages, parent: Node | None, used: int) -> None:
        self.tokens = tokens
        self.pages = pages
        self.parent = parent
        self.children: dict[bytes, Node] = {}  # by the tokens of their first page
        self.locks = 0
        self.used = used

    @property
    def evictable(self) -> bool:
        """Whether its last page may be evicted: it has no children and no request reads it."""
        return self.parent is not None and not self.children and not self.locks


class PrefixHit(NamedTuple):
    """The longest cached prefix of a sequence of tokens, in whole pages."""

    node: Node
    pages: Pages


class Inserted(NamedTuple):
    """The first `known` pages were in the tree already; it has taken over the others. `node` ends the sequence."""

    node: Node
    known: int


class RadixCache:
    """Its pages are not in the allocator's hands, but count as available while no request locks them."""

    def __init__(self, page_size: int, allocator: PageAllocator) -> None:
        self._page_size = page_size
        self._allocator = allocator
        self._root = Node(NO_TOKENS, NO_TOKENS, None, 0)
        self._tick = 0
        self._leaves: list[tuple[int, int, Node]] = []  # (used, serial, node); outdated entries are skipped
        self._serial = 0
        self._nodes = 0
        self.pages = 0
        self.evictable_pages = 0

    def match(self, tokens: Tokens) -> PrefixHit:
        """Return the cached prefix of `tokens`. Lock its node before anything else is allocated."""
        node, found = self._root, []
        at = 0
        while True:
            child = node.children.get(self._key(tokens, at))
            if child is None:
                break
            same = self._common(child.tokens, tokens[at:])
            if same < len(child.pages):
                child = self._split(child, same)
            found.append(child.pages)
            node, at = child, at + same * self._page_size
        return PrefixHit(node, np.concatenate(found) if found else NO_TOKENS)

    def insert(self, tokens: Tokens, pages: Pages) -> Inserted:
        """Keep `pages`, which hold `tokens` (whole pages only), except those whose tokens are cached already."""
        if len(tokens) != len(pages) * self._page_size:
            raise ValueError(f"{len(tokens)} tokens do not fill {len(pages)} pages of {self._page_size}")
        node, matched = self.match(tokens)
        known = len(matched)
        if known < len(pages):
            rest = tokens[known * self._page_size :].copy()
            leaf = Node(rest, pages[known:].copy(), node, 0)
            node.children[self._key(rest, 0)] = leaf
            self._nodes += 1
            self.pages += len(leaf.pages)
            self.evictable_pages += len(leaf.pages)
            node = leaf
        self._touch(node)
        return Inserted(node, known)

    def lock(self, node: Node) -> None:
        """Keep every page from the start of the sequence to `node` until `unlock`."""
        for one in self._path(node):
            if not one.locks:
                self.evictable_pages -= len(one.pages)
            one.locks += 1

    def unlock(self, node: Node) -> None:
        for one in self._path(node):
            if not one.locks:
                raise PageLeakError(f"prefix cache: {len(one.pages)} pages unlocked more often than locked")
            one.locks -= 1
            if not one.locks:
                self.evictable_pages += len(one.pages)
        self._touch(node)

    def evict(self, count: int) -> int:
        """Give at least `count` pages, or all that no request reads, back to the allocator. Return how many."""
        gone = 0
        while gone < count and self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            if node.used != used or not node.evictable:
                continue
            take = min(count - gone, len(node.pages))
            self._allocator.free(node.pages[-take:])
            gone += take
            self._cut(node, len(node.pages) - take)
        return gone

    def clear(self) -> int:
        """Evict everything that no request reads. Return how many pages became free."""
        return self.evict(self.pages)

    def check(self, idle: bool = False) -> None:
        """Raise PageLeakError unless the counts agree. With `idle`, no page may be locked."""
        nodes = list(self._walk())
        held = sum(len(node.pages) for node in nodes)
        free = sum(len(node.pages) for node in nodes if not node.locks)
        if (held, free, len(nodes)) != (self.pages, self.evictable_pages, self._nodes):
            raise PageLeakError(
                f"prefix cache books differ: {held} pages held, {self.pages} counted; {free} unlocked, "
                f"{self.evictable_pages} counted; {len(nodes)} nodes, {self._nodes} counted"
            )
        if idle and free != held:
            raise PageLeakError(f"prefix cache leak: {held - free} pages are locked while nothing runs")

    def _key(self, tokens: Tokens, at: int) -> bytes:
        """Return the tokens of the page at `at`; less than a full page is never a key."""
        return tokens[at : at + self._page_size].tobytes()

    def _common(self, known: Tokens, asked: Tokens) -> int:
        """Return the number of leading pages that both share."""
        length = min(len(known), len(asked))
        differ = np.flatnonzero(known[:length] != asked[:length])
        return int(differ[0] if len(differ) else length) // self._page_size

    def _split(self, node: Node, at: int) -> Node:
        """Cut the edge after `at` pages. Return the new upper part; `node` stays the lower one."""
        parent = node.parent
        assert parent is not None
        cut = at * self._page_size
        upper = Node(node.tokens[:cut], node.pages[:at], parent, node.used)
        upper.locks = node.locks
        parent.children[self._key(upper.tokens, 0)] = upper
        node.tokens, node.pages, node.parent = node.tokens[cut:], node.pages[at:], upper
        upper.children[self._key(node.tokens, 0)] = node
        self._nodes += 1
        return upper

    def _cut(self, node: Node, keep: int) -> None:
        """Drop a leaf's pages after the first `keep`. An empty leaf is removed, which may make its parent a leaf."""
        lost = len(node.pages) - keep
        self.pages -= lost
        self.evictable_pages -= lost
        parent = node.parent
        assert parent is not None
        if keep:
            node.tokens, node.pages = node.tokens[: keep * self._page_size], node.pages[:keep]
            self._offer(node)
            return
        del parent.children[self._key(node.tokens, 0)]
        self._nodes -= 1
        self._offer(parent)

    def _touch(self, node: Node) -> None:
        """Mark every node up to `node` as just used."""
        self._tick += 1
        for one in self._path(node):
            one.used = self._tick
        self._offer(node)

    def _offer(self, node: Node) -> None:
        if not node.evictable:
            return
        self._serial += 1
        heapq.heappush(self._leaves, (node.used, self._serial, node))
        if len(self._leaves) > 4 * self._nodes + 64:
            self._leaves = [entry for entry in self._leaves if entry[2].evictable and entry[2].used == entry[0]]
            heapq.heapify(self._leaves)

    def _path(self, node: Node | None) -> Iterator[Node]:
        """Yield the nodes from `node` upwards, without the root, which has no pages."""
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def _walk(self) -> Iterator[Node]:
        rest = list(self._root.children.values())
        while rest:
            node = rest.pop()
            yield node
            rest.extend(node.children.values())
