"""Lines as they were written: a router's list of workers that stands on several lines is one line again."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from pdctl.engines.routers import worker_lists

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pdctl.logs.scan import Raw


def unwrapped(raws: Iterable[Raw]) -> Iterator[Raw]:
    """The same lines, but for those that go on with the list of the line above them."""
    source = iter(raws)
    ahead: deque[Raw] = deque()  # lines behind an unfinished list that were looked at
    while True:
        raw = ahead.popleft() if ahead else next(source, None)
        if raw is None:
            return
        if not worker_lists.opens(raw.line):
            yield raw
            continue
        ahead.extend(islice(source, worker_lists.LINES - 1 - len(ahead)))
        whole, taken = worker_lists.join([raw.line, *(one.line for one in ahead)])
        for _ in range(taken - 1):
            ahead.popleft()
        yield raw._replace(line=whole)
