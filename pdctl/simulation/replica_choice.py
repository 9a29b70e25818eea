"""Which of many a router takes: the least loaded, or one after the other. No choice looks at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

NOBODY = -1


class ReplicaChoice(Protocol):
    """Candidates are numbers below that of the replicas; one with a load may be chosen."""

    def put(self, candidate: int, load: int) -> None:
        """It has that load from now on."""

    def drop(self, candidate: int) -> None:
        """It may no longer be chosen."""

    def choose(self) -> int:
        """One of them, or NOBODY."""

    def __len__(self) -> int: ...


class LeastLoadedReplica:
    """Of equal loads the lowest number. A heap whose entries may be out of date: each is mended when it comes up."""

    def __init__(self, most: int) -> None:
        self._load = [NOBODY] * most
        self._heap: list[tuple[int, int]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, candidate: int, load: int) -> None:
        before = self._load[candidate]
        self._load[candidate] = load
        if before == NOBODY:
            self._count += 1
        if before == NOBODY or load < before:  # an entry with less than the load is always there
            heappush(self._heap, (load, candidate))
            if len(self._heap) > 4 * self._count + 64:
                self._heap = [(each, at) for at, each in enumerate(self._load) if each != NOBODY]
                heapify(self._heap)

    def drop(self, candidate: int) -> None:
        if self._load[candidate] != NOBODY:
            self._load[candidate] = NOBODY
            self._count -= 1

    def choose(self) -> int:
        heap, loads = self._heap, self._load
        while heap:
            load, candidate = heap[0]
            now = loads[candidate]
            if now == load:
                return candidate
            if now > load:
                heapreplace(heap, (now, candidate))
            else:
                heappop(heap)
        return NOBODY


class ReplicaInTurn:
    """One after the other, by number."""

    def __init__(self, most: int) -> None:
        del most
        self._candidates: list[int] = []
        self._last = NOBODY

    def __len__(self) -> int:
        return len(self._candidates)

    def put(self, candidate: int, load: int) -> None:
        del load
        at = bisect_left(self._candidates, candidate)
        if at == len(self._candidates) or self._candidates[at] != candidate:
            insort(self._candidates, candidate)

    def drop(self, candidate: int) -> None:
        at = bisect_left(self._candidates, candidate)
        if at < len(self._candidates) and self._candidates[at] == candidate:
            del self._candidates[at]

    def choose(self) -> int:
        if not self._candidates:
            return NOBODY
        at = bisect_left(self._candidates, self._last + 1)
        self._last = self._candidates[at if at < len(self._candidates) else 0]
        return self._last
