"""The replicas of a simulated fleet: states, changed by `replica.transitions.advance` alone, locks and GPU time."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from pdctl.replica.states import STATES, CountsAs, IngressLock, ReplicaState, Weights
from pdctl.replica.transitions import TRANSITIONS, GuardFacts, LockEffect, Trigger, advance
from pdctl.simulation.kernel import SECOND, LoggedEvent
from pdctl.simulation.result import GpuTime, StateChange

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.replica.transitions import ReplicaEvent, Transition
    from pdctl.simulation.decode import RetractedRoom, RunningRooms
    from pdctl.simulation.decode_memory import DecodeMemory
    from pdctl.simulation.kernel import EventLog
    from pdctl.simulation.prefill import PromptPasses
    from pdctl.simulation.prefix_cache import PrefixCache

# What a replica does by itself in a state, as soon as it may.
OWN_EVENTS = {row.source: row for row in TRANSITIONS if row.event.trigger is Trigger.REPLICA}
STATE_NUMBERS = {state: number for number, state in enumerate(ReplicaState)}

SERVING, LOADING, DRAINING = range(3)
LEAVES_ROLE = (ReplicaState.MUTATING_TO_DECODE, ReplicaState.MUTATING_TO_PREFILL)
COUNTED_AS = {role: [state for state in ReplicaState if STATES[state].counts_as is role] for role in CountsAs}
LOADING_AS = {
    role: [state for state in states if STATES[state].weights is Weights.LOADING] for role, states in COUNTED_AS.items()
}


def spent_on(state: ReplicaState) -> int | None:
    """What the GPU time of a replica in a state counts as; None for none."""
    facts = STATES[state]
    if facts.weights is Weights.NONE:
        return None
    if facts.weights is Weights.LOADING:
        return LOADING
    return DRAINING if facts.counts_as is CountsAs.NEITHER or state in LEAVES_ROLE else SERVING


SPENT_ON = {state: spent_on(state) for state in ReplicaState}


class SimulatedReplica:
    """What one replica has at hand. Blocks are charged to it for prompts it computes and for rooms it decodes."""

    __slots__ = (
        *("number", "state", "visit", "since_ns", "gpus", "takes_requests", "takes_kv", "settles"),
        *("role", "flipped_ns", "lock_held", "lock_pending", "senders", "callers", "used", "capacity"),
        *("prefill_blocks", "passes", "given", "queued_tokens", "waiting_tokens"),
        *("unfinished", "outbox", "sending", "cache"),
        *("running", "memory", "retracted", "inbox", "promised", "asking", "without_pages", "demand", "slots"),
        *("turn", "due_ns", "due_steps"),
        *("layers", "parked_batches", "relay_empty"),
    )

    def __init__(self, number: int, gpus: int) -> None:
        self.number = number
        self.gpus = gpus
        self.state = ReplicaState.INACTIVE
        self.visit = 0  # how often the state has changed: a timer of an earlier one is void
        self.since_ns = 0
        self.takes_requests = self.takes_kv = self.settles = False
        self.role = CountsAs.NEITHER  # that it last served in
        self.flipped_ns = -1  # when a change of role is over
        self.lock_held, self.lock_pending, self.senders = True, False, 0
        self.callers: deque[int] | None = None  # rooms whose KV cache waits for the lock
        self.used = self.capacity = 0  # KV blocks
        # As a prefill.
        self.prefill_blocks = 0  # those of `used` that are charged for prompts
        self.passes: PromptPasses | None = None
        self.given = 0  # prompts that it is to compute: begun, or routed to it
        self.queued_tokens = 0  # of these
        self.waiting_tokens = 0  # of those that were routed to it and are not begun
        self.unfinished = 0  # rooms computed whose KV cache has not left
        self.outbox: deque[int] | None = None  # of these, those that look for a decode
        self.sending = 0  # rooms of which some KV cache is under way
        self.cache: PrefixCache | None = None
        # As a decode.
        self.running: RunningRooms | None = None
        self.memory: DecodeMemory | None = None  # None: no answer is longer than its headroom
        self.retracted: list[RetractedRoom] = []  # in order of arrival
        self.inbox: list[tuple[int, int]] = []  # (when it may join, room), in order
        self.promised: dict[int, None] = {}  # rooms that are to come and of which nothing is under way
        self.asking: list[int] = []  # of these, those that it looks at when the step under way has ended
        self.without_pages: deque[int] | None = None  # of these, those that wait for memory
        self.demand = 0  # blocks of all rooms that were given to it
        self.slots = 0  # rooms that have their blocks
        self.turn = self.due_ns = self.due_steps = 0  # the end of a step that is waited for
        # Its weights.
        self.layers = 0
        self.parked_batches = 0
        self.relay_empty = False

    @property
    def running_rooms(self) -> int:
        return self.given + len(self.retracted) + (len(self.running.leaving) if self.running is not None else 0)


class ReplicaStates:
    """Changes states, and keeps what follows from them: locks, how many are in each, GPU time, the record of changes.

    `changed` is told each transition after it has happened; `is_sending`: whether a replica sends its weights.
    """

    def __init__(
        self,
        replicas: list[SimulatedReplica],
        layers: int,
        log: EventLog,
        changed: Callable[[SimulatedReplica, Transition], None],
        is_sending: Callable[[int], bool],
    ) -> None:
        self.replicas = replicas
        self.counts: Counter[ReplicaState] = Counter({ReplicaState.INACTIVE: len(replicas)})
        self.changes: list[StateChange] = []
        self.unpaired_loads = self.credit = 0
        self.decode_scarce = False
        self._layers = layers
        self._spent = [0, 0, 0]  # GPU × ns
        self._write = log.write
        self._changed = changed
        self._is_sending = is_sending

    def facts(self, replica: SimulatedReplica) -> GuardFacts:
        plain = ReplicaState.DECODE if replica.state is ReplicaState.DECODE else ReplicaState.PREFILL
        return GuardFacts(
            running_rooms=replica.running_rooms,
            inbox=len(replica.inbox),
            unfinished_migrations=replica.unfinished,
            used_blocks=replica.used,
            parked_batches=replica.parked_batches,
            lock_held=replica.lock_held,
            lock_pending=replica.lock_pending,
            lock_with_sender=replica.senders > 0,
            layers_loaded=replica.layers >= self._layers,
            source_available=True,  # the disk, if nothing else
            sending_parameters=self._is_sending(replica.number),
            relay_empty=replica.relay_empty,
            unpaired_loads=self.unpaired_loads,
            credit=self.credit,
            normal_peers=self.counts[plain] - (replica.state is plain),
            decode_scarce=self.decode_scarce,
        )

    def happen(self, now_ns: int, replica: SimulatedReplica, event: ReplicaEvent) -> Transition:
        """Raise IllegalTransition or GuardRefused, and change nothing then."""
        row = advance(replica.state, event, self.facts(replica))
        self._mend_lock(replica, row.lock)
        self._account(now_ns, replica)
        self.counts[row.source] -= 1
        self.counts[row.target] += 1
        self._enter(replica, row.target)
        self.changes.append(StateChange(now_ns, replica.number, event, row.source, row.target))
        self._write((now_ns, LoggedEvent.STATE_CHANGED, STATE_NUMBERS[row.target], replica.number))
        self._changed(replica, row)
        return row

    def count(self, role: CountsAs, loading: bool = False) -> int:
        """Replicas that count as the role; with `loading` only those whose weights are still to come."""
        return sum(self.counts[state] for state in (LOADING_AS if loading else COUNTED_AS)[role])

    def own_event(self, replica: SimulatedReplica) -> ReplicaEvent | None:
        """What the replica may do by itself now."""
        row = OWN_EVENTS.get(replica.state)
        return row.event if row is not None and row.guard.holds(self.facts(replica)) else None

    def place(self, replica: SimulatedReplica, state: ReplicaState) -> None:
        """Begin in a state, at 0 ns: the replicas that a topology starts with."""
        self.counts[replica.state] -= 1
        self.counts[state] += 1
        self._enter(replica, state)
        replica.lock_held = STATES[state].ingress_lock is IngressLock.HELD
        replica.layers = self._layers

    def end_transfer(self, replica: SimulatedReplica) -> None:
        """A sender has left the lock of a decode, which waits for it."""
        if not replica.senders:
            replica.lock_pending, replica.lock_held = False, True

    def gpu_time(self, end_ns: int) -> GpuTime:
        """Of the whole run; afterwards nothing may change."""
        for replica in self.replicas:
            self._account(end_ns, replica)
        return GpuTime(*(spent / SECOND for spent in self._spent))

    def _enter(self, replica: SimulatedReplica, state: ReplicaState) -> None:
        facts = STATES[state]
        replica.state = state
        replica.visit += 1
        replica.takes_requests, replica.takes_kv = facts.takes_requests, facts.takes_kv
        replica.settles, replica.flipped_ns = state in OWN_EVENTS, -1

    def _mend_lock(self, replica: SimulatedReplica, effect: LockEffect) -> None:
        if effect is LockEffect.TAKE:
            replica.lock_held = True
        elif effect is LockEffect.TAKE_WHEN_FREE:
            replica.lock_held = replica.senders == 0
            replica.lock_pending = not replica.lock_held
        elif effect is LockEffect.RELEASE:
            replica.lock_held = replica.lock_pending = False

    def _account(self, now_ns: int, replica: SimulatedReplica) -> None:
        spent = SPENT_ON[replica.state]
        if spent is not None:
            self._spent[spent] += (now_ns - replica.since_ns) * replica.gpus
        replica.since_ns = now_ns
