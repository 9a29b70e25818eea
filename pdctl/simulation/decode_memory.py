"""The KV pages of a simulated decode whose answers may be longer than their headroom (layout/kv_pages.py).

A room that generates has one token more with each step, and so has its headroom until it covers the rest of the answer.
Both are in closed form, as the steps are (decode.py): an event per change of the batch, and none per page.
"""

from __future__ import annotations

from heapq import heappop, heappush

from pdctl.layout.kv_pages import AdmittedPages, pages_for
from pdctl.quick_definitions import NamedTuple


class GrowingPages:
    """The pages of rooms that have one token more with each step, at any step."""

    __slots__ = ("_page", "_rests", "_rooms", "_whole")

    def __init__(self, page_size: int) -> None:
        self._page = page_size
        self._whole = self._rooms = 0
        self._rests = [0] * page_size  # rooms by the tokens that their last page has left at step 0

    def add(self, tokens: int, step: int, rooms: int = 1) -> None:
        """A room that has so many tokens at that step; `rooms` of -1 takes one out again."""
        whole, rest = divmod(tokens - step + self._page - 1, self._page)
        self._whole += rooms * whole
        self._rests[rest] += rooms
        self._rooms += rooms

    def at(self, step: int) -> int:
        whole, rest = divmod(step, self._page)
        return self._whole + self._rooms * whole + sum(self._rests[self._page - rest :])


class _Still(NamedTuple):
    """A room that is admitted and not running yet. `kept`: its pages with its headroom."""

    held: int
    kept: int


class _Running(NamedTuple):
    """A room that had `tokens` at `step`. From `settles` on its headroom ends with its answer: `most` pages in all."""

    tokens: int
    step: int
    settles: int
    most: int


class DecodeMemory:
    """`headroom`: most tokens that are kept ahead of a room. Steps are counted as by RunningRooms and never go back."""

    __slots__ = (
        *("_growing", "_held", "_kept", "_long", "_rooms", "_settled", "_settling", "_still"),
        *("_headroom", "_page"),
    )

    def __init__(self, page_size: int, headroom: int) -> None:
        self._page, self._headroom = page_size, headroom
        self._rooms: dict[int, _Still | _Running] = {}
        self._long: dict[int, int] = {}  # the most pages of rooms that are longer than their headroom
        self._held = self._still = 0  # of rooms that do not run: pages of tokens, and with their headroom
        self._kept = GrowingPages(page_size)  # running rooms, with a headroom that goes with them
        self._settled = 0  # running rooms, with a headroom that ends with the answer
        self._growing = GrowingPages(page_size)  # running rooms, without headroom
        self._settling: list[tuple[int, int]] = []  # heap of (step, room)

    def used(self, step: int) -> int:
        """Pages of all rooms with their headroom."""
        settling = self._settling
        while settling and settling[0][0] <= step:
            settles, room = heappop(settling)
            one = self._rooms.get(room)
            if isinstance(one, _Running) and one.settles == settles:
                self._kept.add(one.tokens + self._headroom, one.step, -1)
                self._settled += one.most
        return self._still + self._settled + self._kept.at(step)

    def admits(self, step: int, pool: int, tokens: int, left: int) -> bool:
        """Whether a room of so many tokens, with `left` more to come, may have its pages out of a pool of `pool`."""
        held = self._held + self._growing.at(step)
        admitted = AdmittedPages(held, self.used(step) - held, max(self._long.values(), default=0))
        wanted = pages_for(tokens + min(left, self._headroom), self._page)
        return wanted <= admitted.left(pool) and admitted.could_finish(pool, pages_for(tokens + left, self._page))

    def admit(self, room: int, tokens: int, left: int) -> None:
        kept = pages_for(tokens + min(left, self._headroom), self._page)
        one = _Still(pages_for(tokens, self._page), kept)
        self._rooms[room] = one
        self._held += one.held
        self._still += one.kept
        if left > self._headroom:
            self._long[room] = pages_for(tokens + left, self._page)

    def run(self, room: int, tokens: int, left: int, step: int) -> None:
        """Let an admitted room have `tokens` at this step, and one more with each that follows."""
        still = self._rooms[room]
        assert isinstance(still, _Still)
        self._held -= still.held
        self._still -= still.kept
        one = _Running(tokens, step, step + max(0, left - self._headroom), pages_for(tokens + left, self._page))
        self._rooms[room] = one
        self._growing.add(tokens, step)
        if one.settles > step:
            self._kept.add(tokens + self._headroom, step)
            heappush(self._settling, (one.settles, room))
        else:
            self._settled += one.most

    def free(self, room: int, step: int) -> None:
        self.used(step)  # what has settled by now
        one = self._rooms.pop(room)
        self._long.pop(room, None)
        if isinstance(one, _Still):
            self._held -= one.held
            self._still -= one.kept
            return
        self._growing.add(one.tokens, one.step, -1)
        if one.settles > step:
            self._kept.add(one.tokens + self._headroom, one.step, -1)
        else:
            self._settled -= one.most

    def is_full(self, step: int, pool: int) -> bool:
        """Whether some room has no page for its token of this step, though all running ones gave up their headroom."""
        return self._still + self._growing.at(step) > pool

    def steps(self, step: int, pool: int, most: int) -> int:
        """How many steps from this one on, at most `most`, find a page for each token. The first does."""
        if not self.is_full(step + most - 1, pool):
            return most
        least = 1  # steps that do; `most` do not
        while most - least > 1:
            middle = (least + most) // 2
            if self.is_full(step + middle - 1, pool):
                most = middle
            else:
                least = middle
        return least
