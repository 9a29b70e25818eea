"""KV pages kept after their request, found again by the tokens they hold (sglang 0.5.23 srt/mem_cache/radix_cache.py).

A tree over token ids, page by page: an edge carries whole pages of tokens and the pages of the pool that hold their K
and V. A request locks the path it reads, which keeps every page of it; what nobody locks goes when pages run out, the
end of the least recently used branch first. Clocks play no part in it, so every rank of a group decides alike.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pdctl.engine.kvcache.allocator import PageLeakError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.engine.kvcache.allocator import PageAllocator, Pages

Tokens = npt.NDArray[np.int32]
NO_TOKENS: Tokens = np.empty(0, dtype=np.int32)


class Node:
    """One edge and its end: `pages` hold the K and V of `tokens`; `locks` counts the requests that read them."""

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
        """Whether its last page may go: nothing hangs on it and nobody reads it."""
        return self.parent is not None and not self.children and not self.locks


class PrefixHit(NamedTuple):
    """The longest known beginning of a sequence of tokens, in whole pages."""

    node: Node
    pages: Pages


class Inserted(NamedTuple):
    """`known` leading pages were in the tree before; it has taken over the others. `node` ends the sequence."""

    node: Node
    known: int


class RadixCache:
    """Pages it holds are out of the allocator's hands, and count as available as long as nobody locks them."""

    def __init__(self, page_size: int, allocator: PageAllocator) -> None:
        self._page_size = page_size
        self._allocator = allocator
        self._root = Node(NO_TOKENS, NO_TOKENS, None, 0)
        self._tick = 0
        self._leaves: list[tuple[int, int, Node]] = []  # (used, serial, node); entries that no longer hold are skipped
        self._serial = 0
        self._nodes = 0
        self.pages = 0
        self.evictable_pages = 0

    def match(self, tokens: Tokens) -> PrefixHit:
        """What is known of the beginning of `tokens`. Lock the node before anything else is allocated."""
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
        """Keep `pages`, which hold `tokens` (whole pages of them), except those whose tokens are known already."""
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
        """Give at least `count` pages back to the allocator, or all that nobody reads; returns how many."""
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
        """Forget everything nobody reads; returns how many pages became free."""
        return self.evict(self.pages)

    def check(self, idle: bool = False) -> None:
        """Raise PageLeakError unless the books balance; `idle`: nobody may hold a lock."""
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
        """The tokens of the page at `at`; less than a page is never a key."""
        return tokens[at : at + self._page_size].tobytes()

    def _common(self, known: Tokens, asked: Tokens) -> int:
        """Leading pages that both have."""
        length = min(len(known), len(asked))
        differ = np.flatnonzero(known[:length] != asked[:length])
        return int(differ[0] if len(differ) else length) // self._page_size

    def _split(self, node: Node, at: int) -> Node:
        """Cut the edge after `at` pages; the new upper part is returned, `node` stays the lower one."""
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
        """Forget the pages of a leaf after the first `keep`. An empty leaf goes, and its parent may be one then."""
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
        """Everything up to `node` was used just now."""
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
        """From `node` up, the root left out: it has no pages."""
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def _walk(self) -> Iterator[Node]:
        rest = list(self._root.children.values())
        while rest:
            node = rest.pop()
            yield node
            rest.extend(node.children.values())
