"""The prefix cache beside a model that keeps every page on its own: same hits, same victims, nothing lost."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pdctl.engine.kvcache.allocator import Node, PageAllocator, PageLeakError, RadixCache

PAGE = 2
POOL = 24

Path = tuple[tuple[int, ...], ...]  # the pages of tokens from the start to here


def tokens(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def path(values: list[int]) -> Path:
    whole = len(values) // PAGE * PAGE
    return tuple(tuple(values[at : at + PAGE]) for at in range(0, whole, PAGE))


@dataclass
class Kept:
    page: int
    used: int
    locks: int = 0


@dataclass
class Naive:
    """One entry for every page, found by everything that leads to it."""

    pages: dict[Path, Kept] = field(default_factory=dict)
    tick: int = 0

    def match(self, wanted: Path) -> list[Path]:
        found = [wanted[: length + 1] for length in range(len(wanted))]
        known = [one for one in found if one in self.pages]
        return found[: len(known)]

    def touch(self, upto: list[Path]) -> None:
        self.tick += 1
        for one in upto:
            self.pages[one].used = self.tick

    def victim(self) -> Path | None:
        free = [
            one
            for one, kept in self.pages.items()
            if not kept.locks and not any(len(other) > len(one) and other[: len(one)] == one for other in self.pages)
        ]
        return min(free, key=lambda one: self.pages[one].used, default=None)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(POOL + 1)
        self.cache = RadixCache(PAGE, self.allocator)
        self.model = Naive()
        self.held: list[tuple[Node, list[Path]]] = []

    sequence = st.lists(st.integers(0, 1), min_size=0, max_size=14)

    @rule(values=sequence)
    def keep(self, values: list[int]) -> None:
        """A request ends: its pages go to the cache, but for those whose tokens are known."""
        wanted = path(values)
        pages = self.allocator.alloc(len(wanted))
        if pages is None:
            return
        done = self.cache.insert(tokens(*values[: len(wanted) * PAGE]), pages)
        known = self.model.match(wanted)
        assert done.known == len(known)
        self.allocator.free(pages[: done.known])
        every = [wanted[: length + 1] for length in range(len(wanted))]
        for one, page in zip(every[done.known :], pages[done.known :], strict=True):
            self.model.pages[one] = Kept(int(page), 0)
        self.model.touch(every)

    @rule(values=sequence)
    def look(self, values: list[int]) -> None:
        hit = self.cache.match(tokens(*values))
        known = self.model.match(path(values))
        assert hit.pages.tolist() == [self.model.pages[one].page for one in known]

    @rule(values=sequence)
    def take(self, values: list[int]) -> None:
        hit = self.cache.match(tokens(*values))
        known = self.model.match(path(values))
        self.cache.lock(hit.node)
        for one in known:
            self.model.pages[one].locks += 1
        self.held.append((hit.node, known))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        node, known = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.cache.unlock(node)
        for one in known:
            self.model.pages[one].locks -= 1
        self.model.touch(known)

    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        gone = self.cache.evict(count)
        victims = 0
        while victims < count and (victim := self.model.victim()) is not None:
            del self.model.pages[victim]
            victims += 1
        assert gone == victims

    @invariant()
    def the_books_agree(self) -> None:
        self.cache.check()
        self.allocator.check(expected_used=self.cache.pages)
        assert self.cache.pages == len(self.model.pages)
        assert self.cache.evictable_pages == sum(not kept.locks for kept in self.model.pages.values())
        for one, kept in self.model.pages.items():
            hit = self.cache.match(tokens(*(token for page in one for token in page)))
            assert int(hit.pages[-1]) == kept.page


TestModel = Machine.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def cache(pages: int = POOL) -> tuple[PageAllocator, RadixCache]:
    allocator = PageAllocator(pages + 1)
    return allocator, RadixCache(PAGE, allocator)


def test_less_than_a_page_is_no_hit() -> None:
    allocator, kept = cache()
    kept.insert(tokens(1, 2, 3, 4), allocator.alloc(2))
    assert len(kept.match(tokens(1, 2, 3)).pages) == 1
    assert len(kept.match(tokens(1)).pages) == 0
    assert len(kept.match(tokens()).pages) == 0


def test_pages_that_are_read_stay_and_the_branch_beside_them_goes() -> None:
    allocator, kept = cache(4)
    kept.insert(tokens(1, 1, 2, 2), allocator.alloc(2))
    kept.insert(tokens(1, 1, 3, 3), np.concatenate([tokens(0), allocator.alloc(1)]))
    hit = kept.match(tokens(1, 1, 2, 2))
    kept.lock(hit.node)
    assert kept.evict(9) == 1  # the page of 3, 3
    assert kept.match(tokens(1, 1, 3, 3)).pages.tolist() == hit.pages[:1].tolist()
    with pytest.raises(PageLeakError, match="2 pages are locked while nothing runs"):
        kept.check(idle=True)
    kept.unlock(hit.node)
    kept.check(idle=True)
    assert kept.clear() == 2
    allocator.check(expected_used=0)


def test_an_unlock_too_many_is_told() -> None:
    allocator, kept = cache()
    node = kept.insert(tokens(1, 2), allocator.alloc(1)).node
    with pytest.raises(PageLeakError, match="unlocked more often than locked"):
        kept.unlock(node)


def test_tokens_and_pages_must_match() -> None:
    _, kept = cache()
    with pytest.raises(ValueError, match="3 tokens do not fill 2 pages of 2"):
        kept.insert(tokens(1, 2, 3), tokens(1, 2))


def test_a_cache_that_is_only_asked_does_not_grow() -> None:
    """Every use leaves a note of when it was; notes that no longer hold are swept."""
    allocator, kept = cache()
    node = kept.insert(tokens(1, 2), allocator.alloc(1)).node
    for _ in range(1000):
        kept.lock(node)
        kept.unlock(node)
    assert len(kept._leaves) < 100
    assert kept.evict(1) == 1
