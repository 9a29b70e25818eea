"""Everything the causes look at: the room's lines, who had it, what happened around it; and what a cause says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pdctl.engines.sglang.http import FAKE_HOST
from pdctl.engines.sign import Phase, Sign
from pdctl.trace import signs
from pdctl.trace.deaths import crashes, deaths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.attribution import Attribution
    from pdctl.trace.deaths import Death
    from pdctl.trace.deployment import Deployment, Instance
    from pdctl.trace.glimpses import Glimpse
    from pdctl.trace.joins import Joined
    from pdctl.trace.known import Known
    from pdctl.trace.story import Story
    from pdctl.trace.unfinished import Doubt
    from pdctl.trace.upstreams import Router

NEAR = 2.0  # seconds: lines of one failure on one host, each second rounded down


@dataclass(frozen=True, slots=True)
class Proof:
    """A line, and what it proves."""

    says: str
    event: Event


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause that fits. fills: the words its catalogue entry leaves open. fix "": the entry's own.

    asked: the prefill that had the request, by elimination, where this cause leaves only one.
    """

    code: str
    side: str
    why: str
    proofs: tuple[Proof, ...]
    instance: str = ""
    fills: Mapping[str, str] = field(default_factory=dict)
    fix: str = ""
    asked: Known | None = None


class Case:
    """One room on trial. around: every known line of every log from its beginning to its end, and a little more.

    doubts: when its decode cut answers short, of which no line tells whose.
    """

    def __init__(
        self,
        story: Story,
        who: Attribution,
        deployment: Deployment,
        around: Sequence[Event],
        joined: Joined,
        glimpse: Glimpse | None = None,
        doubts: Sequence[Doubt] = (),
    ) -> None:
        self.story = story
        self.who = who
        self.deployment = deployment
        self.around = around
        self.joined = joined
        self.warm_up = warm_up(story, deployment)
        self.counted = glimpse is not None and glimpse.done
        self._doubts = doubts
        self.decode_failed = signs.failed_on(story.events, "decode")
        self.prefill_failed = signs.failed_on(story.events, "prefill")

    @cached_property
    def done(self) -> Event | None:
        """The line that shows the answer was complete: the decode's or the router's, or the end of a count."""
        said = next((event for event in self.story.by("router") if event.row.phase is Phase.FINISHED), None)
        if said is not None or self.failed or self.who.crossed:
            return None if self.failed or self.who.crossed else said
        decode = self.story.by("decode")
        for event in decode:
            if event.proves(Sign.REQUEST_FINISHED):
                return event if signs.answered(event) else None
        if self.who.arrived is None or not self.who.arrived.events:
            return None
        proof = self.who.arrived.events[0]
        if not proof.proves(Sign.CACHE_ARRIVED):
            return proof if (self.counted or self.joined.closed) and not self._doubtful else None
        # The times of a request are logged when it was cut short, too; with --log-requests its answer is as well.
        instance = self.deployment.instances.get(proof.instance)
        told = bool(instance and instance.identity.log_requests)
        told = told or any(event.proves(Sign.REQUEST_ARRIVED) for event in decode)
        return proof if proof.proves(Sign.DECODE_TIMES) and not told else None

    @property
    def _doubtful(self) -> bool:
        """Its answer had begun, and may be the one that was cut short."""
        span, decode = self.story.span, self.who.decode
        if span is None or decode is None:
            return False
        mine = [doubt for doubt in self._doubts if doubt.decode == decode.value]
        return any(doubt.since <= span[1] and span[0] <= doubt.until for doubt in mine)

    @property
    def failed(self) -> bool:
        return self.decode_failed is not None or self.prefill_failed is not None

    @cached_property
    def deaths(self) -> Mapping[str, Death]:
        return deaths(self.deployment, self.around, self.story.span[1] if self.story.span else None)

    @cached_property
    def decode(self) -> Instance | None:
        """The decode that had the room, or the only one it can have been."""
        if self.who.decode is not None:
            return self.deployment.instances.get(self.who.decode.value)
        url = self.joined.decode
        if url is not None:
            return self.deployment.at_url(url)
        decodes, routers = self.deployment.decodes, self.deployment.routers
        if len(decodes) != 1 or any(len(router.decodes) != 1 for router in routers):
            return None
        # Without a router's list there may be others; a crash in the log of the one that is here is another matter.
        return decodes[0] if routers or any(map(crashes, decodes[0].final)) else None

    @cached_property
    def prefill(self) -> Instance | None:
        """The prefill that had the request, or the one the router sent it to."""
        if self.who.requested is not None:
            return self.deployment.instances.get(self.who.requested.value)
        if self.who.url is not None:
            return self.deployment.at_url(self.who.url)
        return None

    @property
    def router(self) -> Router | None:
        return self.deployment.routers[0] if len(self.deployment.routers) == 1 else None

    def with_requested(self, asked: Known) -> Case:
        """The same room, its request with `asked`."""
        who = replace(self.who, requested=asked)
        case = Case(self.story, who, self.deployment, self.around, self.joined, None, self._doubts)
        case.counted = self.counted
        return case

    def lines(self, instance: str, signs: Iterable[Sign], since: float, until: float) -> list[Event]:
        """Known lines of one instance that prove one of these, in [since, until]."""
        wanted = tuple(signs)
        return [
            event
            for event in self.around
            if event.instance == instance
            and event.proves(*wanted)
            and event.t is not None
            and since <= event.t <= until
        ]


def warm_up(story: Story, deployment: Deployment) -> bool:
    """A request of the engines themselves or of a probe, with a peer that is not there; no line shows a real one."""
    hosts = {
        event.values["host"] for event in story.events if event.proves(Sign.REQUEST_ARRIVED) and "host" in event.values
    }
    if story.room not in deployment.warm_ups and FAKE_HOST not in hosts:
        return False
    real = (
        event.proves(Sign.PAGE_LIST_SENDS) or signs.contacted(event) or (signs.failed(event) and event.room is not None)
        for event in story.events
    )
    return hosts <= {FAKE_HOST} and not any(real)
