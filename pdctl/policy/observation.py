"""What a policy sees: a fleet at one moment, in frozen values, and how a JSON object that describes it is read.

The fields of a record are its members in JSON (`json_records.py`). `tokens` are prompt tokens or tokens of KV cache,
times are seconds, rates are those of one replica.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pdctl.errors import UsageError
from pdctl.json_records import (
    REQUIRED,
    SMALLEST,
    Figure,
    figure_field,
    number,
    read_record,
    record,
    records,
    shown,
    whole,
)
from pdctl.quick_definitions import NamedTuple
from pdctl.replica.states import STATES, CountsAs, ReplicaState, Weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.json_records import JsonPlace

MOST_REPLICAS = 10**6


@dataclass(frozen=True, slots=True)
class QueueDepths:
    """Rooms in each PD queue of an instance: the first three of a prefill, the others of a decode."""

    bootstrap: int = whole("rooms whose page list has not arrived", 0)
    waiting: int = whole("rooms to be computed", 0)
    inflight: int = whole("rooms whose KV cache is being sent", 0)
    prealloc: int = whole("rooms without pages yet", 0)
    transfer: int = whole("rooms whose KV cache is on its way", 0)


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """One replica. The counters grow from its start; None where it has none."""

    name: str = figure_field(REQUIRED, Figure("text", "its name"))
    state: ReplicaState = figure_field(REQUIRED, Figure("choice", "its state", of=ReplicaState))  # noqa: RUF009 - a field
    ready: bool = figure_field(True, Figure("flag", "whether it answers and serves"))
    kv_blocks_used: int = whole("KV blocks in use", 0)
    kv_blocks: int = whole("KV blocks it has; 0: as many as kv_blocks_per_replica", 0)
    waiting_prompt_tokens: int = whole("prompt tokens queued on it", 0)
    running_rooms: int = whole("rooms it computes", 0)
    queues: QueueDepths = record("rooms per queue", QueueDepths, QueueDepths())  # noqa: RUF009 - a field
    prefilled_tokens: int | None = whole("counter: prompt tokens computed", None)
    prefill_busy_s: float | None = number("counter: seconds spent on them", None, above=False)
    received_kv_tokens: int | None = whole("counter: tokens of KV cache received", None)
    kv_ingress_busy_s: float | None = number("counter: seconds in which some arrived", None, above=False)
    decode_steps: int | None = whole("counter: decode steps", None)
    decode_busy_s: float | None = number("counter: seconds spent on them", None, above=False)


@dataclass(frozen=True, slots=True)
class MeasuredTraffic:
    """What was measured of arrivals and answers; None where it was not."""

    requests_per_s: float | None = number("arrivals", None, above=False)
    prompt_tokens: float | None = number("mean prompt length", None)
    output_tokens: float | None = number("mean answer length", None)
    cached_share: float = number("share of prompt tokens found in the prefix cache", 0.0, 1, above=False)
    ttft_s: float | None = number("time to first token", None, above=False)
    itl_s: float | None = number("inter-token latency: seconds per decode step", None, above=False)
    kv_arrival_tokens_per_s: float | None = number("KV cache that all decodes have to take in", None, above=False)
    startup_s: float | None = number("from the order of a replica to its first request", None, above=False)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to come, which only `oracle` looks at."""

    in_s: float = number("seconds from now", above=False)
    prompt_tokens: int = whole("its prompt")
    output_tokens: int = whole("its answer")


@dataclass(frozen=True, slots=True)
class Observation:
    """A fleet at one moment. A rate that is given wins over one that is measured (`measure_rates`)."""

    prefills: int = whole("prefill replicas, those that load included", most=MOST_REPLICAS)
    decodes: int = whole("decode replicas, those that load included", most=MOST_REPLICAS)
    waiting_prompt_tokens: int = whole("prompt tokens that no prefill has begun")
    kv_blocks_used: int = whole("KV blocks in use on all replicas, room for answers included")
    kv_blocks_used_on_prefill: int = whole("those of them on prefills: KV cache to be moved")
    block_tokens: int = whole("tokens per KV block", least=1, most=10**6)
    kv_blocks_per_replica: int = whole("KV blocks one replica has", least=1)
    prefill_tokens_per_s: float | None = number("prompt tokens one prefill computes per second", None)
    kv_ingress_tokens_per_s: float | None = number("tokens of KV cache one decode receives per second", None)
    time_s: float = number("when, on any clock that does not jump", 0.0, above=False)
    pending_prefills: int = whole("those of the prefills that still load", 0, most=MOST_REPLICAS)
    pending_decodes: int = whole("those of the decodes that still load", 0, most=MOST_REPLICAS)
    measured: MeasuredTraffic = record("what was measured of traffic", MeasuredTraffic, MeasuredTraffic())  # noqa: RUF009
    replicas: tuple[ReplicaLoad, ...] = records("each replica, where they are known", ReplicaLoad)
    arrivals_ahead: tuple[Arrival, ...] = records("requests to come, for the policy oracle", Arrival)

    # The prefills and the decodes: computed once, as a policy asks for those of a whole history.
    pools: tuple[RolePool, RolePool] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        listed: dict[CountsAs, list[ReplicaLoad]] = {role: [] for role in CountsAs}
        for one in self.replicas:
            listed[STATES[one.state].counts_as].append(one)
        prefills, decodes = tuple(listed[CountsAs.PREFILL]), tuple(listed[CountsAs.DECODE])
        pools = (
            self._pool("prefill", self.prefills, self.pending_prefills, prefills, self._waiting(prefills)),
            self._pool("decode", self.decodes, self.pending_decodes, decodes, ()),
        )
        object.__setattr__(self, "pools", pools)

    def _pool(
        self, role: str, size: int, pending: int, listed: tuple[ReplicaLoad, ...], waiting: tuple[float, ...]
    ) -> RolePool:
        ready = sum(one.ready and one.state in SERVING for one in listed) if listed else size - pending
        blocks = self.kv_blocks_per_replica
        uses = tuple(one.kv_blocks_used / (one.kv_blocks or blocks) for one in listed)
        if size and not listed:
            on_prefill = self.kv_blocks_used_on_prefill
            used = on_prefill if role == "prefill" else self.kv_blocks_used - on_prefill
            uses = (used / (size * blocks),)
        return RolePool(role, size, pending, ready, listed, uses, waiting)

    def _waiting(self, listed: tuple[ReplicaLoad, ...]) -> tuple[float, ...]:
        """The own queue of each prefill, and an equal share of the prompt tokens that no prefill has."""
        if not self.prefills:
            return ()
        own = sum(one.waiting_prompt_tokens for one in listed)
        share = max(0, self.waiting_prompt_tokens - own) / self.prefills
        return tuple(one.waiting_prompt_tokens + share for one in listed) or (share,)


SERVING = frozenset(state for state, facts in STATES.items() if facts.serves)


class RolePool(NamedTuple):
    """The replicas of a role. `replicas` is empty where only their number is known.

    `kv_uses`: the share of its KV blocks each uses; `waiting_tokens`: prompt tokens waiting for each prefill. Both have
    one value, the mean, where only the number is known.
    """

    role: str
    size: int
    pending: int
    ready: int
    replicas: tuple[ReplicaLoad, ...]
    kv_uses: tuple[float, ...]
    waiting_tokens: tuple[float, ...]

    @property
    def letter(self) -> str:
        return self.role[0].upper()


COUNTERS = {  # a rate → the counters it is measured from
    "prefill_tokens_per_s": ("prefilled_tokens", "prefill_busy_s"),
    "kv_ingress_tokens_per_s": ("received_kv_tokens", "kv_ingress_busy_s"),
}


def estimate(history: Sequence[Observation]) -> tuple[Observation, ...]:
    """The history with the rates of its newest observation: as given, else measured from the counters of two."""
    now = history[-1]
    rates: dict[str, Any] = {name: getattr(now, name) or _measured(history, *COUNTERS[name]) for name in COUNTERS}
    traffic = now.measured
    if traffic.kv_arrival_tokens_per_s is None and len(history) > 1 and now.time_s - history[-2].time_s > SMALLEST:
        names = COUNTERS["prefill_tokens_per_s"]
        gain = counter_gain(read_counters(history[-2].replicas, *names), read_counters(now.replicas, *names))
        if gain is not None:
            arrival = gain[0] / (now.time_s - history[-2].time_s)
            traffic = dataclasses.replace(traffic, kv_arrival_tokens_per_s=arrival)
    return (*history[:-1], dataclasses.replace(now, measured=traffic, **rates))


def needed_rate(policy: str, now: Observation, name: str) -> float:
    """A rate of the observation. Raise UsageError if it is neither given nor measured."""
    rate: float | None = getattr(now, name)
    if rate is None:
        counters = " and ".join(COUNTERS[name])
        raise UsageError(
            f"the policy {policy} needs `{name}`, which is neither given nor measured",
            f"add it to the observation, or a `history` whose replicas have {counters}",
        )
    return rate


def _measured(history: Sequence[Observation], amount: str, busy: str) -> float | None:
    """Tokens per busy second since the previous observation; since the oldest if nothing was busy since then."""
    now = read_counters(history[-1].replicas, amount, busy)
    for earlier in (*history[-2:-1], *history[:1]):
        gain = counter_gain(read_counters(earlier.replicas, amount, busy), now)
        if gain is not None and gain[1] > SMALLEST:
            return gain[0] / gain[1] or None
    return None


def read_counters(replicas: Sequence[ReplicaLoad], amount: str, busy: str) -> dict[str, tuple[int, float]]:
    """Two counters of each replica that has both, by its name."""
    read = attrgetter("name", amount, busy)
    return {name: (many, spent) for name, many, spent in map(read, replicas) if many is not None and spent is not None}


def counter_gain(
    earlier: Mapping[str, tuple[int, float]], now: Mapping[str, tuple[int, float]]
) -> tuple[int, float] | None:
    """What two counters have grown by, summed over the replicas that have both at both times; None if there is none.

    A replica that was started anew counts from 0 again, and is left out.
    """
    counts, total, seconds = False, 0, 0.0
    for name, (many, spent) in now.items():
        if name in earlier:
            many_before, spent_before = earlier[name]
            if many >= many_before and spent >= spent_before:
                counts, total, seconds = True, total + many - many_before, seconds + spent - spent_before
    return (total, seconds) if counts else None


def read_observation(value: object, place: JsonPlace, beside: Sequence[str] = ()) -> Observation:
    """Raise UsageError, also where members contradict each other. `beside`: names that may stand there too."""
    found = read_record(Observation, value, place, beside)
    for part, total in (
        ("kv_blocks_used_on_prefill", "kv_blocks_used"),
        ("pending_prefills", "prefills"),
        ("pending_decodes", "decodes"),
    ):
        if getattr(found, part) > getattr(found, total):
            numbers = f"{getattr(found, part):,} of {getattr(found, total):,}"
            raise UsageError(f"{place.member(part)} is more than `{total}`: {numbers}", f"count them in `{total}` too")
    return _counted(found, place) if found.replicas else found


def _counted(found: Observation, place: JsonPlace) -> Observation:
    """The observation with the pending replicas that its list of replicas shows."""
    names = Counter(one.name for one in found.replicas)
    if twice := [name for name, count in names.items() if count > 1]:
        raise UsageError(f"{place.member('replicas')} has two named {shown(twice[0])}", "give each a name of its own")
    pools = found.pools
    pending = []
    for pool, member in zip(pools, ("prefills", "decodes"), strict=True):
        if pool.size != len(pool.replicas):
            raise UsageError(
                f"{place.member(member)} is {pool.size}, but {len(pool.replicas)} of `replicas` are in a state that "
                f"counts as {pool.role}",
                f"set it to {len(pool.replicas)}, or complete the list",
            )
        loading = sum(STATES[one.state].weights is Weights.LOADING for one in pool.replicas)
        if pool.pending not in (0, loading):
            raise UsageError(
                f"{place.member(f'pending_{member}')} is {pool.pending}, but {loading} of `replicas` are loading",
                "leave it out: the list says it",
            )
        pending.append(loading)
    return dataclasses.replace(found, pending_prefills=pending[0], pending_decodes=pending[1])
