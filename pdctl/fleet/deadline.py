"""A deadline shared by everything that works towards it, and parallel work under it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SLICE = 0.25  # seconds a wait may last before it checks whether the deadline was called off
T = TypeVar("T")
R = TypeVar("R")


class Deadline:
    """`seconds`: the time granted, for messages. A narrower deadline also ends with the one it was made from."""

    __slots__ = ("_at", "_whole", "seconds")

    def __init__(self, seconds: float, whole: Deadline | None = None) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds
        self._whole = whole

    @property
    def left(self) -> float:
        """Seconds left; 0.0 once it has passed."""
        mine = max(0.0, self._at - time.monotonic())
        return mine if self._whole is None or not mine else min(mine, self._whole.left)

    @property
    def granted(self) -> float:
        """Seconds granted to the widest deadline, which all narrower ones share."""
        return self.seconds if self._whole is None else self._whole.granted

    @property
    def passed(self) -> bool:
        return self.left == 0.0

    def within(self, seconds: float) -> Deadline:
        """A narrower deadline: `seconds` from now, or what is left of this one."""
        return Deadline(min(seconds, self.left), self)

    def call_off(self) -> None:
        """End it now; everything that waits for it ends within SLICE seconds."""
        self._at = 0.0


def map_within(work: Callable[[T], R], todo: Iterable[T], at_once: int, deadline: Deadline) -> tuple[R, ...]:
    """Results in the order of `todo`. `work` must respect `deadline`, which an interrupt calls off."""
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
