"""A small fleet of replicas that batches go through, driven by `advance` alone, and what must hold after each step.

The invariants V3, V5, V6, V11, V12 and V16 of docs/elastic.md stand here as functions of a fleet. The model is coarse:
a batch is computed or decoded in a turn or two, a transfer has a beginning and an end, the ingress lock is first come,
first served.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from pdctl.replica.states import STATES, CountsAs, IngressLock, ReplicaState, Weights
from pdctl.replica.transitions import (
    GuardFacts,
    GuardRefused,
    IllegalTransition,
    LockEffect,
    ReplicaEvent,
    Transition,
    Trigger,
    advance,
    transitions_from,
)

LAYERS = 12
FAULTS = 0.1  # how many of the faults that are drawn happen
ILLEGAL = 0.2  # how many orders are drawn from all there are
LOADS = (ReplicaState.NEW_PREFILL, ReplicaState.REFRACTORY_PREFILL)
SELF = -1  # the lock's owner is the replica itself
FROM_OUTSIDE = [event for event in ReplicaEvent if event.trigger in (Trigger.PLANNER, Trigger.FAULT)]
LEGAL = {state: [row.event for row in transitions_from(state)] for state in ReplicaState}
OWN = {state: [event for event in events if event not in FROM_OUTSIDE] for state, events in LEGAL.items()}
ORDERS = {state: [event for event in events if event in FROM_OUTSIDE] for state, events in LEGAL.items()}


@dataclass
class Replica:
    name: int
    state: ReplicaState = ReplicaState.INACTIVE
    layers: int = 0
    lock_owner: int | None = SELF  # a sender's name, SELF, or nobody
    lock_pending: bool = False
    running: deque[int] = field(default_factory=deque)
    inbox: deque[int] = field(default_factory=deque)
    waiting: deque[int] = field(default_factory=deque)  # batches that wait for a decode
    sending: tuple[int, int] | None = None  # (batch, decode)
    parked: deque[int] = field(default_factory=deque)
    relay_empty: bool = False
    source: int | None = None  # of its weights
    paired: bool = False  # a live load for which a prefill has become an old one: any, they are counted only

    @property
    def unfinished(self) -> int:
        return len(self.waiting) + (self.sending is not None)

    @property
    def blocks(self) -> int:
        """One for each batch, as a sender charges it before it begins to send."""
        arriving = self.lock_owner not in (None, SELF)
        return len(self.running) + len(self.inbox) + len(self.parked) + self.unfinished + arriving


class Fleet:
    def __init__(self, size: int, rng: random.Random) -> None:
        self.rng = rng
        self.replicas = [Replica(name) for name in range(size)]
        self.queue: deque[int] = deque()
        self.submitted = 0
        self.computed: set[int] = set()  # batches whose prompt is computed, and which have its KV cache somewhere
        self.ended: Counter[int] = Counter()
        self.credit = 0
        self.scarce = False
        self.taken: Counter[tuple[ReplicaState, ReplicaEvent]] = Counter()
        self.refused: Counter[str] = Counter()
        for name, event in enumerate((ReplicaEvent.LOAD_PREFILL, ReplicaEvent.LOAD_DECODE)):
            self.order(name, event)

    # What guards may ask.

    def facts(self, replica: Replica) -> GuardFacts:
        role = ReplicaState.DECODE if replica.state is ReplicaState.DECODE else ReplicaState.PREFILL
        return GuardFacts(
            running_rooms=len(replica.running),
            inbox=len(replica.inbox),
            unfinished_migrations=replica.unfinished,
            used_blocks=replica.blocks,
            parked_batches=len(replica.parked),
            lock_held=replica.lock_owner == SELF,
            lock_pending=replica.lock_pending,
            lock_with_sender=replica.lock_owner not in (None, SELF),
            layers_loaded=replica.layers == LAYERS,
            source_available=True,  # host memory, if no replica has them
            sending_parameters=any(one.source == replica.name for one in self.replicas),
            relay_empty=replica.relay_empty,
            unpaired_loads=len(self.unpaired()),
            credit=self.credit,
            normal_peers=sum(one.state is role and one is not replica for one in self.replicas),
            decode_scarce=self.scarce,
        )

    def unpaired(self) -> list[Replica]:
        return [one for one in self.replicas if one.state in LOADS and not one.paired]

    def paired(self) -> list[Replica]:
        return [one for one in self.replicas if one.paired]

    # Events.

    def order(self, name: int, event: ReplicaEvent) -> bool:
        """Let `event` happen to a replica if it is legal there and its guard holds; check the whole fleet then."""
        before = self.serving()
        row = self.happen(self.replicas[name], event)
        if row is None:
            return False
        if event.trigger is Trigger.PLANNER:
            check_role_stays(before, self.serving(), row)
        check_all(self)
        return True

    def happen(self, replica: Replica, event: ReplicaEvent) -> Transition | None:
        try:
            row = advance(replica.state, event, self.facts(replica))
        except (IllegalTransition, GuardRefused) as error:
            self.refused[type(error).__name__] += 1
            return None
        self.taken[row.source, row.event] += 1
        self.perform(replica, row)
        return row

    def perform(self, replica: Replica, row: Transition) -> None:
        if row.lock is LockEffect.TAKE or (row.lock is LockEffect.TAKE_WHEN_FREE and replica.lock_owner is None):
            assert replica.lock_owner is None, "TAKE: the guard promised that nobody has it"
            replica.lock_owner = SELF
        elif row.lock is LockEffect.TAKE_WHEN_FREE:
            replica.lock_pending = replica.lock_owner != SELF
        elif row.lock is LockEffect.RELEASE:
            replica.lock_pending = False
            replica.lock_owner = None if replica.lock_owner == SELF else replica.lock_owner
        was, replica.state = replica.state, row.target
        if row.target is ReplicaState.FAILED:
            self.tell_others(replica, was)
        elif row.event is ReplicaEvent.SOURCE_LOST or was is ReplicaState.INACTIVE:
            replica.source = self.find_source(replica)
        elif row.event is ReplicaEvent.LOADED:
            replica.source = None
        elif row.event is ReplicaEvent.UNLOAD:
            replica.layers = 0
        elif row.event is ReplicaEvent.PAIR_AS_OLD:
            self.unpaired()[0].paired = True
            replica.relay_empty = False
        elif row.event is ReplicaEvent.FLUSHED:
            replica.inbox.extend(replica.waiting)  # what is on the way goes on
            replica.waiting.clear()
        elif row.event is ReplicaEvent.RELAY_ENDED and was is ReplicaState.OLD_PREFILL:
            self.credit -= 1
        elif row.event is ReplicaEvent.RELAY_ENDED:
            self.end_load(replica)

    def end_load(self, replica: Replica) -> None:
        self.credit += replica.paired
        replica.paired = replica.relay_empty = False

    def find_source(self, replica: Replica) -> int | None:
        loaded = [one.name for one in self.replicas if STATES[one.state].weights is Weights.RESIDENT]
        return self.rng.choice(loaded) if loaded else None

    def tell_others(self, failed: Replica, was: ReplicaState) -> None:
        """What holds at once when a replica has failed: who loads from it gets another source, pairs come apart."""
        for one in self.replicas:
            if one.source == failed.name:
                assert self.happen(one, ReplicaEvent.SOURCE_LOST)
        self.end_load(failed)
        failed.layers, failed.source = 0, None
        if was is ReplicaState.OLD_PREFILL and self.credit:
            self.credit -= 1
        elif was is ReplicaState.OLD_PREFILL:
            self.paired()[0].paired = False

    def clear(self, failed: Replica) -> None:
        """Queue again what a failed replica had, and end its transfer into a decode."""
        for batches in (failed.running, failed.inbox, failed.waiting, failed.parked):
            self.queue.extend(batches)
            self.computed.difference_update(batches)
            batches.clear()
        if failed.sending is not None:
            batch, decode = failed.sending
            self.queue.append(batch)
            self.computed.discard(batch)
            failed.sending = None
            self.leave_lock(self.replicas[decode])

    def leave_lock(self, decode: Replica) -> None:
        decode.lock_owner = SELF if decode.lock_pending else None
        decode.lock_pending = False

    # What replicas do by themselves.

    def submit(self) -> None:
        self.queue.append(self.submitted)
        self.submitted += 1

    def turn(self, replica: Replica) -> None:
        """One turn of a replica's own loop; a batch in `running` is computed or decoded by it."""
        if replica.state is ReplicaState.FAILED:
            self.clear(replica)
            return
        facts = STATES[replica.state]
        if replica.source is not None or facts.weights is Weights.LOADING:
            replica.layers = min(LAYERS, replica.layers + 1)
        if facts.computes and replica.running and self.rng.random() < 0.7:
            batch = replica.running.popleft()
            if replica.state in (ReplicaState.DECODE, ReplicaState.SHUTTING_DECODE, ReplicaState.MUTATING_TO_PREFILL):
                assert batch in self.computed, f"{replica} decodes a batch whose prompt is not computed"
                self.ended[batch] += 1
            elif replica.layers < LAYERS or replica.state is ReplicaState.NEW_PREFILL:
                replica.parked.append(batch)
            else:
                self.computed.add(batch)
                replica.waiting.append(batch)
        if facts.takes_requests and self.queue:
            replica.running.append(self.queue.popleft())
        if facts.counts_as is not CountsAs.PREFILL or replica.state is ReplicaState.MUTATING_TO_PREFILL:
            replica.running.extend(replica.inbox)
            replica.inbox.clear()
        self.relay(replica)
        self.migrate(replica)
        for event in OWN[replica.state]:
            self.order(replica.name, event)

    def relay(self, replica: Replica) -> None:
        if replica.state is ReplicaState.OLD_PREFILL:
            parked = [one.parked for one in self.replicas if one.parked and one.state in LOADS]
            replica.relay_empty = not parked
            if parked:
                replica.running.append(parked[0].popleft())
        elif replica.state is ReplicaState.REFRACTORY_PREFILL:
            if replica.parked:
                self.computed.add(replica.parked[0])
                replica.waiting.append(replica.parked.popleft())
            replica.relay_empty = not replica.parked

    def migrate(self, replica: Replica) -> None:
        """End the transfer under way, or begin the next one, into a decode whose lock is free."""
        if replica.sending is not None:
            batch, name = replica.sending
            decode = self.replicas[name]
            decode.inbox.append(batch)
            replica.sending = None
            self.leave_lock(decode)
        elif replica.waiting:
            free = [one for one in self.replicas if one.lock_owner is None and one is not replica]
            self.scarce = not free
            if free:
                decode = self.rng.choice(free)
                check_admits(decode)
                decode.lock_owner = replica.name
                replica.sending = (replica.waiting.popleft(), decode.name)

    def step(self) -> None:
        """One random thing: a batch comes in, a replica has its turn, or somebody orders or breaks something."""
        kind = self.rng.random()
        replica = self.rng.choice(self.replicas)
        if kind < 0.12:
            self.submit()
        elif kind < 0.8:
            self.turn(replica)
            check_all(self)
        else:
            wild = self.rng.random() < ILLEGAL
            event = self.rng.choice(FROM_OUTSIDE if wild else ORDERS[replica.state])
            if event.trigger is not Trigger.FAULT or self.rng.random() < FAULTS:
                self.order(replica.name, event)

    def serving(self) -> Counter[CountsAs]:
        return Counter(STATES[one.state].counts_as for one in self.replicas if STATES[one.state].serves)


# The invariants.


def check_all(fleet: Fleet) -> None:
    for replica in fleet.replicas:
        check_lock(replica)
        check_migrations(replica)
    check_transfers(fleet)
    check_sources(fleet)
    check_pairs(fleet)


def check_lock(replica: Replica) -> None:
    """V3: who has the lock is what the table of states says."""
    held, pending = replica.lock_owner == SELF, replica.lock_pending
    assert not (held and pending), f"{replica} waits for the lock it has"
    expected = {
        IngressLock.HELD: held,
        IngressLock.FREE: not held and not pending,
        IngressLock.BEING_TAKEN: held or pending,
        IngressLock.BEING_RELEASED: held or pending,
    }
    assert expected[STATES[replica.state].ingress_lock], replica


def check_transfers(fleet: Fleet) -> None:
    """V3: at most one transfer into a decode at a time, and its sender has the lock."""
    into = Counter(one.sending[1] for one in fleet.replicas if one.sending is not None)
    assert all(count == 1 for count in into.values()), into
    for one in fleet.replicas:
        if one.sending is not None:
            assert fleet.replicas[one.sending[1]].lock_owner == one.name
            assert one.sending[1] != one.name, "a replica sends to itself"
    with_senders = {one.name for one in fleet.replicas if one.lock_owner not in (None, SELF)}
    assert with_senders == set(into), "a lock is with a sender that sends nothing"


def check_migrations(replica: Replica) -> None:
    """V5: a replica that is out of service has no migration left, and nothing else either."""
    if replica.state in (ReplicaState.SHUTTING_NULL, ReplicaState.INACTIVE):
        assert replica.unfinished == replica.blocks == 0, replica


def check_role_stays(before: Counter[CountsAs], after: Counter[CountsAs], row: Transition) -> None:
    """V6: no order takes away the last replica that serves a role."""
    for role in (CountsAs.PREFILL, CountsAs.DECODE):
        assert before[role] == 0 or after[role] > 0, f"{row.event.value} took the last {role.value}"


def check_sources(fleet: Fleet) -> None:
    """V12: what sends its weights has them."""
    for one in fleet.replicas:
        if one.source is not None:
            source = fleet.replicas[one.source]
            assert STATES[source.state].weights is Weights.RESIDENT, f"{source} was unloaded while {one} loads from it"


def check_pairs(fleet: Fleet) -> None:
    """V11, its half about states: each old prefill has a live load under way, or one that has ended and lets it go."""
    olds = sum(one.state is ReplicaState.OLD_PREFILL for one in fleet.replicas)
    assert olds == len(fleet.paired()) + fleet.credit
    assert fleet.credit >= 0


def check_admits(decode: Replica) -> None:
    """V16: a transfer begins only into a replica in a state that takes KV cache: not into one that drains."""
    assert STATES[decode.state].takes_kv, decode
    assert not decode.lock_pending, decode
