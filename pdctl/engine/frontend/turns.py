"""Long work on the event loop, done in turns with everything else that waits there."""

from __future__ import annotations

import asyncio

MOST = 4096  # tokens looked at between two turns of the loop: a few milliseconds
REQUEST = 64  # tokens that one request counts as, besides its own


class Turns:
    """Counts the work of one HTTP call."""

    __slots__ = ("_work",)

    def __init__(self) -> None:
        self._work = 0

    async def after(self, tokens: int, requests: int = 1) -> None:
        """So much more was done: let others run if it is time."""
        self._work += tokens + REQUEST * requests
        if self._work >= MOST:
            self._work = 0
            await asyncio.sleep(0)
