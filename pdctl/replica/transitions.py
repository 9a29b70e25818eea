"""The only table of how a replica changes its state: who asks for it, what must hold, what happens to the ingress lock.

The simulator asks `advance` and changes a state in no other way; engine, router and controller are to do the same. What
is not in the table is illegal, which a planner or driver that has lost track must learn at once. Each row says where it
is known from, and why ours differs where it does; the files are those of blitz-serving/blitz-scale at 594e911, below
router_v2/src/replica/.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError
from pdctl.quick_definitions import NamedTuple
from pdctl.replica.states import STATES, IngressLock, ReplicaState

if TYPE_CHECKING:
    from collections.abc import Callable


class Trigger(str, Enum):
    """Who brings an event about. What an operator orders by hand comes in as the planner's."""

    PLANNER = "planner"
    REPLICA = "replica"
    DATA_PLANE = "data plane"
    FAULT = "fault"


class ReplicaEvent(str, Enum):
    trigger: Trigger
    meaning: str

    def __new__(cls, word: str, trigger: Trigger, meaning: str) -> ReplicaEvent:
        self = str.__new__(cls, word)
        self._value_, self.trigger, self.meaning = word, trigger, meaning
        return self

    LOAD_PREFILL = "load prefill", Trigger.PLANNER, "Load the weights, then serve as a prefill."
    LOAD_DECODE = "load decode", Trigger.PLANNER, "Load the weights, then serve as a decode."
    LOAD_LIVE = "load live", Trigger.PLANNER, "Load layer by layer; compute prompts with the layers that are there."
    PAIR_AS_OLD = "pair as old", Trigger.PLANNER, "Finish what a new prefill parks, and take no prompts meanwhile."
    MUTATE_TO_DECODE = "mutate to decode", Trigger.PLANNER, "Become a decode, with the KV cache that has not left."
    MUTATE_TO_PREFILL = "mutate to prefill", Trigger.PLANNER, "Finish the rooms, then become a prefill."
    DRAIN = "drain", Trigger.PLANNER, "Take nothing new, finish what is there, keep the weights."
    PARK = "park", Trigger.PLANNER, "Go out of service at once, being empty; keep the weights."
    CANCEL_DRAIN = "cancel drain", Trigger.PLANNER, "Come back to the role that is being left."
    REUSE_AS_PREFILL = "re-use as prefill", Trigger.PLANNER, "Serve as a prefill with the weights that are still there."
    REUSE_AS_DECODE = "re-use as decode", Trigger.PLANNER, "Serve as a decode with the weights that are still there."
    UNLOAD = "unload", Trigger.PLANNER, "Free the weights."
    RESET = "reset", Trigger.PLANNER, "Clear what a failure has left, to be used again."

    LOADED = "loaded", Trigger.DATA_PLANE, "Every layer and the head have arrived."
    SOURCE_LOST = "source lost", Trigger.FAULT, "What sent the weights is gone; the load goes on from another source."
    LOAD_FAILED = "load failed", Trigger.FAULT, "The weights did not arrive: no source is left, or the deadline passed."
    RELAY_ENDED = "relay ended", Trigger.REPLICA, "A relay was asked for and nothing parked is left."
    FLUSHED = "flushed", Trigger.REPLICA, "Its migration queue has given back what has not begun to migrate."
    DRAINED = "drained", Trigger.REPLICA, "Nothing of the old role is left."
    RETURNED = "returned", Trigger.REPLICA, "Its own turn came after the order to come back."
    DIED = "died", Trigger.FAULT, "The process ended, or does not answer."


class LockEffect(str, Enum):
    """What a transition does with the replica's own ingress lock."""

    KEEP = "keep"
    TAKE = "take"  # at once: the guard has made sure that no sender has it
    TAKE_WHEN_FREE = "take when free"  # next after the sender that has it, before all others; at once if nobody has
    RELEASE = "release"  # or give up the place, if it only waits for it


class GuardFacts(NamedTuple):
    """What guards may ask about one replica and its fleet, at one moment."""

    running_rooms: int = 0  # rooms it computes: prompts of a prefill, answers of a decode
    inbox: int = 0  # batches whose KV cache has arrived and which it does not decode yet
    unfinished_migrations: int = 0  # batches of its own that wait for a decode or are on the way
    used_blocks: int = 0
    parked_batches: int = 0  # of a new prefill: computed as far as it had layers
    lock_held: bool = False  # by the replica itself
    lock_pending: bool = False  # it is next to get the lock
    lock_with_sender: bool = False  # a transfer into it is under way
    layers_loaded: bool = False  # all of them, and the head
    source_available: bool = False  # a replica, host memory or disk that can send the weights
    sending_parameters: bool = False  # it is a source itself
    relay_empty: bool = False  # the last relay found nothing parked
    unpaired_loads: int = 0  # live loads under way that have no old prefill
    credit: int = 0  # live loads that have ended, in failure too, and whose old prefill is not let go yet
    normal_peers: int = 0  # others in the plain state of its role, `prefill` or `decode`; of an inactive one: `prefill`
    decode_scarce: bool = False  # a migration found no decode that had room and a free lock


class TransitionGuard(NamedTuple):
    """What must hold. `sentence` says it in words; `reads` names the facts that `holds` looks at."""

    name: str
    sentence: str
    reads: tuple[str, ...]
    holds: Callable[[GuardFacts], bool]


class Transition(NamedTuple):
    source: ReplicaState
    event: ReplicaEvent
    target: ReplicaState
    guard: TransitionGuard
    known_from: str
    differs: str = ""  # what ours does otherwise than that source, and why
    lock: LockEffect = LockEffect.KEEP


class IllegalTransition(PdctlError):
    def __init__(self, state: ReplicaState, event: ReplicaEvent) -> None:
        sources: dict[ReplicaState, list[str]] = {}
        for row in TRANSITIONS:
            if row.event is event:
                sources.setdefault(row.target, []).append(row.source.value)
        elsewhere = "; ".join(f"to {target.value} from {', '.join(names)}" for target, names in sources.items())
        legal = ", ".join(f"{row.event.value} (to {row.target.value})" for row in transitions_from(state))
        super().__init__(
            f"a replica in state {state.value} cannot take '{event.value}', which leads {elsewhere}",
            f"from {state.value} these are legal: {legal}",
        )
        self.state, self.event = state, event


class GuardRefused(PdctlError):
    def __init__(self, row: Transition, facts: GuardFacts) -> None:
        values = ", ".join(f"{name}={getattr(facts, name)}" for name in row.guard.reads)
        super().__init__(
            f"'{row.event.value}' from {row.source.value} to {row.target.value} is refused: "
            f"{row.guard.sentence} ({values})",
            "try again when that holds",
        )
        self.transition, self.facts = row, facts


def advance(state: ReplicaState, event: ReplicaEvent, facts: GuardFacts) -> Transition:
    """Return the transition that `event` is in `state`; its target is the next state.

    Raises IllegalTransition if the table has none, GuardRefused if its guard does not hold.
    """
    row = _ROWS.get((state, event))
    if row is None:
        raise IllegalTransition(state, event)
    if not row.guard.holds(facts):
        raise GuardRefused(row, facts)
    return row


def transitions_from(state: ReplicaState) -> tuple[Transition, ...]:
    return tuple(row for row in TRANSITIONS if row.source is state)


ALWAYS = TransitionGuard("always", "", (), lambda facts: True)
SOURCE = TransitionGuard(
    "source available",
    "a replica, host memory or disk must be able to send the weights",
    ("source_available",),
    lambda facts: facts.source_available,
)
SOURCE_AND_PARTNER = TransitionGuard(
    "source and partner",
    "weights must have a source, and a prefill must be there to finish what is parked",
    ("source_available", "normal_peers"),
    lambda facts: facts.source_available and facts.normal_peers > 0,
)
ALL_LOADED = TransitionGuard(
    "all loaded", "every layer and the head must have arrived", ("layers_loaded",), lambda facts: facts.layers_loaded
)
LOAD_TO_PAIR = TransitionGuard(
    "load to pair",
    "a live load that has no old prefill yet must be under way",
    ("unpaired_loads",),
    lambda facts: facts.unpaired_loads > 0,
)
NOTHING_PARKED = TransitionGuard(
    "nothing parked",
    "the last relay must have found nothing, and no batch may be parked",
    ("relay_empty", "parked_batches"),
    lambda facts: facts.relay_empty and facts.parked_batches == 0,
)
LET_GO = TransitionGuard(
    "let go",
    "the last relay must have found nothing, and a live load must have ended",
    ("relay_empty", "credit"),
    lambda facts: facts.relay_empty and facts.credit > 0,
)
PEER_STAYS = TransitionGuard(
    "peer stays",
    "another replica must be in the plain state of this role and stay",
    ("normal_peers",),
    lambda facts: facts.normal_peers > 0,
)
PROMPTS_DONE = TransitionGuard(
    "prompts done",
    "the prompts that it has begun must be computed",
    ("running_rooms",),
    lambda facts: facts.running_rooms == 0,
)
PREFILL_EMPTY = TransitionGuard(
    "prefill empty",
    "its prompts must be computed and all their KV cache must have left",
    ("running_rooms", "unfinished_migrations"),
    lambda facts: facts.running_rooms == 0 and facts.unfinished_migrations == 0,
)
DECODE_EMPTY = TransitionGuard(
    "decode empty",
    "it must hold its ingress lock and have no room, no batch in its inbox and no migration of its own",
    ("lock_held", "lock_pending", "running_rooms", "inbox", "unfinished_migrations"),
    lambda facts: (
        facts.lock_held
        and not facts.lock_pending
        and facts.running_rooms == facts.inbox == facts.unfinished_migrations == 0
    ),
)
IDLE_AND_SPARE = TransitionGuard(
    "idle and spare",
    "it must be empty with nobody sending to it, another decode must stay, and decodes must not be scarce",
    (
        *("running_rooms", "inbox", "unfinished_migrations", "used_blocks"),
        *("lock_with_sender", "decode_scarce", "normal_peers"),
    ),
    lambda facts: (
        facts.running_rooms == facts.inbox == facts.unfinished_migrations == facts.used_blocks == 0
        and not facts.lock_with_sender
        and not facts.decode_scarce
        and facts.normal_peers > 0
    ),
)
LOCK_HELD = TransitionGuard("lock held", "it must hold its ingress lock", ("lock_held",), lambda facts: facts.lock_held)
NOT_A_SOURCE = TransitionGuard(
    "not a source",
    "it must not be sending its weights to another replica",
    ("sending_parameters",),
    lambda facts: not facts.sending_parameters,
)
CLEARED = TransitionGuard(
    "cleared",
    "no sender may still write into it, and each room it had must be queued again or answered with an error",
    ("lock_held", "running_rooms", "inbox", "unfinished_migrations", "parked_batches"),
    lambda facts: (
        facts.lock_held
        and facts.running_rooms == facts.inbox == facts.unfinished_migrations == facts.parked_batches == 0
    ),
)

_AUS = (
    "There the planner writes the serving state itself. Here only the replica enters it, in its own turn, so that an "
    "order to come back cannot overtake the end of a drain."
)
_FATAL = "There every error ends the router."


def _legal() -> tuple[Transition, ...]:
    state, event, row = ReplicaState, ReplicaEvent, Transition
    loads = state.LOADING_PREFILL, state.LOADING_DECODE, state.NEW_PREFILL
    return (
        row(state.INACTIVE, event.LOAD_PREFILL, state.LOADING_PREFILL, SOURCE, "exec_blitz.rs 1701–1765, 2160–2290",
            "There a manual order leads to prefill at once, in builds that load the weights at the start."),
        row(state.INACTIVE, event.LOAD_DECODE, state.LOADING_DECODE, SOURCE, "exec_blitz.rs 1624–1692, 1928–1957",
            "There a manual order leads to mutatingtodecode at once; without weights there is nothing to mutate."),
        row(state.INACTIVE, event.LOAD_LIVE, state.NEW_PREFILL, SOURCE_AND_PARTNER,
            "exec_blitz.rs 1308–1400, 1896–1927", "There a new prefill may start without an old one, at the cost of a "
            "negative credit; then nobody finishes what it parks before its own last layer is there."),
        row(state.LOADING_PREFILL, event.LOADED, state.PREFILL, ALL_LOADED, "mod.rs 227–283"),
        row(state.LOADING_DECODE, event.LOADED, state.AUS_DECODE, ALL_LOADED, "mod.rs 164–215",
            "There the serverless path goes through mutatingtodecode, whose flush has nothing to give back."),
        row(state.NEW_PREFILL, event.LOADED, state.REFRACTORY_PREFILL, ALL_LOADED,
            "disaggregation.rs 1010–1086, 1268–1344"),
        row(state.REFRACTORY_PREFILL, event.RELAY_ENDED, state.PREFILL, NOTHING_PARKED, "disaggregation.rs 1579–1607"),
        row(state.PREFILL, event.PAIR_AS_OLD, state.OLD_PREFILL, LOAD_TO_PAIR, "exec_blitz.rs 1395, 1499, 2008"),
        row(state.OLD_PREFILL, event.RELAY_ENDED, state.PREFILL, LET_GO, "disaggregation.rs 1754–1776"),
        row(state.PREFILL, event.MUTATE_TO_DECODE, state.MUTATING_TO_DECODE, PEER_STAYS, "mod.rs 32–54"),
        row(state.MUTATING_TO_DECODE, event.FLUSHED, state.DECODE, PROMPTS_DONE, "disaggregation.rs 1778–1798",
            "There a prompt is one pass, so that none is under way; here it may take several.", LockEffect.RELEASE),
        row(state.PREFILL, event.DRAIN, state.SHUTTING_PREFILL, PEER_STAYS, "mod.rs 62–78"),
        row(state.SHUTTING_PREFILL, event.DRAINED, state.SHUTTING_NULL, PREFILL_EMPTY, "disaggregation.rs 1904–1917",
            "There a prompt is one pass, so that only migrations are waited for."),
        row(state.SHUTTING_PREFILL, event.CANCEL_DRAIN, state.AUS_PREFILL, ALWAYS, "mod.rs 377–392", _AUS),
        row(state.DECODE, event.DRAIN, state.SHUTTING_DECODE, PEER_STAYS, "mod.rs 86–102",
            lock=LockEffect.TAKE_WHEN_FREE),
        row(state.SHUTTING_DECODE, event.DRAINED, state.SHUTTING_NULL, DECODE_EMPTY, "disaggregation.rs 1815–1826",
            "There one that was a prefill before may still migrate batches of that time; here they are waited for."),
        row(state.SHUTTING_DECODE, event.CANCEL_DRAIN, state.AUS_DECODE, ALWAYS, "mod.rs 356–371"),
        row(state.DECODE, event.PARK, state.SHUTTING_NULL, IDLE_AND_SPARE, "mod.rs 698–747",
            "There the planner lets go of the lock and the replica takes it later, so that a sender can come between.",
            LockEffect.TAKE),
        row(state.SHUTTING_NULL, event.REUSE_AS_PREFILL, state.AUS_PREFILL, ALWAYS, "mod.rs 466–512", _AUS),
        row(state.SHUTTING_NULL, event.REUSE_AS_DECODE, state.AUS_DECODE, ALWAYS, "mod.rs 670–691",
            "There it leads to decode at once if the lock is not taken yet; here a parked replica always holds it."),
        row(state.SHUTTING_NULL, event.UNLOAD, state.INACTIVE, NOT_A_SOURCE, "mod.rs 397–460, 581–625",
            "There one that is unloaded because a role shrinks is not asked whether it is a source."),
        row(state.AUS_PREFILL, event.RETURNED, state.PREFILL, LOCK_HELD, "disaggregation.rs 1799–1806"),
        row(state.AUS_DECODE, event.RETURNED, state.DECODE, ALWAYS, "disaggregation.rs 1807–1814",
            "There a lock that is waited for is first taken; here the place is given up and nothing waits.",
            LockEffect.RELEASE),
        row(state.DECODE, event.MUTATE_TO_PREFILL, state.MUTATING_TO_PREFILL, PEER_STAYS, "ours",
            "There a decode becomes a prefill only as a drained one that is used again.", LockEffect.TAKE_WHEN_FREE),
        row(state.MUTATING_TO_PREFILL, event.DRAINED, state.PREFILL, DECODE_EMPTY, "ours"),
        row(state.MUTATING_TO_PREFILL, event.CANCEL_DRAIN, state.AUS_DECODE, ALWAYS, "ours"),
        *(row(one, event.SOURCE_LOST, one, SOURCE, "ours", _FATAL) for one in loads),
        *(row(one, event.LOAD_FAILED, state.FAILED, ALWAYS, "ours", _FATAL) for one in loads),
        *(row(one, event.DIED, state.FAILED, ALWAYS, "ours", _FATAL, _lock_at_death(one))
          for one in state if one is not state.FAILED),
        row(state.FAILED, event.RESET, state.INACTIVE, CLEARED, "ours"),
    )  # fmt: skip


def _lock_at_death(state: ReplicaState) -> LockEffect:
    has_or_waits = STATES[state].ingress_lock in (IngressLock.HELD, IngressLock.BEING_TAKEN)
    return LockEffect.KEEP if has_or_waits else LockEffect.TAKE_WHEN_FREE


TRANSITIONS = _legal()
_ROWS = {(row.source, row.event): row for row in TRANSITIONS}

# Each command, with what BlitzScale's HTTP route for manual scaling calls it; "" where it has none.
COMMANDS = {
    ReplicaEvent.LOAD_PREFILL: "TransToPrefill",
    ReplicaEvent.LOAD_DECODE: "TransToDecode",
    ReplicaEvent.LOAD_LIVE: "TransToNewPrefill",
    ReplicaEvent.PAIR_AS_OLD: "TransToOldPrefill",
    ReplicaEvent.MUTATE_TO_DECODE: "TransToDecode",
    ReplicaEvent.MUTATE_TO_PREFILL: "",
    ReplicaEvent.DRAIN: "Deactivate",
    ReplicaEvent.PARK: "",
    ReplicaEvent.CANCEL_DRAIN: "",
    ReplicaEvent.REUSE_AS_PREFILL: "",
    ReplicaEvent.REUSE_AS_DECODE: "",
    ReplicaEvent.UNLOAD: "",
    ReplicaEvent.RESET: "",
}
