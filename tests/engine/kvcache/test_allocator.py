"""Pages are handed out once, come back once, and stay in long runs."""

from random import Random

import numpy as np
import pytest

from pdctl.engine.kvcache.allocator import PageAllocator, PageLeakError


def test_page_zero_is_never_handed_out() -> None:
    allocator = PageAllocator(9)
    pages = allocator.alloc(8)
    assert pages is not None
    assert pages.dtype == np.int32
    assert sorted(pages.tolist()) == list(range(1, 9))
    assert allocator.alloc(1) is None


def test_takes_the_shortest_run_that_fits() -> None:
    allocator = PageAllocator(21)
    first, second, third, rest = (allocator.alloc(count) for count in (6, 1, 3, 10))
    allocator.free(first)
    allocator.free(third)
    assert allocator.alloc(3).tolist() == third.tolist()
    assert allocator.alloc(4).tolist() == first[:4].tolist()
    assert (second, rest) != (None, None)


def test_spans_runs_longest_first_when_none_fits() -> None:
    allocator = PageAllocator(13)
    runs = [allocator.alloc(count) for count in (2, 1, 4, 1, 3, 1)]
    for run in runs[::2]:
        allocator.free(run)
    pages = allocator.alloc(8).tolist()
    assert pages == [*runs[2].tolist(), *runs[4].tolist(), runs[0].tolist()[0]]


def test_runs_join_when_neighbours_come_back() -> None:
    allocator = PageAllocator(11)
    parts = [allocator.alloc(2) for _ in range(5)]
    for index in (1, 3, 0, 4, 2):
        allocator.free(parts[index])
    assert np.all(np.diff(allocator.alloc(10)) == 1)


def test_random_traffic_never_shares_a_page_and_returns_to_one_run() -> None:
    random, allocator, out = Random(3), PageAllocator(200), []
    for _ in range(3000):
        if out and random.random() < 0.5:
            allocator.free(out.pop(random.randrange(len(out))))
        else:
            pages = allocator.alloc(random.randint(0, 30))
            if pages is not None:
                out.append(pages)
        held = np.concatenate([np.empty(0, np.int32), *out])
        assert len(np.unique(held)) == len(held) == allocator.used_pages
        assert allocator.used_pages + allocator.free_pages == 199
        allocator.check(expected_used=len(held))
    for pages in out:
        allocator.free(pages)
    allocator.check(expected_used=0)
    assert np.all(np.diff(allocator.alloc(199)) == 1)


def test_double_free_is_refused_and_changes_nothing() -> None:
    allocator = PageAllocator(8)
    pages = allocator.alloc(3)
    other = allocator.alloc(2)
    allocator.free(pages)
    with pytest.raises(PageLeakError, match=r"freed twice: \[1, 2, 3\]"):
        allocator.free(pages)
    with pytest.raises(PageLeakError, match="named twice"):
        allocator.free([*other.tolist(), int(other[0])])
    with pytest.raises(PageLeakError, match="not within"):
        allocator.free([0])
    allocator.check(expected_used=2)


def test_idle_check_names_the_pages_that_are_missing() -> None:
    allocator = PageAllocator(8)
    allocator.alloc(2)
    with pytest.raises(PageLeakError, match=r"2 pages out, 0 expected; the first: \[1, 2\]"):
        allocator.check(expected_used=0)


def test_a_pool_of_the_reserved_page_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="page 0 is reserved"):
        PageAllocator(1)


def test_more_for_the_same_owner_comes_right_behind_as_far_as_that_is_free() -> None:
    allocator = PageAllocator(20)
    first = allocator.alloc(4)
    second = allocator.alloc(4)
    assert first is not None
    assert second is not None
    assert allocator.alloc(2, after=int(second[-1])).tolist() == [9, 10]
    allocator.free(second)  # 5 to 8, between the two
    assert allocator.alloc(6, after=int(first[-1])).tolist() == [5, 6, 7, 8, 11, 12]
    assert allocator.alloc(2, after=4).tolist() == [13, 14]  # taken: anywhere else
    allocator.check(expected_used=14)
