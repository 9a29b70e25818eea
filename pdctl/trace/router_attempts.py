"""What routers did with each request, attempt by attempt, and the attempts their logs may lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.base import Sign
from pdctl.trace.room_events import GENERATES, counts_as_answer

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.logs.library import Library
    from pdctl.logs.source import Log
    from pdctl.trace.observed_deployment import ObservedDeployment, ObservedInstance

HEAD_LINES = 200  # lines searched for the first stamp of a log
ANSWERING = 600.0  # seconds an answer is assumed to stream at most
MOST_ATTEMPTS = 100  # attempts of one request; no router is configured to try so often


def possible_attempts(
    around: Sequence[Event],
    deployment: ObservedDeployment,
    begins: Mapping[str, float | None],
    incomplete: Container[str] = (),
    *,
    whole: bool,
) -> tuple[RouterAttempt, ...]:
    """All attempts in `around`, and those that may be missing. begins: router → epoch seconds of its log's first line.

    incomplete: routers whose logs have truncated lines, so that other lines may be missing.

    whole: `around` covers the logs completely, so attempts can be checked against what the engines answered.
    """
    routers = [one for one in deployment.instances.values() if one.role == "router"]
    found = logged_attempts(around, {one.name: one.last for one in routers})
    missing = [each for one in routers for each in _outside(one, begins.get(one.name))]
    missing += [unlogged_attempt(one.name) for one in routers if one.name in incomplete]
    if whole and not any(one.lost for one in found):
        missing += [unlogged_attempt(one.name) for one in routers if _outnumbered(one, found, around, deployment)]
    return tuple(sorted((*found, *missing), key=lambda attempt: attempt.start))


def first_stamp(library: Library, log: Log) -> float | None:
    """The earliest stamp among the log's first lines, epoch seconds; None if none of them has one."""
    beginning = library.sample(log).head[:HEAD_LINES]
    times = [instant.t for line in beginning if (instant := library.instant(log, line)) is not None]
    return min(times, default=None)


def _outside(router: ObservedInstance, begun: float | None) -> Iterator[RouterAttempt]:
    """Unlogged attempts before the first line, unless that is the router's start, and after the last line."""
    started = begun is not None and any(abs(start - begun) <= 1.0 for start in router.started)
    if not started:
        yield unlogged_attempt(router.name, until=begun)
    if router.last is not None and not router.clean:
        yield unlogged_attempt(router.name, since=router.last)


def _outnumbered(
    router: ObservedInstance, found: Sequence[RouterAttempt], around: Iterable[Event], deployment: ObservedDeployment
) -> bool:
    """Whether an engine answered more requests since its start than the attempts the router's log shows for it."""
    mine = [one for one in found if one.router == router.name]
    if not mine or not all(one.listed for one in mine):
        return False  # at INFO the router names no pair
    answered: dict[str, int] = {}
    for event in around:
        if event.proves(Sign.READY) or event.proves(Sign.STARTED):
            answered[event.instance] = 0  # earlier answers were its own warm-up
        elif counts_as_answer(event):
            answered[event.instance] = answered.get(event.instance, 0) + 1
    for engine in (*deployment.prefills, *deployment.decodes):
        sent = sum(1 for one in mine for url in (one.prefill, one.decode) if deployment.at_url(url) in (engine, None))
        if answered.get(engine.name, 0) > sent:
            return True
    return False


class RouterAttempt:
    """prefill, decode: URLs, "" if no line names them. start, end: epoch seconds; end None: no end in these logs.

    status: the decode's answer, 0 for a broken connection, None if no line says. lines: the lines about it, in file
    order. listed: its own line began it; otherwise it may hide retries and stand for several rooms.
    closed: the request ended with it, answered 200. sglang-router 0.3 logs that only after it has read the prefill's
    whole answer, so the prefill was done with the room; for smg nothing follows. lost: stands for attempts whose
    lines are missing from an incomplete log; it can be any room's.
    """

    def __init__(
        self, router: str, request: str, number: int, start: float, end: float | None = None, lost: bool = False
    ) -> None:
        self.router, self.request, self.number = router, request, number
        self.start, self.end, self.lost = start, end, lost
        self.prefill = self.decode = ""
        self.status: int | None = None
        self.listed = self.closed = False
        self.lines: list[Event] = []


class _Request:
    """Turns one request's lines, fed in file order, into attempts."""

    def __init__(self, first: Event, at: float) -> None:
        self.router, self.id = first.instance, first.values["request_id"]
        # If the first lines of a request are cut off, its beginning is unknown.
        self.came = at if first.proves(Sign.REQUEST_CAME, Sign.PAIR_CHOSEN, Sign.LEGS_SENT) else float("-inf")
        self.attempts: list[RouterAttempt] = []
        self.generates = False
        self.noticed = False  # the line of its arrival is there
        self.gone = False  # and the one of its end

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

    def all(self) -> list[RouterAttempt]:
        """All attempts; at INFO a request still open has no line of an attempt, but counts as one."""
        if not self.attempts and self.generates:
            self._open(self.came, 0)
        return self.attempts

    def incomplete(self, last: float | None, *, came: bool, left: bool) -> bool:
        """Whether lines of it are missing: some always come together. last: epoch seconds of the router's last line.

        came, left: whether this router logs when a request arrives, and when it ends.
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
        told = numerals.whole(event.values.get("attempt"), MOST_ATTEMPTS)
        number = len(self.attempts) if told is None else told
        # Attempts without lines took place all the same, with an unknown pair.
        while len(self.attempts) < number:
            self._open(self.attempts[-1].end or at if self.attempts else self.came, len(self.attempts))
            self.attempts[-1].end = at
        self._open(at, number)
        self._name(event)

    def _open(self, at: float, number: int) -> None:
        if self.attempts and self.attempts[-1].end is None:
            self.attempts[-1].end = at
        self.attempts.append(RouterAttempt(self.router, self.id, number, at))
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
            self._open(current.end, len(self.attempts))  # a different status: there was a retry
            current = self.attempts[-1]
        current.lines.append(event)
        current.end = at if current.end is None else current.end
        current.status = status if current.status is None else current.status
        current.closed = status == current.status == 200


def logged_attempts(events: Iterable[Event], lasts: Mapping[str, float | None]) -> tuple[RouterAttempt, ...]:
    """All attempts in the routers' `events`, in the order they began. Lines without a time or a request id are ignored.

    lasts: router → epoch seconds of its log's last line.
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
    found: list[RouterAttempt] = []
    for request in requests.values():
        found.extend(request.all())
    came = {request.router for request in requests.values() if request.noticed}
    left = {request.router for request in requests.values() if request.gone}
    incomplete = {
        request.router
        for request in requests.values()
        if request.incomplete(lasts.get(request.router), came=request.router in came, left=request.router in left)
    }
    found.extend(unlogged_attempt(router) for router in sorted(incomplete))
    return tuple(sorted(found, key=lambda attempt: attempt.start))


def unlogged_attempt(router: str, since: float = float("-inf"), until: float | None = None) -> RouterAttempt:
    """Stands for attempts begun in [since, until] (epoch seconds) that the router's log may lack."""
    return RouterAttempt(router, "", 0, since, end=until, lost=True)
