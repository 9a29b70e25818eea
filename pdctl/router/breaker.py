"""The breaker of one prefill-decode pair: what keeps failing is left alone for a while, then tried with one request."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class BreakerState(str, Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # one trial request may pass; its end decides


class Breaker:
    """`changed` is called on every change of `allows`; the clock is the caller's (`now` in seconds)."""

    __slots__ = ("_changed", "_failures", "_open_for", "_threshold", "_trial", "open_until", "state")

    def __init__(self, threshold: int, open_for: float, changed: Callable[[], None]) -> None:
        self._threshold = threshold
        self._open_for = open_for
        self._changed = changed
        self._failures = 0
        self._trial = False
        self.state = BreakerState.CLOSED
        self.open_until = 0.0

    @property
    def failures(self) -> int:
        return self._failures

    @property
    def allows(self) -> bool:
        return self.state is BreakerState.CLOSED or (self.state is BreakerState.HALF_OPEN and not self._trial)

    def ripen(self, now: float) -> None:
        """Let a trial through once the time is up."""
        if self.state is BreakerState.OPEN and now >= self.open_until:
            self.state = BreakerState.HALF_OPEN
            self._trial = False
            self._changed()

    def begin(self) -> None:
        """A request is sent to the pair."""
        if self.state is BreakerState.HALF_OPEN:
            self._trial = True
            self._changed()

    def succeed(self) -> None:
        self._failures = 0
        if self.state is not BreakerState.CLOSED:
            self.state = BreakerState.CLOSED
            self._changed()

    def fail(self, now: float) -> bool:
        """Whether this failure opened the breaker."""
        self._failures += 1
        if self.state is BreakerState.OPEN:
            return False
        if self.state is BreakerState.CLOSED and self._failures < self._threshold:
            return False
        self.state = BreakerState.OPEN
        self.open_until = now + self._open_for
        self._changed()
        return True

    def release(self) -> None:
        """The request ended without saying anything about the pair: the client left, or its request was refused."""
        if self.state is BreakerState.HALF_OPEN and self._trial:
            self._trial = False
            self._changed()
