"""The page table keeps each request's pages in token order and knows when a row was lost."""

import numpy as np
import pytest

from pdctl.engine.kvcache.allocator import PageLeakError, PageTable


def test_rows_keep_pages_in_order_and_start_empty_again() -> None:
    table = PageTable(rows=2, max_pages=4)
    row = table.acquire()
    table.extend(row, np.array([7, 3], np.int32))
    table.extend(row, np.array([9], np.int32))
    assert table.pages(row).tolist() == [7, 3, 9]
    assert table.release(row).tolist() == [7, 3, 9]
    assert table.acquire() == row
    assert table.pages(row).tolist() == []


def test_rows_run_out_and_come_back() -> None:
    table = PageTable(rows=2, max_pages=1)
    first, second = table.acquire(), table.acquire()
    assert {first, second} == {0, 1}
    assert table.acquire() is None
    assert table.free_rows == 0
    table.release(first)
    table.check(expected_rows=1)
    with pytest.raises(PageLeakError, match="1 rows out, 0 expected"):
        table.check(expected_rows=0)


def test_a_full_row_names_its_limit() -> None:
    table = PageTable(rows=1, max_pages=2)
    row = table.acquire()
    with pytest.raises(IndexError, match="would hold 3 pages; a row has room for 2"):
        table.extend(row, np.array([1, 2, 3], np.int32))


def test_a_released_row_cannot_be_used_or_released_again() -> None:
    table = PageTable(rows=1, max_pages=2)
    row = table.acquire()
    table.release(row)
    with pytest.raises(PageLeakError, match="row 0 is not taken"):
        table.release(row)
    with pytest.raises(PageLeakError, match="row 0 is not taken"):
        table.extend(row, np.array([1], np.int32))


def test_pages_of_the_prefix_cache_are_read_and_not_handed_back() -> None:
    table = PageTable(2, 8)
    row = table.acquire()
    assert row is not None
    table.extend(row, np.array([3, 4, 5, 6, 7], dtype=np.int32))
    table.lend(row, 0, 2)
    assert table.truncate(row, 4).tolist() == [7]
    assert table.pages(row).tolist() == [3, 4, 5, 6]
    with pytest.raises(PageLeakError, match="pages after the first 1 belong to the prefix cache"):
        table.truncate(row, 1)
    assert table.release(row).tolist() == [5, 6]
    again = table.acquire()
    assert again == row
    table.extend(again, np.array([1], dtype=np.int32))
    assert table.release(again).tolist() == [1]
