"""What policy_comparison.py compares, and what is expected of it: rows, traces, and expectations over their figures."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pdctl.policy import ScalingPolicyName as Policy
from pdctl.simulation.fleet_shape import RequestRouting
from pdctl.simulation.weight_loads import LoadPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Figures = Mapping[tuple[str, str], Mapping[str, float]]  # (case, row) → figure → its mean over the seeds

BOTH, TTFT_P99, TTFT_MEAN, TBT_P99 = "slo_attainment.both", "ttft_s.p99", "ttft_s.mean", "tbt_s.p99"
GPU_TIME, GOODPUT, EVENTS, IMBALANCE = "gpu_time_s", "goodput_per_gpu", "events", "decode_imbalance"
POINT = 0.01  # of attainment
FEWEST_EVENTS = 4


class LadderRow(NamedTuple):
    """`split` says what a fleet has at its begin: `peak`: all GPUs, at their best split; `least`: as few as may be.

    `mean`: the GPUs that the mean load needs, at their best split.
    """

    policy: Policy
    meaning: str
    split: str = "least"
    loading: LoadPlan = LoadPlan.DISK
    flips: bool = False
    gate: bool = False

    def settings(self) -> str:
        marks = (
            self.policy.value,
            *([] if self.policy is Policy.STATIC else [f"loads: {self.loading.value}"]),
            *(["flips"] if self.flips else []),
            *(["gate"] if self.gate else []),
            *([f"begins with the {self.split} split"] if self.split != "least" else []),
        )
        return ", ".join(marks)


STATIC, BLITZ = Policy.STATIC, Policy.BLITZ
ROWS: dict[str, LadderRow] = {
    "S1": LadderRow(STATIC, "static, for the peak", "peak"),
    "S2": LadderRow(STATIC, "static, for the mean", "mean"),
    "S3": LadderRow(Policy.RATIO, "changes of role only", "peak", flips=True),
    "A1": LadderRow(BLITZ, "blitz, weights from disk"),
    "A2": LadderRow(BLITZ, "+ host cache", loading=LoadPlan.HOST),
    "A3": LadderRow(BLITZ, "+ peers, in chains", loading=LoadPlan.CHAIN),
    "A4": LadderRow(BLITZ, "+ live", loading=LoadPlan.LIVE),
    "A5": LadderRow(BLITZ, "+ changes of role", loading=LoadPlan.LIVE, flips=True),
    "A6": LadderRow(BLITZ, "+ gate", loading=LoadPlan.LIVE, flips=True, gate=True),
    "D1": LadderRow(Policy.DYNAMO_LOAD, "as Dynamo's load mode"),
    "D2": LadderRow(Policy.DYNAMO_THROUGHPUT, "as Dynamo's throughput mode"),
    "D3": LadderRow(Policy.THRESHOLDS, "thresholds"),
    "W1": LadderRow(Policy.WVA, "as llm-d's WVA"),
    "K1": LadderRow(Policy.KPA, "as Knative's autoscaler"),
    "O": LadderRow(Policy.ORACLE, "clairvoyant, loads at once", loading=LoadPlan.INSTANT, flips=True),
}
# Rows of the sheet that no policy of pdctl can run.
MISSING = {"H1": "joint ratio on decode tokens/s (HeteroScale)", "D4": "hybrid of Dynamo's two modes"}
REACTIVE = ("A5", "D1", "D3", "W1", "K1")


class ComparisonCase(NamedTuple):
    """A trace on `gpus` GPUs. `profile`: figures of gpu-8b that are others here. `least` and `most`: of each role.

    `routing`: None for that of the whole comparison.
    """

    trace: str
    profile: Mapping[str, Any] = {}
    gpus: int = 16
    least: int = 2
    most: int = 14
    routing: RequestRouting | None = None


# Rates that 16 GPUs of gpu-8b just serve at their highest. BlitzScale: 2 to 14 replicas of each role on 16 GPUs.
LONG = "prompt=2048,output=256"
TRACES: dict[str, ComparisonCase] = {
    "steady": ComparisonCase(f"steady:rate=35,{LONG}"),
    "step": ComparisonCase(f"step:rate=20,factor=3,{LONG}"),
    "ramp": ComparisonCase(f"ramp:rate=12,factor=5,{LONG}"),
    "sinusoid": ComparisonCase(f"sinusoid:rate=12,factor=5,duration=300,{LONG}"),
    "burst": ComparisonCase(f"burst:rate=12,factor=5,{LONG}"),
    "gamma": ComparisonCase(f"steady:rate=25,cv=4,{LONG}"),
    "phase-shift": ComparisonCase("phase-shift:rate=22", gpus=10, most=8),
    # A router that takes the emptiest decode never takes one that the gate locks.
    "decode-skew": ComparisonCase("decode-skew:rate=60,prompt=1024,output=128", routing=RequestRouting.ROUND_ROBIN),
    "diurnal": ComparisonCase(f"diurnal:rate=10,factor=6,period=300,duration=300,{LONG}"),
    # Lengths and rate of Mooncake's toolagent trace; how much prompts share is ours.
    # 1,200 s: the policy D2 decides every 180 s.
    "toolagent": ComparisonCase(
        "steady:rate=6.6,cv=2,prompt=8596,prompt_cv=1,output=182,prefix=0.5,groups=64,duration=1200"
    ),
}
# Over NVLink a load takes 0.06 s, so that nothing is left to gain by computing meanwhile.
NETWORK, FAST, SLOW = "burst, no NVLink", "burst, no NVLink, NIC of 400 Gb/s", "burst, no NVLink, NIC of 25 Gb/s"
SHORT, FEW = "burst, answers of 8 tokens", "burst, at most 2 decodes"
VARIED: dict[str, ComparisonCase] = {
    SHORT: ComparisonCase("burst:rate=12,factor=5,prompt=2048,output=8"),
    NETWORK: ComparisonCase(f"burst:rate=12,factor=5,{LONG}", {"nvlink_bytes_per_s": 0.0}),
    FAST: ComparisonCase(f"burst:rate=12,factor=5,{LONG}", {"nvlink_bytes_per_s": 0.0, "nic_bytes_per_s": 50e9}),
    SLOW: ComparisonCase(f"burst:rate=12,factor=5,{LONG}", {"nvlink_bytes_per_s": 0.0, "nic_bytes_per_s": 3.1e9}),
    FEW: ComparisonCase(f"burst:rate=3,factor=5,{LONG}", gpus=4, least=1, most=2),
}
LOSSES = ("steady", SHORT, SLOW, FEW)
STARTS_S = (0, 30, 60, 80, 100, 120, 150, 200, 300)
FACTORS = (1, 2, 3, 4, 6, 8)


def start_case(seconds: int) -> ComparisonCase:
    """A swing whose rise from a third to the peak takes about 100 s."""
    return ComparisonCase(f"sinusoid:rate=12,factor=4,period=400,duration=800,{LONG}", {"start_s": seconds})


def factor_case(factor: int) -> ComparisonCase:
    """Bursts of the same height; between them there is less the higher the factor."""
    return ComparisonCase(f"burst:rate={60 / factor:g},factor={factor},{LONG}")


class Verdict(NamedTuple):
    """`came_out` is None where something was not run, or where the figures cannot tell."""

    came_out: bool | None
    words: str


class Expectation(NamedTuple):
    """`needs`: cases and rows whose figures `judge` looks at."""

    source: str
    claim: str
    needs: Sequence[tuple[str, str]]
    judge: Callable[[Figures], Verdict]


def judge(expectation: Expectation, figures: Figures) -> Verdict:
    missing = [f"{row} on {case}" for case, row in expectation.needs if (case, row) not in figures]
    if missing:
        return Verdict(None, f"not run: {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
    return expectation.judge(figures)


def ratio(figures: Figures, case: str, row: str, other: str, name: str) -> float:
    """Infinite beside 0."""
    below = figures[case, other][name]
    return figures[case, row][name] / below if below else float("inf")


def saves(case: str, most: float) -> Callable[[Figures], Verdict]:
    def found(figures: Figures) -> Verdict:
        lost = figures[case, "S1"][BOTH] - figures[case, "A5"][BOTH]
        share = ratio(figures, case, "A5", "S1", GPU_TIME)
        words = f"A5 is {lost * 100:.2f} points below S1, with {share:.2f} of its GPU-time"
        return Verdict(lost <= POINT and share <= most, words)

    return found


def lies_between(case: str, row: str, other: str, name: str, least: float, most: float) -> Callable[[Figures], Verdict]:
    """Whether a figure of `row` is between two shares of that of `other`."""

    def found(figures: Figures) -> Verdict:
        share = ratio(figures, case, row, other, name)
        mine, theirs = figures[case, row][name], figures[case, other][name]
        return Verdict(least <= share <= most, f"{name}: {row} {mine:.4g}, {other} {theirs:.4g}: {share:.2f} ×")

    return found


def all_hold(*judges: Callable[[Figures], Verdict]) -> Callable[[Figures], Verdict]:
    def found(figures: Figures) -> Verdict:
        verdicts = [one(figures) for one in judges]
        return Verdict(all(one.came_out for one in verdicts), "; ".join(one.words for one in verdicts))

    return found


def if_it_scaled(case: str, row: str, judge: Callable[[Figures], Verdict]) -> Callable[[Figures], Verdict]:
    """A policy that hardly had a turn, as one that decides every 180 s has not on a short trace, says nothing."""

    def found(figures: Figures) -> Verdict:
        verdict, events = judge(figures), figures[case, row][EVENTS]
        if events >= FEWEST_EVENTS:
            return verdict
        return Verdict(None, f"{row} had {events:.0f} scaling events, the trace is too short: {verdict.words}")

    return found


def best_reactive(figures: Figures) -> Verdict:
    share, row = max((ratio(figures, "toolagent", row, "S1", GOODPUT), row) for row in REACTIVE)
    return Verdict(share >= 2, f"the best, {row}, has {share:.2f} × the goodput per GPU of S1")


def in_order(case: str, rows: Sequence[str], name: str) -> Callable[[Figures], Verdict]:
    def found(figures: Figures) -> Verdict:
        values = [figures[case, row][name] for row in rows]
        words = ", ".join(f"{row} {value:.4g}" for row, value in zip(rows, values, strict=True))
        return Verdict(all(one > two for one, two in pairwise(values)), f"{name}: {words}")

    return found


def cliff(figures: Figures) -> Verdict:
    """Where between two start-up times most attainment is lost: 5 points at least make a cliff."""
    points = [(seconds, figures[f"start {seconds} s", "D1"]) for seconds in STARTS_S]
    drops = [(before[1][BOTH] - after[1][BOTH], before[0], after[0]) for before, after in pairwise(points)]
    drop, begin, end = max(drops, key=lambda one: one[0])
    events = points[0][1][EVENTS], points[-1][1][EVENTS]
    words = f"the largest drop, {drop * 100:.1f} points, is between {begin} and {end} s"
    words += f"; scaling events go from {events[0]:.0f} to {events[1]:.0f}"
    return Verdict(drop >= 5 * POINT and (begin, end) == (100, 120) and events[1] < events[0], words)


INFINITE = float("inf")
EXPECTATIONS: Sequence[Expectation] = (
    Expectation(
        "§6.4 (i)", "A5 has S1's attainment, less 1 point, with 40 % less GPU-time on bursts",
        [("burst", "A5"), ("burst", "S1")], saves("burst", 0.6),
    ),
    Expectation(
        "§6.4 (i)", "the same with Gamma arrivals", [("gamma", "A5"), ("gamma", "S1")], saves("gamma", 0.6),
    ),
    Expectation(
        "issue, 5", "live blitz is within 1 point of S1 at no more than 0.55 of its GPU-time on bursts",
        [("burst", "A5"), ("burst", "S1")], saves("burst", 0.55),
    ),
    Expectation(
        "§6.4 (ii), issue, 5", "the p99 TTFT of A4 on bursts is at most half of that of A1, which loads from disk",
        [("burst", "A4"), ("burst", "A1")], lies_between("burst", "A4", "A1", TTFT_P99, 0, 0.5),
    ),
    Expectation(
        "§6.4 (ii)", "the mean TTFT of A4 is 15 to 30 % below that of A3 where a load takes 2 to 10 batches (here 2.3)",
        [("burst", "A4"), ("burst", "A3")], lies_between("burst", "A4", "A3", TTFT_MEAN, 0.7, 0.85),
    ),
    Expectation(
        "§6.4 (ii)", "the two are alike, within 5 %, where a load takes less than a batch (here 0.6)",
        [(FAST, "A4"), (FAST, "A3")], lies_between(FAST, "A4", "A3", TTFT_MEAN, 0.95, 1.05),
    ),
    Expectation(
        "§6.4 (iii)", "a reactive policy has at least twice the goodput per GPU of S1 on the toolagent-like load",
        [("toolagent", row) for row in ("S1", *REACTIVE)], best_reactive,
    ),
    Expectation(
        "§6.4 (iv)", "D2, which only forecasts, takes more GPU-time than D1, which reacts",
        [("toolagent", "D2"), ("toolagent", "D1")], if_it_scaled(
            "toolagent", "D2", lies_between("toolagent", "D2", "D1", GPU_TIME, 1.05, INFINITE)
        ),
    ),
    Expectation(
        "§6.4 (v)", "changes of role raise the attainment on a phase shift with a fixed budget (A5 against A4)",
        [("phase-shift", "A5"), ("phase-shift", "A4")],
        lies_between("phase-shift", "A5", "A4", BOTH, 1 + POINT / 10, INFINITE),
    ),
    Expectation(
        "§6.4 (v)", "changes of role alone (S3) have less goodput per GPU than adding replicas (A4) on pure growth",
        [("ramp", "S3"), ("ramp", "A4")], lies_between("ramp", "S3", "A4", GOODPUT, 0, 0.99),
    ),
    Expectation(
        "§6.4 (vi)", "under skew the gate (A6) lowers the decodes' imbalance and the p99 TBT, and costs TTFT",
        [("decode-skew", "A6"), ("decode-skew", "A5")],
        all_hold(
            lies_between("decode-skew", "A6", "A5", IMBALANCE, 0, 0.999),
            lies_between("decode-skew", "A6", "A5", TBT_P99, 0, 0.999),
            lies_between("decode-skew", "A6", "A5", TTFT_P99, 1.001, INFINITE),
        ),
    ),
    Expectation(
        "issue, 5", "Dynamo's start-up cliff: D1 loses most between 100 and 120 s, and scales less often",
        [(f"start {seconds} s", "D1") for seconds in STARTS_S], cliff,
    ),
    Expectation(
        "issue, 5", "the order of Dynamo's published sweep: goodput per GPU of reactive > predictive > static",
        [("toolagent", row) for row in ("D1", "D2", "S1")], if_it_scaled(
            "toolagent", "D2", in_order("toolagent", ("D1", "D2", "S1"), GOODPUT)
        ),
    ),
)  # fmt: skip


def say_loss(case: str, figures: Figures) -> Verdict:
    """Whether a row without BlitzScale's means does as well as A5 for less, or better for no more."""
    if (case, "A5") not in figures:
        return Verdict(None, f"not run: A5 on {case}")
    mine = figures[case, "A5"]
    others = [row for place, row in figures if place == case and row not in ("A4", "A5", "A6", "O")]
    better = []
    for row in others:
        theirs = figures[case, row]
        gain, share = theirs[BOTH] - mine[BOTH], ratio(figures, case, row, "A5", GPU_TIME)
        if (gain >= -POINT / 2 and share < 0.99) or (gain > POINT and share <= 1):
            better.append(f"{row} ({gain * 100:+.1f} points with {share:.2f} of its GPU-time)")
    words = f"A5 attains {mine[BOTH] * 100:.1f} %"
    if better:
        return Verdict(True, f"{words} and loses to {', '.join(better)}")
    best = max(others, key=lambda row: figures[case, row][GOODPUT], default=None)
    if best is None:
        return Verdict(None, f"{words}; no other row was run")
    share = ratio(figures, case, best, "A5", GOODPUT)
    return Verdict(
        False,
        f"{words}; no row does as well for less; of the others {best} has the most goodput per GPU, "
        f"{share:.2f} × that of A5",
    )
