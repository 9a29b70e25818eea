"""The states of a replica, and what is true in each: what it counts as, its weights, its ingress lock, its work.

The names are those of BlitzScale's disaggregation controller; `mutatingtoprefill` and `failed` are ours.
docs/elastic.md says where each fact comes from and what differs.
The **ingress lock** of a replica means "no KV cache may be pushed into me". A sender takes the lock of a decode for one
transfer, so that a decode receives one batch at a time; a replica that holds its own lock receives none.
"""

from __future__ import annotations

from enum import Enum

from pdctl.quick_definitions import NamedTuple


class ReplicaState(str, Enum):
    INACTIVE = "inactive"
    LOADING_PREFILL = "loadingprefill"
    LOADING_DECODE = "loadingdecode"
    PREFILL = "prefill"
    NEW_PREFILL = "newprefill"
    REFRACTORY_PREFILL = "refractoryprefill"
    OLD_PREFILL = "oldprefill"
    DECODE = "decode"
    MUTATING_TO_DECODE = "mutatingtodecode"
    MUTATING_TO_PREFILL = "mutatingtoprefill"
    AUS_PREFILL = "ausprefill"
    AUS_DECODE = "ausdecode"
    SHUTTING_PREFILL = "shuttingprefill"
    SHUTTING_DECODE = "shuttingdecode"
    SHUTTING_NULL = "shuttingnull"
    FAILED = "failed"


class LoadMark(str, Enum):
    """What the data plane does with a replica's parameters, beside its state: a decode that sends is still a decode."""

    SENDING = "sending"  # to one other replica
    LOADING = "loading"  # from a replica, host memory or disk
    CASTING = "casting"  # receives and passes on, in a chain or a ring


class CountsAs(str, Enum):
    """The role in which a planner counts the replica as provisioned."""

    PREFILL = "prefill"
    DECODE = "decode"
    NEITHER = "neither"


class Weights(str, Enum):
    NONE = "none"
    LOADING = "loading"
    RESIDENT = "resident"


class IngressLock(str, Enum):
    """Who has the ingress lock while a replica is in a state."""

    HELD = "held"  # the replica
    FREE = "free"  # not the replica: nobody, or a sender for one transfer
    BEING_TAKEN = "being taken"  # the replica, or it is next after the sender that has it
    BEING_RELEASED = "being released"  # as above; the replica gives it up, or its place, when it leaves the state


class StateFacts(NamedTuple):
    counts_as: CountsAs
    weights: Weights
    ingress_lock: IngressLock
    takes_requests: bool  # from the batching queue, which all prefills share
    computes: bool
    meaning: str

    @property
    def takes_kv(self) -> bool:
        """Whether a sender may begin a transfer into the replica; one that has begun is finished in any state."""
        return self.ingress_lock is IngressLock.FREE

    @property
    def serves(self) -> bool:
        """Whether it does its role's work with all its weights; no order takes the last such replica of a role away."""
        settled = self.ingress_lock in (IngressLock.HELD, IngressLock.FREE)
        counted = self.counts_as is not CountsAs.NEITHER
        return self.computes and counted and settled and self.weights is Weights.RESIDENT


def _table() -> dict[ReplicaState, StateFacts]:
    prefill, decode, neither = CountsAs.PREFILL, CountsAs.DECODE, CountsAs.NEITHER
    none, loading, resident = Weights.NONE, Weights.LOADING, Weights.RESIDENT
    held, free = IngressLock.HELD, IngressLock.FREE
    taken, released = IngressLock.BEING_TAKEN, IngressLock.BEING_RELEASED
    state, row = ReplicaState, StateFacts
    return {
        state.INACTIVE: row(neither, none, held, False, False,
            "It waits, without weights, for an order."),
        state.LOADING_PREFILL: row(prefill, loading, held, False, False,
            "Its weights arrive; it serves as a prefill when all are there."),
        state.LOADING_DECODE: row(decode, loading, held, False, False,
            "Its weights arrive; it serves as a decode when all are there."),
        state.PREFILL: row(prefill, resident, held, True, True,
            "It computes prompts and queues their KV cache for migration."),
        state.NEW_PREFILL: row(prefill, loading, held, True, True,
            "Its weights arrive layer by layer; it computes prompts as far as it has layers, then parks them."),
        state.REFRACTORY_PREFILL: row(prefill, resident, held, False, True,
            "All its layers are there; it and its old prefill finish the parked batches from both ends."),
        state.OLD_PREFILL: row(prefill, resident, held, False, True,
            "It computes the remaining layers of what a new prefill has parked."),
        state.DECODE: row(decode, resident, free, False, True,
            "It takes migrated batches and generates tokens, one step a turn."),
        state.MUTATING_TO_DECODE: row(decode, resident, released, False, True,
            "A prefill finishes the prompts it has begun and keeps the KV cache that has not begun to migrate."),
        state.MUTATING_TO_PREFILL: row(prefill, resident, taken, False, True,
            "A decode finishes the rooms it has and takes no more; then it computes prompts."),
        state.AUS_PREFILL: row(prefill, resident, taken, False, False,
            "It comes back as a prefill as soon as it holds its ingress lock."),
        state.AUS_DECODE: row(decode, resident, released, False, False,
            "It comes back as a decode and gives its ingress lock up."),
        state.SHUTTING_PREFILL: row(neither, resident, held, False, True,
            "It takes no more prompts, finishes those it has and waits until their KV cache has left."),
        state.SHUTTING_DECODE: row(neither, resident, taken, False, True,
            "It takes no more KV cache and decodes what it has to the end."),
        state.SHUTTING_NULL: row(neither, resident, held, False, False,
            "It is empty; its weights stay for a time, to be used again."),
        state.FAILED: row(neither, none, taken, False, False,
            "It died or could not load; its rooms are queued again or get one error each."),
    }  # fmt: skip


STATES = _table()
