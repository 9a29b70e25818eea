"""Which answers every possible assignment agrees on: rooms on one side, the router's dispatches on the other.

The router's log names pairs but no room, the engines' logs name rooms but no request. Clocks and statuses leave each
room a few dispatches that can be its own, and no dispatch has two rooms. What holds in every assignment that is left
is known; what differs between two of them is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Assignments:
    """All ways to give each of `rooms` one of its dispatches, none of them twice. A dispatch may stay over."""

    def __init__(self, rooms: Mapping[int, Sequence[int]]) -> None:
        self._rooms = rooms
        self._held: dict[int, int] = {}  # dispatch → room, one largest assignment
        for room in rooms:
            self._place(room)
        short = set(rooms) - set(self._held.values())
        # A group that cannot serve all its rooms lacks a dispatch: nothing follows for any of them.
        self._lost = self._group(short)
        # Room → rooms that could take its dispatch, and rooms that could move to one nobody has.
        self._takers: dict[int, list[int]] = {}
        self._movable: list[int] = []
        for room, choices in rooms.items():
            for dispatch in choices:
                if dispatch in self._held:
                    self._takers.setdefault(self._held[dispatch], []).append(room)
                else:
                    self._movable.append(room)

    def choices(self, room: int) -> frozenset[int]:
        """The dispatches `room` has in at least one assignment; empty when its group cannot be served."""
        if room in self._lost:
            return frozenset()
        # Whoever stands in the way can step aside if a chain of moves leads to a free dispatch or to this room's own.
        aside = self._chain((*self._movable, room))
        return frozenset(d for d in self._rooms[room] if d not in self._held or self._held[d] in aside)

    def _chain(self, ends: Iterable[int]) -> set[int]:
        found = set(ends)
        todo = list(found)
        while todo:
            fresh = [room for room in self._takers.get(todo.pop(), ()) if room not in found]
            found.update(fresh)
            todo.extend(fresh)
        return found

    def _place(self, room: int) -> None:
        """Find `room` a dispatch, moving others where that helps (an augmenting path, walked without recursion)."""
        seen: set[int] = set()
        trail: list[tuple[int, int]] = []  # (room that wants, dispatch it would take)
        wanting = [(room, iter(self._rooms[room]))]
        while wanting:
            who, choices = wanting[-1]
            found = next((dispatch for dispatch in choices if dispatch not in seen), None)
            if found is None:
                wanting.pop()
                if trail:
                    trail.pop()
                continue
            seen.add(found)
            trail.append((who, found))
            if found not in self._held:
                self._held.update({taken: taker for taker, taken in trail})
                return
            holder = self._held[found]
            wanting.append((holder, iter(self._rooms[holder])))

    def _group(self, start: set[int]) -> set[int]:
        """All rooms that share a dispatch, directly or through others, with one of `start`."""
        by_dispatch: dict[int, list[int]] = {}
        for room, choices in self._rooms.items():
            for dispatch in choices:
                by_dispatch.setdefault(dispatch, []).append(room)
        found, todo = set(start), list(start)
        while todo:
            for dispatch in self._rooms[todo.pop()]:
                fresh = [other for other in by_dispatch.pop(dispatch, ()) if other not in found]
                found.update(fresh)
                todo.extend(fresh)
        return found
