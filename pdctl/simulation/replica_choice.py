"""Which of many a router takes: the least loaded, or one after the other. No choice looks at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NOBODY = -1


class ReplicaChoice(Protocol):
    """Candidates are numbers below that of the replicas; one with a load may be chosen."""

    def put(self, candidate: int, load: int) -> None:
        """It has that load from now on."""

    def drop(self, candidate: int) -> None:
        """It may no longer be chosen."""

    def choose(self) -> int:
        """One of them, or NOBODY."""


class LeastLoadedReplica:
    """Of equal loads the lowest number. A heap whose entries may be out of date: each is mended when it comes up."""

    def __init__(self, most: int) -> None:
        self._load = [NOBODY] * most
        self._heap: list[tuple[int, int]] = []
        self._count = 0

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


class UngatedReplica:
    """A choice without those that are gated. When one comes up it is set aside, until it is gated no longer.

    A candidate is gated by what it uses, and of two the one that uses more first; so of those set aside only the one
    that uses least is looked at.
    """

    def __init__(self, choice: ReplicaChoice, used: Sequence[int], gated: Callable[[int], bool]) -> None:
        self._choice, self._used, self._gated = choice, used, gated
        self._loads = [NOBODY] * len(used)
        self._aside = LeastLoadedReplica(len(used))  # by what they use
        self._is_aside = bytearray(len(used))

    def put(self, candidate: int, load: int) -> None:
        self._loads[candidate] = load
        if self._is_aside[candidate]:
            self._aside.put(candidate, self._used[candidate])
        else:
            self._choice.put(candidate, load)

    def drop(self, candidate: int) -> None:
        self._aside.drop(candidate)
        self._is_aside[candidate] = 0
        self._choice.drop(candidate)

    def choose(self) -> int:
        self._bring_back()
        while (number := self._choice.choose()) != NOBODY and self._gated(number):
            self._choice.drop(number)
            self._is_aside[number] = 1
            self._aside.put(number, self._used[number])
        return number

    def _bring_back(self) -> None:
        aside = self._aside
        while (number := aside.choose()) != NOBODY:
            if self._gated(number):
                aside.put(number, self._used[number])  # it may use more than when it was put there
                if aside.choose() == number:
                    return
            else:
                self.drop(number)
                self._choice.put(number, self._loads[number])
