"""Which replica gets which order, so that a decision is carried out: the cheapest means first (docs/elastic.md).

For one role up: a drain is cancelled, else a parked replica is used again, else one of a role that is to shrink changes
its role where it stands, else an inactive one loads the weights. For one role down: idle decodes are parked, else the
replica with the least to finish is drained. Each order is legal, and its guard holds, after those before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple
from pdctl.replica.states import ReplicaState
from pdctl.replica.transitions import ReplicaEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.policy.decision import Decision


class ReplicaView(NamedTuple):
    """What the choice of a replica looks at. `replica`: its number, which comes back in the order."""

    replica: int
    used_blocks: int = 0
    idle: bool = False  # nothing is in it or on the way into it; of a failed one: what it had is taken care of
    sending: bool = False  # it sends its weights to another
    beside_weights: bool = False  # of an inactive one: its machine has the weights, on a replica or in host memory
    parked_s: float = 0.0  # how long it has been parked


class FleetView(NamedTuple):
    """A fleet by state; states without a replica may be missing. The order within a state breaks ties.

    Of the inactive ones no more need be there than replicas are wanted.
    """

    replicas: Mapping[ReplicaState, Sequence[ReplicaView]]
    weights_available: bool = True  # a replica, host memory or disk can send them
    live: bool = False  # a prefill that loads may compute with the layers it has
    decode_scarce: bool = False  # a migration found no decode that had room and a free lock
    park_s: float = 0.333  # a replica that has been parked for longer is unloaded
    flips: bool = True  # a replica may change its role where it stands

    def of(self, *states: ReplicaState) -> list[ReplicaView]:
        return [one for state in states for one in self.replicas.get(state, ())]


class ReplicaOrder(NamedTuple):
    replica: int
    event: ReplicaEvent


def plan_orders(decision: Decision, view: FleetView) -> tuple[ReplicaOrder, ...]:
    """The orders that carry a decision out, as far as there are replicas; the next decision asks for the rest."""
    return tuple(_OrderSearch(decision, view).make())


class _OrderSearch:
    """What is still wanted of each role, and the replicas that are still to be had, while orders are given."""

    def __init__(self, decision: Decision, view: FleetView) -> None:
        self.view = view
        self.prefills, self.decodes = decision.prefill_delta, decision.decode_delta
        # Those in the plain state of their role, the best victim first: least to finish, and nobody's source.
        self.plain_prefills = sorted(view.of(ReplicaState.PREFILL), key=_victim)
        self.plain_decodes = sorted(view.of(ReplicaState.DECODE), key=_victim)
        self.parked = sorted(view.of(ReplicaState.SHUTTING_NULL), key=lambda one: one.parked_s)
        self.inactive = sorted(view.of(ReplicaState.INACTIVE), key=lambda one: not one.beside_weights)

    def make(self) -> Iterator[ReplicaOrder]:
        yield from (order(one, ReplicaEvent.RESET) for one in self.view.of(ReplicaState.FAILED) if one.idle)
        yield from self._cancel_drains()
        yield from self._use_parked()
        flips = list(self._flip())
        yield from flips
        yield from self._load()
        if not flips:  # one disruptive change of a role at a time
            yield from self._leave()
        for one in self.parked:
            if one.parked_s > self.view.park_s and not one.sending:
                yield order(one, ReplicaEvent.UNLOAD)

    def _cancel_drains(self) -> Iterator[ReplicaOrder]:
        """Those that have the most left to finish come back: the others are about to be parked."""
        for one in _fullest(self.view.of(ReplicaState.SHUTTING_DECODE), self.decodes):
            self.decodes -= 1
            yield order(one, ReplicaEvent.CANCEL_DRAIN)
        for one in _fullest(self.view.of(ReplicaState.MUTATING_TO_PREFILL), min(self.decodes, -self.prefills)):
            self.decodes -= 1
            self.prefills += 1
            yield order(one, ReplicaEvent.CANCEL_DRAIN)
        for one in _fullest(self.view.of(ReplicaState.SHUTTING_PREFILL), self.prefills):
            self.prefills -= 1
            yield order(one, ReplicaEvent.CANCEL_DRAIN)

    def _use_parked(self) -> Iterator[ReplicaOrder]:
        """In turn, a decode first; the one parked last is the one that would be unloaded last."""
        decode_next = True
        while self.parked and (self.prefills > 0 or self.decodes > 0):
            one = self.parked.pop(0)
            if self.decodes > 0 and (decode_next or self.prefills <= 0):
                self.decodes -= 1
                yield order(one, ReplicaEvent.REUSE_AS_DECODE)
            else:
                self.prefills -= 1
                yield order(one, ReplicaEvent.REUSE_AS_PREFILL)
            decode_next = not decode_next

    def _flip(self) -> Iterator[ReplicaOrder]:
        if not self.view.flips:
            return
        while self.decodes > 0 > self.prefills and len(self.plain_prefills) > 1:
            self.decodes -= 1
            self.prefills += 1
            yield order(self.plain_prefills.pop(0), ReplicaEvent.MUTATE_TO_DECODE)
        while self.prefills > 0 > self.decodes and len(self.plain_decodes) > 1:
            self.prefills -= 1
            self.decodes += 1
            yield order(self.plain_decodes.pop(0), ReplicaEvent.MUTATE_TO_PREFILL)

    def _load(self) -> Iterator[ReplicaOrder]:
        """Inactive replicas load, in turn, a decode first; a live prefill gets the least loaded one as its old."""
        if not self.view.weights_available:
            return
        decode_next = True
        while self.inactive and (self.prefills > 0 or self.decodes > 0):
            one = self.inactive.pop(0)
            if self.decodes > 0 and (decode_next or self.prefills <= 0):
                self.decodes -= 1
                yield order(one, ReplicaEvent.LOAD_DECODE)
            elif self.view.live and self.plain_prefills:
                self.prefills -= 1
                yield order(one, ReplicaEvent.LOAD_LIVE)
                yield order(self.plain_prefills.pop(0), ReplicaEvent.PAIR_AS_OLD)
            else:
                self.prefills -= 1
                yield order(one, ReplicaEvent.LOAD_PREFILL)
            decode_next = not decode_next

    def _leave(self) -> Iterator[ReplicaOrder]:
        """Idle decodes leave at once, however many; of those that have work one of a role leaves at a time."""
        idle = (
            [] if self.view.decode_scarce else [one for one in self.plain_decodes if one.idle and not one.used_blocks]
        )
        for one in idle:
            if self.decodes >= 0 or len(self.plain_decodes) < 2:
                break
            self.decodes += 1
            self.plain_decodes.remove(one)
            yield order(one, ReplicaEvent.PARK)
        for wanted, plain in ((self.decodes, self.plain_decodes), (self.prefills, self.plain_prefills)):
            if wanted < 0 and len(plain) > 1:
                yield order(plain.pop(0), ReplicaEvent.DRAIN)


def order(one: ReplicaView, event: ReplicaEvent) -> ReplicaOrder:
    return ReplicaOrder(one.replica, event)


def _victim(one: ReplicaView) -> tuple[bool, bool, int]:
    """A source cannot be unloaded before its load has ended, so that another leaves sooner."""
    return one.sending, not one.idle, one.used_blocks


def _fullest(replicas: Iterable[ReplicaView], count: int) -> list[ReplicaView]:
    return sorted(replicas, key=lambda one: -one.used_blocks)[: max(0, count)]
