"""How many connections a server holds: in all, and of one address."""

from __future__ import annotations

from collections import Counter


class Clients:
    """`enter` and `leave` once for each connection."""

    def __init__(self, most: int, of_one: int) -> None:
        self._most, self._of_one = most, of_one
        self._held: Counter[str] = Counter()
        self._count = 0

    def enter(self, peer: str) -> bool:
        """Whether there is room for one more of `peer`; if not, it is not counted."""
        if self._count >= self._most or self._held[peer] >= self._of_one:
            if not self._held[peer]:
                del self._held[peer]
            return False
        self._count += 1
        self._held[peer] += 1
        return True

    def leave(self, peer: str) -> None:
        self._count -= 1
        self._held[peer] -= 1
        if not self._held[peer]:
            del self._held[peer]
