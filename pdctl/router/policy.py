"""How a pair is chosen among those that may be used now."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from pdctl.router.router_args import PolicyName

if TYPE_CHECKING:
    from pdctl.router.registry import Table, Worker, WorkerPair

Prompt = Callable[[], str]
T = TypeVar("T")
BLOCK = 256  # characters of a prompt per remembered prefix
BLOCKS = 64
REMEMBERED = 65536  # prefixes


class Policy(Protocol):
    """Chooses one of `workers` (never empty, all usable, all of one role)."""

    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker: ...


class Random:
    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        return random.choice(workers)


class RoundRobin:
    def __init__(self) -> None:
        self._turn = -1

    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        self._turn += 1
        return workers[self._turn % len(workers)]


class PowerOfTwo:
    """The less loaded of two drawn at random, by requests in flight on this router."""

    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        if len(workers) == 1:
            return workers[0]
        one, other = random.sample(workers, 2)
        return one if one.load <= other.load else other


class LeastLoad:
    """The least loaded; among equals the one whose turn it is."""

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        self._turn += 1
        least = min(worker.load for worker in workers)
        idle = [worker for worker in workers if worker.load == least]
        return idle[self._turn % len(idle)]


class CacheAware:
    """The worker that last saw the longest known prefix of the prompt, unless it is much busier than the least loaded.

    A prefix counts from `threshold` of the prompt on: a system prompt that all requests share is no reason to send them
    all to one worker.
    """

    def __init__(self, threshold: float, abs_threshold: int, rel_threshold: float) -> None:
        self._threshold = threshold
        self._abs = abs_threshold
        self._rel = rel_threshold
        self._seen: OrderedDict[int, str] = OrderedDict()
        self._fallback = LeastLoad()

    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        prefixes = _prefixes(prompt())
        chosen = self._match(workers, prefixes) or self._fallback.choose(workers, prompt)
        for prefix in prefixes:
            self._seen[prefix] = chosen.id
            self._seen.move_to_end(prefix)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return chosen

    def _match(self, workers: Sequence[Worker], prefixes: Sequence[int]) -> Worker | None:
        by_id = {worker.id: worker for worker in workers}
        least = min(worker.load for worker in workers)
        enough = max(1, math.ceil(self._threshold * len(prefixes)))
        for count in range(len(prefixes), enough - 1, -1):
            worker = by_id.get(self._seen.get(prefixes[count - 1], ""))
            if worker is not None:
                crowded = worker.load - least > self._abs and worker.load > self._rel * least
                return None if crowded else worker
        return None


def _prefixes(prompt: str) -> list[int]:
    """One number per prefix that ends on a block, the shortest first; the last block may be a part of one."""
    value, found = 0, []
    for start in range(0, min(len(prompt), BLOCK * BLOCKS), BLOCK):
        value = hash((value, prompt[start : start + BLOCK]))
        found.append(value)
    return found


class Chooser:
    """The two roles' policies together. Round robin on both sides walks one cycle over all pairs."""

    def __init__(self, prefill: Policy, decode: Policy) -> None:
        self._prefill = prefill
        self._decode = decode
        self._cycle = isinstance(prefill, RoundRobin) and isinstance(decode, RoundRobin)
        self._turn = -1

    def choose(self, table: Table, prompt: Prompt) -> WorkerPair:
        """One pair of a table that is not empty."""
        if self._cycle:
            self._turn += 1
            return table.cycle[self._turn % len(table.cycle)]
        prefill = self._prefill.choose(table.prefills, prompt)
        partners = table.partners[prefill.id]
        decode = self._decode.choose([pair.decode for pair in partners], prompt)
        return next(pair for pair in partners if pair.decode is decode)


def make(name: PolicyName, *, prefill: bool, threshold: float, abs_threshold: int, rel_threshold: float) -> Policy:
    """The policy of that name. Affinity pays where prompts are computed: for decodes cache_aware is least load."""
    if name is PolicyName.RANDOM:
        return Random()
    if name is PolicyName.ROUND_ROBIN:
        return RoundRobin()
    if name is PolicyName.POWER_OF_TWO:
        return PowerOfTwo()
    return CacheAware(threshold, abs_threshold, rel_threshold) if prefill else LeastLoad()
