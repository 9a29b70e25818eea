"""Groups of ranks that are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pdctl.engine.model.parallel import Group
from tests.engine.kv_link.rig import PATIENCE


class Meeting:
    """Where the ranks of a group, each in a thread, hand their numbers to one another."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=PATIENCE)
        self._said: list[tuple[int, ...]] = [()] * size

    def exchange(self, rank: int, values: Sequence[int]) -> list[tuple[int, ...]]:
        self._said[rank] = tuple(values)
        self._barrier.wait()
        heard = list(self._said)
        self._barrier.wait()
        return heard


class ThreadGroup(Group):
    """A group whose ranks are threads of one process; what torch.distributed does between processes."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        super().__init__(range(meeting.size), rank)
        self._meeting = meeting

    def gather_ints(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        return self._meeting.exchange(self.rank, values)

    def min_ints(self, values: Sequence[int]) -> list[int]:
        return [min(column) for column in zip(*self.gather_ints(values), strict=True)]
