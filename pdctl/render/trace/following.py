"""Show a room while it happens: each new line once, until the room has ended or the time is up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pdctl.logs.source import growing
from pdctl.render.trace import wording
from pdctl.render.trace.wording import escape_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.logs.source import Log
    from pdctl.render.term import Term
    from pdctl.trace.room import Room, RoomStep

OVER = frozenset({"ok", "failed", "retried", "aborted", "refused"})


class RoomFollower:
    """open_: returns the logs as they are now. read: returns the room in them, None while no line names it.

    term None: nothing is shown before the end. room: what is known so far.
    """

    def __init__(
        self, open_: Callable[[], tuple[Log, ...]], read: Callable[[tuple[Log, ...]], Room | None], term: Term | None
    ) -> None:
        self.room: Room | None = None
        self._open, self._read, self._term = open_, read, term
        self._shown: set[tuple[str, int]] = set()

    def run(self, limit: float) -> Room | None:
        """Follow for at most `limit` seconds; return the room, None if no line named it."""
        for logs in growing(self._open, limit, sleep=time.sleep if self._term is None else self._term.sleep):
            self.room = self._read(logs) or self.room
            self._show()
            if self.room is not None and self.room.outcome.value in OVER:
                break
        if self._term is not None and self._shown:
            self._term.write()
        return self.room

    def _show(self) -> None:
        if self._term is None or self.room is None:
            return
        for step in escape_all(self.room, self._term).events:
            if (step.file, step.line) not in self._shown:
                self._shown.add((step.file, step.line))
                self._term.write(_line(step, self._term))
        self._term.flush()


def _line(step: RoomStep, term: Term) -> str:
    when = f"{wording.exact(step.delta_s, step.uncertainty_s)} {wording.doubt(step.uncertainty_s)}"
    when = when.strip().replace("±", term.symbol("±", "+-"))
    phase = step.phase.value.replace("_", " ") if step.phase else ""
    who = f"{step.instance} {step.rank}".rstrip()
    place = f"{step.file}:{step.line}"
    return f"{when:>9}  {who}  {phase}  {step.text}  {term.style(place, 'dim')}"
