"""Request traces made from a seed: how the rate of requests goes, how long prompts and answers are, what prompts share.

A trace is written `NAME` or `NAME:PARAMETER=VALUE,…`. The same text and seed give the same requests on every machine,
but for the last bit of a logarithm: nothing is drawn but `random.Random.random`, from one stream for each purpose.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple
from pdctl.simulation.request_trace import MOST_TOKENS, RequestTable, RequestTrace
from pdctl.suggestions import hint
from pdctl.units import UnitError, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Values = Mapping[str, float]
    Knots = Iterable[tuple[float, float]]  # (second, requests per second), straight lines between them

MOST_REQUESTS = 10**7  # made in half a minute
LONGEST = 30 * 86_400.0  # seconds of a trace
BLOCK_TOKENS = 512  # of a prefix block, as in Mooncake's traces
WAVE_KNOTS = 48  # of one period: straight lines between them are at most 0.11 % of the wave's height away from it


class TraceParameter(NamedTuple):
    """`kind`: `time` in seconds or with a unit, `whole` or `number`."""

    kind: str
    meaning: str
    least: float
    most: float


PARAMETERS = {
    "rate": TraceParameter("number", "requests per second where the trace has fewest", 1e-3, 1e6),
    "factor": TraceParameter("number", "how many times as many it has at its highest", 1, 1000),
    "duration": TraceParameter("time", "length of the trace", 1, LONGEST),
    "at": TraceParameter("number", "share of the duration after which the change comes", 0, 1),
    "period": TraceParameter("time", "from one wave, burst or day to the next", 1, LONGEST),
    "burst": TraceParameter("time", "length of a burst, which lies in the middle of its period", 0.1, LONGEST),
    "cv": TraceParameter("number", "arrivals: Gamma, with this coefficient of variation; 1: Poisson, 0: even", 0, 10),
    "prompt": TraceParameter("number", "mean tokens of a prompt", 1, 10**6),
    "prompt_cv": TraceParameter("number", "their coefficient of variation (lognormal; 0: all alike)", 0, 4),
    "output": TraceParameter("number", "mean tokens of an answer", 1, 10**6),
    "output_cv": TraceParameter("number", "their coefficient of variation (lognormal; 0: all alike)", 0, 4),
    "later_prompt": TraceParameter("number", "mean tokens of a prompt after the change", 1, 10**6),
    "later_output": TraceParameter("number", "mean tokens of an answer after the change", 1, 10**6),
    "long": TraceParameter("number", "share of the answers that are longer than the others", 0, 1),
    "longer": TraceParameter("number", "how many times as long these are", 1, 1000),
    "prefix": TraceParameter("number", "share of a prompt that is the same for its whole group", 0, 1),
    "groups": TraceParameter("whole", "groups of prompts that begin alike", 1, 10**6),
}

EVERY_TRACE: Values = {
    "rate": 4, "duration": 300, "cv": 1, "prompt": 1024, "prompt_cv": 0.5, "output": 128, "output_cv": 0.5,
    "prefix": 0, "groups": 16,
}  # fmt: skip


class SyntheticTrace(NamedTuple):
    """`defaults`: of its own parameters, and of those of every trace that have another default here."""

    meaning: str
    defaults: Values
    knots: Callable[[Values], Knots]


def _steady(values: Values) -> Knots:
    return (0, values["rate"]), (values["duration"], values["rate"])


def _step(values: Values) -> Knots:
    low, high, change = values["rate"], values["rate"] * values["factor"], values["at"] * values["duration"]
    return (0, low), (change, low), (change, high), (values["duration"], high)


def _ramp(values: Values) -> Knots:
    return (0, values["rate"]), (values["duration"], values["rate"] * values["factor"])


def _sinusoid(values: Values) -> Knots:
    height = values["rate"] * (values["factor"] - 1)
    for at in range(math.ceil(values["duration"] / values["period"] * WAVE_KNOTS) + 1):
        share = (1 - math.cos(math.tau * (at % WAVE_KNOTS) / WAVE_KNOTS)) / 2
        yield at / WAVE_KNOTS * values["period"], values["rate"] + height * share


def _burst(values: Values) -> Knots:
    low, high, period, burst = values["rate"], values["rate"] * values["factor"], values["period"], values["burst"]
    if burst > period:
        raise UsageError(f"a burst of {burst:g} s does not fit into a period of {period:g} s", "lower `burst`")
    for at in range(math.ceil(values["duration"] / period)):
        begin = at * period + (period - burst) / 2
        yield from ((at * period, low), (begin, low), (begin, high), (begin + burst, high), (begin + burst, low))
        yield (at + 1) * period, low


# An invented day, by the hour: where the rate lies between its lowest, at night, and its highest, in the evening.
DAY = (
    0.30, 0.18, 0.10, 0.04, 0.00, 0.02, 0.10, 0.26, 0.50, 0.74, 0.88, 0.92,
    0.84, 0.80, 0.84, 0.88, 0.86, 0.80, 0.78, 0.86, 0.96, 1.00, 0.82, 0.54,
)  # fmt: skip


def _diurnal(values: Values) -> Knots:
    height, hour = values["rate"] * (values["factor"] - 1), values["period"] / len(DAY)
    for at in range(math.ceil(values["duration"] / hour) + 1):
        yield at * hour, values["rate"] + height * DAY[at % len(DAY)]


TRACES: Mapping[str, SyntheticTrace] = {
    "steady": SyntheticTrace("the same rate all the time", {}, _steady),
    "step": SyntheticTrace("the rate jumps once and stays", {"factor": 3, "at": 0.4}, _step),
    "ramp": SyntheticTrace("the rate rises evenly from the start to the end", {"factor": 4}, _ramp),
    "sinusoid": SyntheticTrace(
        "the rate swings, from its lowest on", {"rate": 5, "factor": 4, "period": 150, "duration": 600}, _sinusoid
    ),
    "burst": SyntheticTrace("short bursts with quiet between them", {"factor": 5, "period": 60, "burst": 10}, _burst),
    "phase-shift": SyntheticTrace(
        "long prompts with short answers, then short prompts with long answers",
        {"at": 0.5, "prompt": 4096, "output": 64, "later_prompt": 512, "later_output": 512},
        _steady,
    ),
    "decode-skew": SyntheticTrace(
        "a few answers are many times as long as the others", {"long": 0.05, "longer": 16}, _steady
    ),
    "diurnal": SyntheticTrace(
        "days with a night, a working day and an evening, in short",
        {"rate": 2, "factor": 6, "period": 600, "duration": 1200},
        _diurnal,
    ),
}


def trace_names() -> tuple[str, ...]:
    return tuple(TRACES)


def make_request_trace(spec: str, seed: int) -> RequestTrace:
    """Raise UsageError for a trace, parameter or value that does not exist, or for far too many requests."""
    name, _, written = spec.partition(":")
    trace = TRACES.get(name)
    if trace is None:
        raise UsageError(f"there is no synthetic trace `{name}`", hint(name, TRACES))
    values = {**EVERY_TRACE, **trace.defaults}
    given = set()
    for part in written.split(",") if written else ():
        key, equals, text = part.partition("=")
        if key not in values:
            raise UsageError(f"the trace {name} has no parameter `{key}`", hint(key, values) or _listed(values))
        if not equals:
            raise UsageError(f"`{key}` of the trace {name} has no value", f"write {key}={values[key]:g}")
        if key in given:
            raise UsageError(f"`{key}` of the trace {name} is given twice", "write it once")
        given.add(key)
        values[key] = _value(name, key, text)
    most = values["rate"] * values.get("factor", 1) * values["duration"]
    if most > MOST_REQUESTS:
        raise UsageError(
            f"{spec} can have {most:,.0f} requests, more than {MOST_REQUESTS:,}", "lower rate, factor or duration"
        )
    requests = RequestTable()
    block_tokens = _fill(requests, values, trace.knots(values), seed)
    if not requests:
        raise UsageError(f"{spec} has no request with the seed {seed}", "raise rate or duration")
    return RequestTrace(spec, requests, block_tokens)


def _listed(values: Values) -> str:
    return f"it has {', '.join(values)}"


def _value(trace: str, key: str, text: str) -> float:
    known = PARAMETERS[key]
    try:
        value = parse_duration(text) if known.kind == "time" and text[-1:].isalpha() else float(text)
    except UnitError as error:
        raise UsageError(f"`{key}={text}` of the trace {trace}: {error}", error.fix) from None
    except ValueError:
        value = math.nan
    if not known.least <= value <= known.most or (known.kind == "whole" and value % 1):
        raise UsageError(f"`{key}={text}` of the trace {trace} is not {wanted(known)}", f"write {key}=VALUE within it")
    return value


def wanted(known: TraceParameter) -> str:
    what = {"time": "a time", "whole": "a whole number", "number": "a number"}[known.kind]
    unit = " seconds" if known.kind == "time" else ""
    return f"{what} from {known.least:,g} to {known.most:,.0f}{unit}"


def _fill(requests: RequestTable, values: Values, knots: Knots, seed: int) -> int:
    """Append the requests; return the tokens of a prefix block, 0 if the prompts share nothing."""
    prompts, answers, skews, groups = (Random(f"{seed}/{what}") for what in ("prompts", "answers", "skews", "groups"))
    change = values["at"] * values["duration"] if "later_prompt" in values else math.inf
    own_block = int(values["groups"]) * (MOST_TOKENS // BLOCK_TOKENS)  # above the blocks of the groups
    for second in _arrivals(knots, values["duration"], values["cv"], Random(f"{seed}/arrivals")):
        later = "later_" if second >= change else ""
        prompt = _tokens(values[f"{later}prompt"], values["prompt_cv"], prompts)
        longer = values["longer"] if "long" in values and skews.random() < values["long"] else 1
        output = _tokens(values[f"{later}output"] * longer, values["output_cv"], answers)
        blocks: list[int] = []
        if values["prefix"]:
            first = int(groups.random() * values["groups"]) * (MOST_TOKENS // BLOCK_TOKENS)
            shared = int(values["prefix"] * prompt) // BLOCK_TOKENS
            own = -(-prompt // BLOCK_TOKENS) - shared
            blocks = [*range(first, first + shared), *range(own_block, own_block + own)]
            own_block += own
        requests.append(round(second * 1e9), prompt, output, blocks)
    return BLOCK_TOKENS if values["prefix"] else 0


def _arrivals(knots: Knots, duration: float, cv: float, random: Random) -> Iterator[float]:
    """Seconds of arrivals: the gaps of a process of one request per unit, stretched to the rate of each moment."""
    shape = 1 / cv**2 if cv else 0.0
    left = _gap(shape, random)  # requests until the next arrival, a fraction
    begin, rate = 0.0, 0.0
    for end, end_rate in knots:
        length = end - begin
        slope = (end_rate - rate) / length if length else 0.0
        requests, done = (rate + end_rate) / 2 * length, 0.0
        while done + left < requests:
            done += left
            # The root of rate·x + slope·x²/2 = done that neither divides by 0 nor cancels digits.
            second = begin + 2 * done / (rate + math.sqrt(max(0.0, rate * rate + 2 * slope * done)))
            if second >= duration:
                return
            yield second
            left = _gap(shape, random)
        left -= requests - done
        begin, rate = end, end_rate


def _gap(shape: float, random: Random) -> float:
    """A gap of mean 1: Gamma with that shape, by Ahrens and Dieter's GS for its fraction; 1 where `shape` is 0."""
    if not shape:
        return 1.0
    if shape == 1:
        return -math.log(1 - random.random())
    whole, fraction = int(shape), shape % 1
    total = -sum(math.log(1 - random.random()) for _ in range(whole))
    while fraction:
        drawn = (1 + fraction / math.e) * random.random()
        if drawn <= 1:
            piece = drawn ** (1 / fraction)
            accepted = random.random() <= math.exp(-piece)
        else:
            piece = -math.log((1 + fraction / math.e - drawn) / fraction)
            accepted = random.random() <= piece ** (fraction - 1)
        if accepted:
            total += piece
            break
    return total / shape


def _tokens(mean: float, cv: float, random: Random) -> int:
    """A lognormal length, by Box and Muller's formula. Two numbers are drawn whatever `cv` is."""
    radius, angle = math.sqrt(-2 * math.log(1 - random.random())), math.tau * random.random()
    variance = math.log(1 + cv * cv)
    length = mean * math.exp(math.sqrt(variance) * radius * math.cos(angle) - variance / 2)
    return min(max(1, round(length)), MOST_TOKENS)
