"""How many threads each part of a pass uses: products with weights use all of them, everything else one.

Where torch cuts an operation among threads, a number is computed by vector code in one cut and by the scalar code for
what a vector does not fill in another, and attention gives each thread a scratch area that begins at another address,
from which MKL multiplies in another order. With one thread a row comes out alike whatever is beside it.
Products are most of a pass, and are checked (linear.py).
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_own = threading.local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Operations of the calling thread use no other inside, but for those under `using(many())`."""
    before = torch.get_num_threads()
    outer = getattr(_own, "many", None)
    _own.many = outer or before
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _own.many = outer


def many() -> int:
    """How many threads the calling thread may use for a product."""
    return getattr(_own, "many", None) or torch.get_num_threads()


@contextmanager
def using(threads: int) -> Iterator[None]:
    """Half a microsecond; nothing where `threads` is what is set."""
    before = torch.get_num_threads()
    if threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
