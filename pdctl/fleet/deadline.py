"""A moment by which an answer must be there, shared by all who work towards it, and many looks at once under it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SLICE = 0.25  # seconds a wait may go on before it looks whether it was called off
T = TypeVar("T")
R = TypeVar("R")


class Deadline:
    """`seconds`: what was granted, for the words of a reason. A narrower one ends with the one it came from."""

    __slots__ = ("_at", "_whole", "seconds")

    def __init__(self, seconds: float, whole: Deadline | None = None) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds
        self._whole = whole

    @property
    def left(self) -> float:
        """Seconds; 0.0 when it has passed."""
        mine = max(0.0, self._at - time.monotonic())
        return mine if self._whole is None or not mine else min(mine, self._whole.left)

    @property
    def granted(self) -> float:
        """Seconds of the widest one, which everybody who works towards it shares."""
        return self.seconds if self._whole is None else self._whole.granted

    @property
    def passed(self) -> bool:
        return self.left == 0.0

    def within(self, seconds: float) -> Deadline:
        """A narrower one: `seconds` from now, or what is left of this."""
        return Deadline(min(seconds, self.left), self)

    def call_off(self) -> None:
        """Everything that waits for it ends within SLICE."""
        self._at = 0.0


def map_within(work: Callable[[T], R], todo: Iterable[T], at_once: int, deadline: Deadline) -> tuple[R, ...]:
    """Results in the order of `todo`. `work` must keep to `deadline`, which is called off when we are interrupted."""
    items = tuple(todo)
    if len(items) < 2:
        return tuple(map(work, items))
    finished = False
    with ThreadPoolExecutor(min(at_once, len(items)), "look") as pool:
        try:
            results = tuple(pool.map(work, items))
            finished = True
        finally:
            if not finished:
                deadline.call_off()
    return results
