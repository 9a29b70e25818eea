"""How many requests engines and routers answered, by their access lines: what shows that a deployment served at all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pdctl.engines.sign import Sign
from pdctl.trace.attempts import GENERATES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pdctl.engines.row import Row
    from pdctl.logs.event import Event

ANSWERS = frozenset({Sign.REQUEST_ANSWERED, Sign.REQUEST_LEFT})
COUNTED = ANSWERS | {Sign.STARTED, Sign.READY}


class Served:
    """Counts lines as they pass: instance → requests answered with 200, without the warm-up of its starts.

    An engine sends itself requests before it says that it is ready. In a log that begins later all lines count.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._starting: set[str] = set()

    @property
    def answered(self) -> Mapping[str, int]:
        return dict(self._counts)

    def passing(self, lines: Iterable[Event]) -> Iterator[Event]:
        """All lines but the answers, of which there may be any number. `lines`: log by log, in file order."""
        for event in lines:
            if event.proves(Sign.STARTED):
                self._starting.add(event.instance)
            elif event.proves(Sign.READY):
                self._starting.discard(event.instance)
            elif event.proves(*ANSWERS):
                if event.instance not in self._starting and _generated(event):
                    self._counts[event.instance] += 1
                if not event.row.cause:
                    continue
            yield event


def _generated(event: Event) -> bool:
    """An answer to a request for tokens, not to a question about health or workers."""
    path = event.values.get("path", "").split("?")[0]
    return event.values.get("status") == "200" and path in GENERATES


def wanted(row: Row) -> bool:
    return not COUNTED.isdisjoint(row.proves)
