"""A room and the router's attempt that made it: joined by time, status and place, and only where all joins agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pdctl.engines.adapters import adapter
from pdctl.trace.matching import Assignments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.trace.attempts import Attempt
    from pdctl.trace.deployment import Deployment
    from pdctl.trace.glimpses import Glimpse

Value = TypeVar("Value")

# From the router's dispatch to the room's first line of an engine: the queue in front of the first line is bounded by
# the timeouts of bootstrap and transfer (300 s each by default, sglang 0.5.3 … 0.5.23).
PATIENCE = 330.0


class Joined(NamedTuple):
    """attempts: all the room can be. prefill, decode: URLs all of them name, else None. closed: all ended well."""

    attempts: tuple[Attempt, ...]
    prefill: str | None
    decode: str | None
    closed: bool


NOTHING = Joined((), None, None, False)


class Joins:
    """`slack`: seconds two clocks may differ, 0 on one host."""

    def __init__(
        self, rooms: Mapping[int, Glimpse], attempts: Sequence[Attempt], deployment: Deployment, slack: float = 0.0
    ) -> None:
        self._deployment = deployment
        self._slack = slack
        self._attempts = list(attempts)
        choices: dict[int, list[int]] = {}
        for room, seen in rooms.items():
            choices[room] = [at for at, attempt in enumerate(attempts) if self._fits(seen, attempt)]
        # An attempt that may hide retries can be any number of rooms: each gets a copy of its own.
        self._copies: dict[int, int] = {}
        self._assignments = Assignments({room: self._own(found) for room, found in choices.items()})

    def of(self, room: int) -> Joined:
        found = tuple(self._attempts[self._copies.get(at, at)] for at in sorted(self._assignments.choices(room)))
        if not found:
            return NOTHING
        prefills = {self._prefill(attempt) for attempt in found}
        decodes = {attempt.decode or None for attempt in found}
        return Joined(found, _only(prefills), _only(decodes), all(map(self._closed, found)))

    def _own(self, choices: Sequence[int]) -> list[int]:
        own = []
        for at in choices:
            copy = at
            if not self._attempts[at].listed:
                copy = -1 - len(self._copies)
                self._copies[copy] = at
            own.append(copy)
        return own

    def _prefill(self, attempt: Attempt) -> str | None:
        """As logged, or the only one the router has."""
        if attempt.prefill:
            return attempt.prefill
        lists = [one for starts in self._deployment.history for one in starts if one.name == attempt.router]
        if len(lists) != 1 or lists[0].cut or len(lists[0].prefills) != 1:
            return None
        return lists[0].prefills[0].url

    def _closed(self, attempt: Attempt) -> bool:
        router = self._deployment.instances.get(attempt.router)
        known = adapter(router.identity.speaker) if router is not None else None
        return known is not None and known.reads_prefill and attempt.listed and attempt.closed

    def _fits(self, room: Glimpse, attempt: Attempt) -> bool:
        """The room's lines fall into the attempt's time, on its decode, and end as it did."""
        latest = room.first + room.coarse + self._slack
        if attempt.lost:
            until = float("inf") if attempt.end is None else attempt.end
            return attempt.start < latest and not (room.early and room.first - until > PATIENCE)
        if not attempt.start < latest or (room.early and room.first - attempt.start > PATIENCE):
            return False
        if attempt.end is not None:
            over = attempt.end + 1.0 + self._slack
            if (room.early and room.first >= over) or (room.failed is not None and room.failed >= over):
                return False
        if attempt.listed and attempt.status is not None:
            if attempt.status == 200 and room.failed is not None:
                return False
            if attempt.status != 200 and room.done:
                return False
        return self._same(room.decode, attempt.decode) and self._same(room.requested, attempt.prefill)

    def _same(self, instance: str | None, url: str) -> bool:
        if instance is None or not url:
            return True
        owner = self._deployment.at_url(url)
        return owner is None or owner.name == instance


def _only(values: set[Value | None]) -> Value | None:
    return next(iter(values)) if len(values) == 1 else None
