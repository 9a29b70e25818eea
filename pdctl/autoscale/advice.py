"""What every policy says of a fleet, look after look, and the record of the looks, from which it says the same again.

A record is JSON, line by line: first who decides and by which settings, then one line per look.
"""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from pdctl.errors import UsageError
from pdctl.json_records import JsonPlace, figures, number, parse_object, read_record, said
from pdctl.policy import POLICIES, DecisionInput, ScalingPolicyName, decide
from pdctl.policy.constraints import Limits
from pdctl.policy.observation import read_observation
from pdctl.quick_definitions import NamedTuple
from pdctl.suggestions import hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pdctl.policy.decision import Decision
    from pdctl.policy.observation import Observation

RECORD, ADVICE = "pdctl.fleet-record/1", "pdctl.advice/1"
ADVISERS = tuple(name for name in ScalingPolicyName if name is not ScalingPolicyName.ORACLE)
MEMBERS = ("limits", "rates", "settings")
LEAST_KEPT = 60.0  # seconds of looks that are kept for the policies
MOST_KEPT = 512  # looks; those of a window that has more are kept that far apart
MOST_REPLICAS_KEPT = 10**6  # in all observations that are kept
MOMENT = re.compile(r"[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}(\.[0-9]{1,6})?Z")  # `at` of a look
LARGEST_LINE = 64 << 20  # bytes of one line of a record
# What to do about a file that is something else than was asked for.
SETTINGS = "settings are a JSON object of `limits`, `settings` and `rates`: docs/autoscale.md"
RECORDED, NO_LOOK = "give a file of --record", "remove the line"


@dataclass(frozen=True, slots=True)
class FixedRates:
    """Rates that win over what is observed."""

    prefill_tokens_per_s: float | None = number("prompt tokens one prefill computes per second", None)
    kv_ingress_tokens_per_s: float | None = number("tokens of KV cache one decode receives per second", None)

    def put_into(self, seen: Observation) -> Observation:
        return dataclasses.replace(
            seen,
            prefill_tokens_per_s=self.prefill_tokens_per_s or seen.prefill_tokens_per_s,
            kv_ingress_tokens_per_s=self.kv_ingress_tokens_per_s or seen.kv_ingress_tokens_per_s,
        )


class AdviceSettings(NamedTuple):
    """`settings`: of each policy that has others than its defaults, a record of its own."""

    policies: tuple[ScalingPolicyName, ...]
    settings: Mapping[ScalingPolicyName, Any]
    limits: Limits
    rates: FixedRates

    def document(self) -> dict[str, object]:
        """The first line of a record."""
        own = {name.value: as_members(one) for name, one in self.settings.items()}
        names = [name.value for name in self.policies]
        chosen = {"limits": as_members(self.limits), "rates": as_members(self.rates), "settings": own}
        return {"schema": RECORD, "policies": names, **chosen}

    @property
    def window_s(self) -> float:
        """How far back any of the policies or limits looks, in seconds."""
        found = [LEAST_KEPT, self.limits.cooldown_up_s, self.limits.cooldown_down_s]
        for name in self.policies:
            one = self.settings.get(name, POLICIES[name].settings())
            found += [getattr(one, each) for each in figures(type(one)) if each.endswith("window_s")]
        return max(found)


class RecordedLook(NamedTuple):
    """One look. `at`: the time of day, as text; `observation`: None where nothing could be observed."""

    at: str
    observation: Observation | None
    notes: tuple[str, ...]

    def document(self) -> dict[str, object]:
        seen = None if self.observation is None else as_members(self.observation)
        return {"at": self.at, "observation": seen, "notes": list(self.notes)}


class Advice(NamedTuple):
    """What the policies would do after a look. `undecided`: policy → why it cannot decide."""

    look: RecordedLook
    decisions: tuple[Decision, ...]
    undecided: Mapping[str, str]

    def document(self) -> dict[str, object]:
        seen = self.look.observation
        return {
            "schema": ADVICE,
            "at": self.look.at,
            "time_s": None if seen is None else seen.time_s,
            "notes": list(self.look.notes),
            "decisions": [one.document() for one in self.decisions],
            "undecided": [{"policy": name, "because": why} for name, why in self.undecided.items()],
        }


class Adviser:
    """Asks the policies after each look, with the looks before it as far back as any of them goes."""

    def __init__(self, given: AdviceSettings) -> None:
        self._given = given
        self._history: deque[Observation] = deque()
        self._kept = 0  # replicas in the history

    def advise(self, look: RecordedLook) -> Advice:
        if look.observation is None:
            return Advice(look, (), {})
        self._remember(self._given.rates.put_into(look.observation))
        decisions, undecided = [], {}
        for name in self._given.policies:
            settings = self._given.settings.get(name, POLICIES[name].settings())
            try:
                decisions.append(decide(name, DecisionInput(tuple(self._history), settings, self._given.limits)))
            except UsageError as error:
                undecided[name.value] = error.message
        return Advice(look, tuple(decisions), undecided)

    def _remember(self, now: Observation) -> None:
        """Keep a look. The one before it makes room where looks come so fast that a window would have too many."""
        history, window_s = self._history, self._given.window_s
        if len(history) > 1 and history[-1].time_s - history[-2].time_s < window_s / MOST_KEPT:
            self._kept -= len(history.pop().replicas)
        history.append(now)
        self._kept += len(now.replicas)
        oldest = now.time_s - window_s
        while len(history) > 2 and (history[1].time_s <= oldest or self._kept > MOST_REPLICAS_KEPT):
            self._kept -= len(history.popleft().replicas)


def choose_policies(words: str, place: str = "--policy") -> tuple[ScalingPolicyName, ...]:
    """The policies of `blitz,kpa`; all that can watch for ``. Raise UsageError for one that is none, or cannot."""
    if not words:
        return ADVISERS
    known = [name.value for name in ScalingPolicyName]
    found = []
    for word in (one.strip() for one in words.split(",")):
        if word not in known:
            raise UsageError(
                f"{place}: there is no policy `{word[:40]}`", hint(word, known) or f"one of {', '.join(known)}"
            )
        name = ScalingPolicyName(word)
        if name not in ADVISERS:
            raise UsageError(f"{place}: {word} decides by arrivals to come, which nobody observes", "leave it out")
        found.append(name)
    return tuple(dict.fromkeys(found))


def read_settings(data: bytes, file: str, policies: tuple[ScalingPolicyName, ...] | None) -> AdviceSettings:
    """Settings and limits of a file, or of the first line of a record. Raise UsageError naming what is wrong with it.

    `policies`: those asked; None for those that the record names.
    """
    members, place = parse_object(data, file, SETTINGS if policies is not None else RECORDED), JsonPlace(file)
    schema, named = members.pop("schema", None), members.pop("policies", None)
    if policies is None and schema != RECORD:
        raise UsageError(f"{file} is no record: its first line has no `schema` {RECORD}", RECORDED)
    for member in members:
        if member not in MEMBERS:
            fix = hint(member, MEMBERS) or f"its members are {', '.join(MEMBERS)}"
            raise UsageError(f"{file}: there is no member `{member[:40]}`", fix)
    if policies is None:
        if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
            raise UsageError(f"{place.member('policies')} is {said(named)}, not a list of names", "record it again")
        policies = choose_policies(",".join(named), str(place.member("policies")))
    given, at = members.get("settings", {}), place.member("settings")
    if not isinstance(given, dict):
        raise UsageError(f"{at} is {said(given)}, not an object", 'write {"kpa": {"drain_s": 1.0}}, for example')
    settings: dict[ScalingPolicyName, Any] = {}
    for word, one in given.items():
        known = [name.value for name in ADVISERS]
        if word not in known:
            fix = hint(word, known) or f"one of {', '.join(known)}"
            raise UsageError(f"{at}: there is no policy `{word[:40]}`", fix)
        name = ScalingPolicyName(word)
        settings[name] = read_record(POLICIES[name].settings, one, at.member(word))
    limits = read_record(Limits, members.get("limits", {}), place.member("limits"))
    rates = read_record(FixedRates, members.get("rates", {}), place.member("rates"))
    return AdviceSettings(policies, settings, limits, rates)


def read_looks(lines: Iterable[tuple[int, bytes]], file: str) -> Iterator[RecordedLook]:
    """The looks of the numbered lines of a record after its first. Raise UsageError for the first that is wrong."""
    last = None
    for at_line, line in lines:
        place = JsonPlace(f"{file}:{at_line}")
        members = parse_object(line, place.file, NO_LOOK)
        at, seen, notes = members.get("at"), members.get("observation"), members.get("notes")
        if not isinstance(at, str) or not isinstance(notes, list) or not all(isinstance(one, str) for one in notes):
            raise UsageError(f"{place} is no look at a fleet: it needs `at`, `observation` and `notes`", NO_LOOK)
        if not MOMENT.fullmatch(at):
            raise UsageError(
                f"{place.member('at')} is {said(at)}, not a time such as 2026-11-24T01:00:00.000Z", NO_LOOK
            )
        observation = None
        if seen is not None:
            if not isinstance(seen, dict):
                raise UsageError(f"{place.member('observation')} is {said(seen)}, not an object", NO_LOOK)
            observation = read_observation(seen, place.member("observation"), ())
            if last is not None and observation.time_s <= last:
                raise UsageError(
                    f"{place.member('observation.time_s')} is {observation.time_s:g}, and the look before has {last:g}",
                    "keep the lines of a record in their order",
                )
            last = observation.time_s
        yield RecordedLook(at, observation, tuple(notes))


def split_lines(chunks: Iterable[bytes], file: str, tell_cut: Callable[[int], None]) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, without the last where it was not written to its end, which is told.

    Raise UsageError for a line that is too long, or if not even the first was written to its end.
    """
    parts, size, number = list[bytes](), 0, 0
    for chunk in chunks:
        first, *more = chunk.split(b"\n")
        parts.append(first)
        size += len(first)
        if more:
            *whole, last = (b"".join(parts), *more)
            for line in whole:
                number += 1
                yield number, line
            parts, size = [last], len(last)
        if size > LARGEST_LINE:
            raise UsageError(f"{file}:{number + 1} is longer than {LARGEST_LINE >> 20} MiB", RECORDED)
    rest = b"".join(parts)
    if rest and not number:
        raise UsageError(f"{file} is cut: its first line was not written to its end", RECORDED)
    if rest:
        tell_cut(number + 1)


def as_members(record: Any) -> dict[str, object]:  # noqa: ANN401 - any record of figures
    """The members of a record in JSON, without those that have their defaults."""
    found: dict[str, object] = {}
    known = figures(type(record))
    for field in dataclasses.fields(record):
        if field.name in known and (value := getattr(record, field.name)) != field.default:
            found[field.name] = _as_value(value)
    return found


def _as_value(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_as_value(one) for one in value]
    return as_members(value) if dataclasses.is_dataclass(value) else value
