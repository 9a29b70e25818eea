"""Proof by counting that a room went well, for logs in which success leaves no line of its own.

A decode's book: every request it takes is tokenised and answered, and every room that fails there has a line. Where the
book balances and the decode shows nothing pending, the rooms so far that did not fail have their cache; where every
request has been answered, they are finished. A prefill's book (sglang 0.5.13 and later): it starts one sender for each
bootstrapped room whose request it has. One line too few, and nothing follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.sign import Sign
from pdctl.trace import signs
from pdctl.trace.known import Known

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.glimpses import Glimpse

GENERATES = ("/generate", "/v1/completions", "/v1/chat/completions")


class Ledger:
    """around: all known lines of all logs from their starts on. Rooms found well are marked in `rooms`."""

    def __init__(self, around: Sequence[Event], rooms: Mapping[int, Glimpse], decodes: Iterable[str]) -> None:
        self._rooms = rooms
        self._proofs: dict[int, Known] = {}
        self._senders = dict(_senders(around, rooms))
        for name in decodes:
            self._read(name, [event for event in around if event.instance == name])

    def arrived(self, room: int) -> Known | None:
        return self._proofs.get(room)

    def _read(self, decode: str, lines: Sequence[Event]) -> None:
        """Walk the decode's log; at each balance, the rooms since the last one are settled."""
        begun = next((at for at, event in enumerate(lines) if event.proves(Sign.READY)), None)
        if begun is None:
            return
        mine = [seen for seen in self._rooms.values() if seen.decode == decode]
        written = any(event.proves(Sign.PAGE_LIST_SENDS) for event in lines)
        named: set[int] = set()
        failed: set[int] = set()
        given_up: set[int] = set()  # it told the prefill so; the line that says why may be lost
        took = answered = refused = 0
        for event in lines[begun:]:
            if event.role == "decode" and event.room:
                named.add(event.room)
                if signs.failed(event) and not signs.notice(event):
                    failed.add(event.room)
                elif signs.notice(event):
                    given_up.add(event.room)
            took += tokenised(event)
            if answers(event):
                answered += 1
                refused += event.values.get("status") != "200"
            elif not _nothing_pending(event):
                continue
            # Up to 0.5.18 the decode names each room it sends a page list for; later only its prefills do.
            so_far = named if written else {seen.room for seen in mine if event.t is not None and seen.first <= event.t}
            if not (_nothing_pending(event) or answered == took):
                continue
            if not took or took != len(so_far) or refused != len(failed & so_far):
                continue
            if event.proves(Sign.DRAINED) and answered != took:
                continue  # all has been answered by then: lines are lost
            self._settle(decode, event, so_far - failed - given_up, answered == took)

    def _settle(self, decode: str, proof: Event, good: set[int], all_answered: bool) -> None:
        """The answer of a stream begins before its cache has come: an answered room needs a second sign that it has."""
        for room in good:
            seen = self._rooms.get(room)
            sender = self._senders.get(room)
            if seen is None or sender is None or seen.failed is not None:
                continue
            why = f"all {decode} took is accounted for, nothing was pending, and the prefill had sent its cache"
            self._proofs.setdefault(room, Known(decode, why, (proof, sender)))
            seen.done = seen.done or all_answered


def _senders(around: Sequence[Event], rooms: Mapping[int, Glimpse]) -> Iterator[tuple[int, Event]]:
    """Room → the line that shows a prefill sending its cache: its own, or the start of a sender only it can have."""
    by_rank: dict[tuple[str, str], list[Event]] = {}
    for event in around:
        if event.proves(Sign.CACHE_SENDS) and event.values.get("last") == "1" and event.room:
            yield event.room, event
        elif event.role == "prefill":
            by_rank.setdefault((event.instance, event.rank), []).append(event)
    for (prefill, _), lines in by_rank.items():
        yield from _started(prefill, lines, rooms)


def _started(prefill: str, lines: Sequence[Event], rooms: Mapping[int, Glimpse]) -> Iterator[tuple[int, Event]]:
    """As many senders as rooms that are open and can be theirs: each of those rooms has one."""
    candidates: set[int] = set()
    served: set[int] = set()
    started = 0
    for event in lines:
        room = event.room
        if event.proves(Sign.ROOM_OPENED) and room and room not in served:
            seen = rooms.get(room)
            if seen is None or seen.requested in (None, prefill):
                candidates.add(room)
        elif room in candidates and signs.failed(event):
            candidates.discard(room)
            served.add(room)
        elif event.proves(Sign.SENDER_STARTED):
            started += 1
        if started and started == len(candidates):
            yield from ((one, event) for one in candidates)
            served |= candidates
            candidates, started = set(), 0


def tokenised(event: Event) -> int:
    """How many requests the line says were taken."""
    return numerals.whole(event.values.get("inputs")) or 0 if event.proves(Sign.REQUEST_TOKENIZED) else 0


def answers(event: Event) -> bool:
    """The decode's access log of a request: written when a stream begins, and when any other answer ends."""
    return event.proves(Sign.REQUEST_ANSWERED) and event.values.get("path", "").split("?")[0] in GENERATES


def _nothing_pending(event: Event) -> bool:
    if event.proves(Sign.DRAINED):
        return event.values.get("left") == "0"
    return event.proves(Sign.RUNNING) and event.values.get("prealloc") == event.values.get("transfer") == "0"
