"""What a policy sees: a fleet at one moment, in frozen values, and how a JSON object that describes it is read.

The fields of a record are its members in JSON; each field's `Figure` says what the member means and which values it
takes. `tokens` are prompt tokens or tokens of KV cache, times are seconds, rates are those of one replica.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple
from pdctl.replica.states import STATES, CountsAs, ReplicaState, Weights
from pdctl.suggestions import hint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_REPLICAS = 10**6
SMALLEST = 1e-6  # of a number that is above 0: quotients stay within what a float can be
LARGEST = 10**15  # of any count of tokens or blocks, and of any rate or time: more than a fleet of 10⁶ replicas has
SHAPE = "an observation is a JSON object: docs/autoscale.md"
QUOTED = 40  # characters of a wrong value that an error repeats

Record = TypeVar("Record")


class Figure(NamedTuple):
    """What a member is. `of`: the record of an object or of a list's entries."""

    kind: str  # whole, number, flag, text, choice, range, whole range, object, list
    meaning: str
    least: float = 0
    most: float = LARGEST
    of: type[Any] | None = None

    @property
    def wanted(self) -> str:
        bounds = f"from {'0.000001' if self.least == SMALLEST else f'{self.least:,}'} to {self.most:,}"
        return {
            "whole": f"a whole number {bounds}",
            "number": f"a number {bounds}",
            "flag": "true or false",
            "text": "a non-empty text",
            "choice": "a state",
            "range": f"a list of two numbers {bounds}, the lower one first",
            "whole range": f"a list of two whole numbers {bounds}, the lower one first",
            "object": "an object",
            "list": "a list of objects",
        }[self.kind]


REQUIRED: Any = dataclasses.MISSING


def whole(meaning: str, default: Any = REQUIRED, least: int = 0, most: int = LARGEST) -> Any:  # noqa: ANN401 - a field
    return _field(default, Figure("whole", meaning, least, most))


def number(meaning: str, default: Any = REQUIRED, most: float = LARGEST, *, above: bool = True) -> Any:  # noqa: ANN401
    return _field(default, Figure("number", meaning, SMALLEST if above else 0, most))


def span(meaning: str, default: Any, most: float) -> Any:  # noqa: ANN401
    return _field(default, Figure("range", meaning, SMALLEST, most))


def whole_span(meaning: str, default: Any, least: int, most: int) -> Any:  # noqa: ANN401
    return _field(default, Figure("whole range", meaning, least, most))


def record(meaning: str, of: type[Any], default: Any = REQUIRED) -> Any:  # noqa: ANN401
    return _field(default, Figure("object", meaning, of=of))


def records(meaning: str, of: type[Any]) -> Any:  # noqa: ANN401
    return _field((), Figure("list", meaning, of=of))


def _field(default: object, figure: Figure) -> Any:  # noqa: ANN401
    return dataclasses.field(default=default, metadata={"figure": figure})


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

    name: str = _field(REQUIRED, Figure("text", "its name"))
    state: ReplicaState = _field(REQUIRED, Figure("choice", "its state", of=ReplicaState))  # noqa: RUF009 - a field
    ready: bool = _field(True, Figure("flag", "whether it answers and serves"))
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


class JsonPlace(NamedTuple):
    """A file, or what it was read from, and the path of a value in it: `replicas[3].name`; "" for all of it."""

    file: str
    path: str = ""

    def member(self, name: str) -> JsonPlace:
        return JsonPlace(self.file, f"{self.path}.{name}" if self.path else name)

    def entry(self, at: int) -> JsonPlace:
        return JsonPlace(self.file, f"{self.path}[{at}]")

    def __str__(self) -> str:
        return f"{self.file}: `{self.path}`" if self.path else self.file


def parse_object(data: bytes, file: str, shape: str = SHAPE) -> dict[str, object]:
    """The JSON object that the file is. Raise UsageError, whose fix is `shape` where the file is something else."""

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if twice:
            raise UsageError(f"{file}: `{twice[0][:QUOTED]}` stands twice in one object", "keep one of them")
        return dict(pairs)

    try:
        text = data.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=members, parse_int=_whole)
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: byte {error.start + 1} is not UTF-8", "save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        if not text.strip():
            raise UsageError(f"{file} is empty", shape) from None
        words = error.msg[:1].lower() + error.msg[1:]
        raise UsageError(f"{file}:{error.lineno}:{error.colno}: not JSON: {words}", "mend the file there") from None
    except RecursionError:
        raise UsageError(f"{file}: nested too deep to be read", shape) from None
    if not isinstance(value, dict):
        raise UsageError(f"{file} is {said(value)}, not an object", shape)
    return value


def _whole(text: str) -> int | float:
    """An integer; one of many digits, with which int() is slow or which it refuses, as a float, inf for example."""
    return int(text) if len(text) < QUOTED else float(text)


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


def figures(of: type[Any]) -> dict[str, Figure]:
    """The members of a record by name."""
    return {field.name: field.metadata["figure"] for field in dataclasses.fields(of) if field.init}


def read_record(of: type[Record], value: object, place: JsonPlace, beside: Sequence[str] = ()) -> Record:
    """The record that a JSON object describes. Raise UsageError for the first unknown, wrong or missing member."""
    if not isinstance(value, dict):
        refuse(value, Figure("object", ""), place)
    known = figures(of)
    for name in value:
        if name not in known:
            names = (*known, *beside)
            fix = hint(name, names) or f"its members are {', '.join(names)}"
            raise UsageError(f"{place}: there is no member `{name[:QUOTED]}`", fix)
    given: dict[str, object] = {}
    for name, figure in known.items():
        if name in value:
            given[name] = read_value(value[name], figure, place.member(name))
    for field in dataclasses.fields(of):  # type: ignore[arg-type]  # a record is a dataclass
        if field.name in known and field.name not in given and field.default is REQUIRED:
            figure = known[field.name]
            raise UsageError(f"{place.member(field.name)} is missing", f"add it: {figure.meaning}, {figure.wanted}")
    return of(**given)


def read_value(value: object, figure: Figure, place: JsonPlace) -> object:
    kind = figure.kind
    if kind == "object" and figure.of is not None:
        return read_record(figure.of, value, place)
    if kind == "list" and figure.of is not None and isinstance(value, list):
        return tuple(read_record(figure.of, one, place.entry(at)) for at, one in enumerate(value))
    if kind == "choice" and figure.of is not None and issubclass(figure.of, Enum) and isinstance(value, str):
        names = [each.value for each in figure.of]
        if value not in names:
            fix = hint(value, names) or f"one of {', '.join(names)}"
            raise UsageError(f"{place} is {shown(value)}, which is no {figure.wanted[2:]}", fix)
        return figure.of(value)
    if (
        (kind in ("whole", "number") and _is_number(value, figure))
        or (kind == "flag" and isinstance(value, bool))
        or (kind == "text" and isinstance(value, str) and value)
    ):
        return value
    is_range = kind in ("range", "whole range") and isinstance(value, list) and len(value) == 2
    if is_range and isinstance(value, list) and all(_is_number(one, figure) for one in value):
        if value[0] <= value[1]:
            return tuple(value)
        raise UsageError(f"{place} begins above its end: {value[0]:g} > {value[1]:g}", "write the lower number first")
    refuse(value, figure, place)


def _is_number(value: object, figure: Figure) -> bool:
    """Whether it is a number of its kind within the bounds; a bool, nan and what is infinite never are."""
    kinds = int if figure.kind.startswith("whole") else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value):
        return False
    return figure.least <= value <= figure.most


def refuse(value: object, figure: Figure, place: JsonPlace) -> NoReturn:
    raise UsageError(f"{place} is {said(value)}, not {figure.wanted}", f"give {figure.wanted}")


def said(value: object) -> str:
    """A JSON value in words, short whatever it is."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return f"the text {shown(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, float) and math.isinf(value):  # Infinity, 1e400, or thousands of digits
        return "a number above 1.79e308" if value > 0 else "a number below -1.79e308"
    if isinstance(value, float):  # as written: 2.0 is not the whole number 2
        return "NaN" if math.isnan(value) else repr(value)
    return f"{value:,}"


def shown(text: str) -> str:
    return f"{text[:QUOTED]!r}{'…' if len(text) > QUOTED else ''}"
