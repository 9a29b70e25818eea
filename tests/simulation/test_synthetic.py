from __future__ import annotations

import hashlib
import math
import pickle
import subprocess
import sys
from array import array
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.errors import UsageError
from pdctl.simulation.request_trace import RequestTable, TraceRequest
from pdctl.simulation.synthetic import PARAMETERS, TRACES, make_request_trace, trace_names
from tests.cases import for_each

NS = 10**9
HASHED = """
import hashlib
from pdctl.simulation.synthetic import make_request_trace, trace_names
digest = hashlib.sha256()
for name in trace_names():
    for one in make_request_trace(f"{name}:prefix=0.5", 7).requests:
        digest.update(repr(tuple(one)).encode())
print(digest.hexdigest())
"""


def seconds(spec: str, seed: int = 1) -> list[float]:
    return [one / NS for one in make_request_trace(spec, seed).requests.arrival_ns]


def rate(arrivals: list[float], begin: float, end: float) -> float:
    return sum(begin <= one < end for one in arrivals) / (end - begin)


@for_each("name", trace_names())
def test_every_trace_is_in_order_and_within_its_bounds(name: str) -> None:
    trace = make_request_trace(name, 3)
    duration = {"duration": 300.0, **TRACES[name].defaults}["duration"]
    times = trace.requests.arrival_ns
    assert len(times) > 500
    assert list(times) == sorted(times)
    assert times[0] >= 0
    assert times[-1] < duration * NS
    assert all(one.prompt_tokens >= 1 and one.output_tokens >= 1 for one in trace.requests)
    assert trace.prefix_block_tokens == 0
    assert trace.name == name


def test_the_same_seed_gives_the_same_requests_in_another_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", HASHED], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    here = hashlib.sha256()
    for name in trace_names():
        for one in make_request_trace(f"{name}:prefix=0.5", 7).requests:
            here.update(repr(tuple(one)).encode())
    assert digests == {here.hexdigest() + "\n"}
    assert make_request_trace("steady", 7).requests != make_request_trace("steady", 8).requests


def test_one_parameter_leaves_the_others_alone() -> None:
    """Each purpose has a stream of its own, so that two runs differ in what was changed and in nothing else."""
    plain = make_request_trace("steady", 1).requests
    for changed in ("output=500", "output_cv=0", "prefix=0.5"):
        other = make_request_trace(f"steady:{changed}", 1).requests
        assert other.arrival_ns == plain.arrival_ns
        assert other.prompt_tokens == plain.prompt_tokens


@for_each("cv", [0.0, 0.1, 0.3, 0.7, 1.0, 1.5, 2.0, 4.0])
def test_gaps_have_the_mean_and_the_variation_they_were_asked_for(cv: float) -> None:
    times = seconds(f"steady:rate=100,duration=500,cv={cv}")
    gaps = [after - before for before, after in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.01, rel=0.02 * max(1, cv))
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_even_arrivals_are_where_arithmetic_puts_them() -> None:
    assert list(make_request_trace("steady:rate=4,duration=2,cv=0", 1).requests.arrival_ns) == [
        one * 250_000_000 for one in range(1, 8)
    ]
    # From 1 to 3 requests per second in 10 s: n = t + t²/10.
    ramp = make_request_trace("ramp:rate=1,factor=3,duration=10,cv=0", 1).requests.arrival_ns
    assert list(ramp) == [round((math.sqrt(25 + 10 * n) - 5) * NS) for n in range(1, 20)]


def test_the_rate_goes_as_the_name_says() -> None:
    step = seconds("step:rate=50,factor=4,at=0.25,duration=400,cv=0")
    assert rate(step, 0, 100) == pytest.approx(50, rel=0.01)
    assert rate(step, 100, 400) == pytest.approx(200, rel=0.01)
    burst = seconds("burst:rate=20,factor=5,period=60,burst=10,duration=120,cv=0")
    for begin in (0, 60):
        assert rate(burst, begin, begin + 25) == pytest.approx(20, rel=0.02)
        assert rate(burst, begin + 25, begin + 35) == pytest.approx(100, rel=0.02)
        assert rate(burst, begin + 35, begin + 60) == pytest.approx(20, rel=0.02)
    wave = seconds("sinusoid:rate=50,factor=4,period=100,duration=300,cv=0")
    for begin in (0, 100, 200):
        assert rate(wave, begin, begin + 2) == pytest.approx(50, rel=0.03)
        assert rate(wave, begin + 49, begin + 51) == pytest.approx(200, rel=0.01)
        assert rate(wave, begin, begin + 100) == pytest.approx(125, rel=0.01)
    day = seconds("diurnal:rate=20,factor=5,period=240,duration=480,cv=0")
    assert rate(day, 39, 41) == pytest.approx(20, rel=0.05)  # 4 in the morning
    assert rate(day, 209, 211) == pytest.approx(100, rel=0.05)  # 21 in the evening
    assert rate(day, 240, 480) == pytest.approx(rate(day, 0, 240), rel=0.01)


def test_lengths_have_the_mean_and_the_variation_they_were_asked_for() -> None:
    requests = make_request_trace("steady:rate=200,duration=500,prompt=2000,prompt_cv=1.5,output=300", 1).requests
    assert fmean(requests.prompt_tokens) == pytest.approx(2000, rel=0.02)
    assert pstdev(requests.prompt_tokens) / fmean(requests.prompt_tokens) == pytest.approx(1.5, rel=0.05)
    assert fmean(requests.output_tokens) == pytest.approx(300, rel=0.02)
    alike = make_request_trace("steady:prompt_cv=0,output_cv=0,prompt=77,output=5", 1).requests
    assert set(alike.prompt_tokens) == {77}
    assert set(alike.output_tokens) == {5}


def test_phases_and_skew() -> None:
    phases = make_request_trace("phase-shift:prompt_cv=0,output_cv=0,duration=100", 1).requests
    assert {(one.arrival_ns >= 50 * NS, one.prompt_tokens, one.output_tokens) for one in phases} == {
        (False, 4096, 64),
        (True, 512, 512),
    }
    skew = make_request_trace("decode-skew:rate=100,output_cv=0,output=10,longer=20,long=0.1", 1).requests
    assert set(skew.output_tokens) == {10, 200}
    assert sum(one == 200 for one in skew.output_tokens) / len(skew) == pytest.approx(0.1, rel=0.1)


def test_a_group_shares_the_begin_of_its_prompts_and_nothing_else() -> None:
    trace = make_request_trace("steady:prompt=5000,prefix=0.6,groups=4,rate=20", 1)
    assert trace.prefix_block_tokens == 512
    begins: dict[int, int] = {}
    seen: set[int] = set()
    for one in trace.requests:
        assert len(one.prefix_blocks) == math.ceil(one.prompt_tokens / 512)
        shared = int(0.6 * one.prompt_tokens) // 512
        own = one.prefix_blocks[shared:]
        assert not seen & set(own)
        seen |= set(own)
        if shared:
            assert one.prefix_blocks[:shared] == tuple(range(one.prefix_blocks[0], one.prefix_blocks[0] + shared))
            begins[one.prefix_blocks[0]] = begins.get(one.prefix_blocks[0], 0) + 1
    assert len(begins) == 4
    assert not seen & set(begins)


@for_each("name", trace_names())
def test_every_parameter_of_a_trace_is_known(name: str) -> None:
    trace = TRACES[name]
    assert set(trace.defaults) <= set(PARAMETERS)
    for key, value in trace.defaults.items():
        assert PARAMETERS[key].least <= value <= PARAMETERS[key].most


@for_each(
    "spec, message, fix",
    [
        ("brust", "there is no synthetic trace `brust`", "did you mean `burst`?"),
        ("", "there is no synthetic trace ``", "steady"),
        ("burst:", "", ""),
        ("burst:rte=3", "the trace burst has no parameter `rte`", "did you mean `rate`?"),
        ("ramp:period=3", "the trace ramp has no parameter `period`", "rate"),
        ("burst:rate", "`rate` of the trace burst has no value", "write rate=4"),
        ("burst:rate=3,rate=3", "`rate` of the trace burst is given twice", "write it once"),
        ("burst:rate=3,", "the trace burst has no parameter ``", "rate"),
        ("burst:rate=", "`rate=` of the trace burst is not a number from 0.001 to 1,000,000", "write rate="),
        ("burst:rate=x", "`rate=x` of the trace burst is not a number from 0.001 to 1,000,000", "write rate="),
        ("burst:rate=nan", "`rate=nan` of the trace burst is not a number from 0.001 to 1,000,000", "write rate="),
        ("burst:rate=inf", "`rate=inf` of the trace burst is not a number from 0.001 to 1,000,000", "write rate="),
        ("burst:rate=-1", "`rate=-1` of the trace burst is not a number from 0.001 to 1,000,000", "write rate="),
        ("burst:groups=1.5", "`groups=1.5` of the trace burst is not a whole number from 1 to 1,000,000", "write"),
        ("burst:duration=9999d", "`duration=9999d` of the trace burst: no unit of time is called d", "write 239976h"),
        ("burst:burst=2m", "a burst of 120 s does not fit into a period of 60 s", "lower `burst`"),
        (
            "step:rate=1000000,duration=10h",
            "step:rate=1000000,duration=10h can have 108,000,000,000 requests, more than 10,000,000",
            "lower rate, factor or duration",
        ),
        ("steady:rate=0.001,duration=1", "steady:rate=0.001,duration=1 has no request with the seed 1", "raise rate"),
    ],
)
def test_what_cannot_be_made_is_refused_in_words(spec: str, message: str, fix: str) -> None:
    if not message:
        assert len(make_request_trace(spec, 1).requests) > 0
        return
    with pytest.raises(UsageError) as refused:
        make_request_trace(spec, 1)
    assert refused.value.message == message
    assert fix in refused.value.fix
    assert refused.value.fix


def test_times_take_units() -> None:
    assert make_request_trace("burst:duration=2m", 1).requests == make_request_trace("burst:duration=120", 1).requests


@given(st.text(max_size=40), st.sampled_from(trace_names()), st.sampled_from(tuple(PARAMETERS)))
def test_any_text_is_a_trace_or_refused(text: str, name: str, key: str) -> None:
    for spec in (text, f"{name}:{text}", f"{name}:duration=1,{key}={text}"):
        try:
            assert make_request_trace(spec, 1).requests
        except UsageError as refused:
            assert refused.fix  # noqa: PT017


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(0, 2**64 - 1))))
)
def test_a_table_is_the_list_of_its_requests(rows: list[tuple[int, int, int, list[int]]]) -> None:
    table = RequestTable()
    for row in rows:
        table.append(*row)
    plain = [TraceRequest(*row[:3], tuple(row[3])) for row in rows]
    assert list(table) == plain == [table[at] for at in range(len(rows))]
    assert table[1:] == plain[1:]
    assert [table[at - len(rows)] for at in range(len(rows))] == plain
    assert table.block_count == sum(len(row[3]) for row in rows)
    assert pickle.loads(pickle.dumps(table)) == table
    for outside in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            table[outside]
    first = min((one.arrival_ns for one in plain), default=0)
    ordered = sorted(plain, key=lambda one: one.arrival_ns)
    assert list(table.sorted_from_zero()) == [one._replace(arrival_ns=one.arrival_ns - first) for one in ordered]
    assert isinstance(table.arrival_ns, array)
