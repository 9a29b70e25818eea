"""What a router did with each request, attempt by attempt, from lines that name requests and pairs but no room.

sglang-router and smg at DEBUG: `PD retry attempt N using prefill=… decode=…`, `Sending concurrent requests`,
`Received concurrent requests`, `Decode response status: …`. At INFO only that a request came and how it was answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.sign import Sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdctl.logs.event import Event

ANSWERING = 600.0  # seconds an answer is taken to stream for at most
MOST = 100  # attempts of one request; no router is told to try so often
GENERATES = ("/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses")


@dataclass(slots=True)
class Attempt:
    """prefill, decode: URLs, "" when no line names them. end None: it never ended in these logs.

    status: the decode's answer, 0 for a connection that broke, None when no line says. lines: what tells of it, in file
    order. listed: a line of its own began it; without one, retries hide in it, and it may stand for several rooms.
    closed: the request ended with it, answered 200. sglang-router 0.3 writes that only when it has read the prefill's
    whole answer, so the prefill was through with the room; of smg nothing follows. lost: stands for attempts whose
    lines are missing in a log that has holes; it can be any room's.
    """

    router: str
    request: str
    number: int
    start: float
    prefill: str = ""
    decode: str = ""
    end: float | None = None
    status: int | None = None
    listed: bool = False
    closed: bool = False
    lost: bool = False
    lines: list[Event] = field(default_factory=list)


class _Request:
    """One request's lines, in file order, as attempts."""

    def __init__(self, first: Event, at: float) -> None:
        self.router, self.id = first.instance, first.values["request_id"]
        # A request whose first lines are cut off began nobody knows when.
        self.came = at if first.proves(Sign.REQUEST_CAME, Sign.PAIR_CHOSEN, Sign.LEGS_SENT) else float("-inf")
        self.attempts: list[Attempt] = []
        self.generates = False
        self.noticed = False  # the line with which it came is there
        self.gone = False  # and the one with which it left

    def hear(self, event: Event, at: float) -> None:
        if event.proves(Sign.REQUEST_CAME):
            self.noticed = True
            self.generates = event.values.get("path", "").split("?")[0] in GENERATES
        elif event.proves(Sign.PAIR_CHOSEN):
            self._choose(event, at)
        elif event.proves(Sign.LEGS_SENT):
            if not self.attempts or self.attempts[-1].end is not None:
                self._open(at, len(self.attempts))
            self._name(event)
        elif event.proves(Sign.ATTEMPT_ENDED):
            self._answer(event, at)
        elif event.proves(Sign.REQUEST_LEFT):
            self.gone = True
            self._leave(event, at)

    def all(self) -> list[Attempt]:
        """At INFO a request that is still open has left no line of an attempt: it is one all the same."""
        if not self.attempts and self.generates:
            self._open(self.came, 0)
        return self.attempts

    def torn(self, last: float | None, *, came: bool, left: bool) -> bool:
        """Lines of it are missing: some always come together. `last`: the stamp of the router's last line.

        came, left: this router writes a line when a request comes, and one when it goes.
        """
        if came and not self.noticed:
            return True
        final = self.attempts[-1] if self.attempts else None
        answered = final.end if final is not None and final.status == 200 else None
        if left and not self.gone and answered is not None and last is not None and last > answered + ANSWERING:
            return True
        for one in self.attempts:
            told = {sign for event in one.lines for sign in event.row.proves}
            ended = last is None or one.start >= last
            if one.listed and not ended and not {Sign.PAIR_CHOSEN, Sign.LEGS_SENT} <= told:
                return True
        listed = [one.listed for one in self.attempts]
        return any(listed) and not all(listed)

    def _choose(self, event: Event, at: float) -> None:
        told = numerals.whole(event.values.get("attempt"), MOST)
        number = len(self.attempts) if told is None else told
        # Attempts whose lines are not there took place all the same; nobody knows with whom.
        while len(self.attempts) < number:
            self._open(self.attempts[-1].end or at if self.attempts else self.came, len(self.attempts))
            self.attempts[-1].end = at
        self._open(at, number)
        self._name(event)

    def _open(self, at: float, number: int) -> None:
        if self.attempts and self.attempts[-1].end is None:
            self.attempts[-1].end = at
        self.attempts.append(Attempt(self.router, self.id, number, at))
        self.generates = True

    def _name(self, event: Event) -> None:
        current = self.attempts[-1]
        current.listed = True
        current.prefill = event.values.get("prefill", current.prefill)
        current.decode = event.values.get("decode", current.decode)
        current.lines.append(event)

    def _answer(self, event: Event, at: float) -> None:
        if not self.attempts:
            self._open(self.came, 0)
        current = self.attempts[-1]
        current.lines.append(event)
        current.end = at if current.end is None else current.end
        status = numerals.whole(event.values.get("leg_status"))
        if status is not None and event.proves(Sign.DECODE_ANSWERED):
            current.status = status
        elif event.proves(Sign.DECODE_LEG_BROKE):
            current.status = 0

    def _leave(self, event: Event, at: float) -> None:
        status = numerals.whole(event.values.get("status"))
        if not self.attempts:
            if not self.generates:
                return
            self._open(self.came, 0)
        current = self.attempts[-1]
        if current.end is not None and not current.listed and current.status != status:
            self._open(current.end, len(self.attempts))  # an answer of another kind: there was a retry
            current = self.attempts[-1]
        current.lines.append(event)
        current.end = at if current.end is None else current.end
        current.status = status if current.status is None else current.status
        current.closed = status == current.status == 200


def attempts(events: Iterable[Event], lasts: Mapping[str, float | None]) -> tuple[Attempt, ...]:
    """All attempts in `events` of routers, in the order they began. Requests without a time or a name are left out.

    lasts: router → the stamp of its log's last line.
    """
    requests: dict[tuple[str, str], _Request] = {}
    for event in events:
        name = event.values.get("request_id")
        if not name or event.t is None or event.role != "router":
            continue
        key = (event.instance, name)
        if key not in requests:
            requests[key] = _Request(event, event.t)
        requests[key].hear(event, event.t)
    found: list[Attempt] = []
    for request in requests.values():
        found.extend(request.all())
    came = {request.router for request in requests.values() if request.noticed}
    left = {request.router for request in requests.values() if request.gone}
    torn = {
        request.router
        for request in requests.values()
        if request.torn(lasts.get(request.router), came=request.router in came, left=request.router in left)
    }
    found.extend(lost(router) for router in sorted(torn))
    return tuple(sorted(found, key=lambda attempt: attempt.start))


def lost(router: str, since: float = float("-inf"), until: float | None = None) -> Attempt:
    """What its log may lack: attempts begun in [since, until]."""
    return Attempt(router, "", 0, since, end=until, lost=True)
