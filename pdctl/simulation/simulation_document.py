"""What was simulated and what it came to, and both as the document `pdctl.simulation/1` (docs/simulate.md)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple
from pdctl.simulation.kernel import SECOND
from pdctl.simulation.statistics import FIGURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.simulation.run_series import RunSeries
    from pdctl.simulation.statistics import PolicyStatistics, RunStatistics, SloTargets

SCHEMA = "pdctl.simulation/1"


class SimulationSetup(NamedTuple):
    """What was simulated, as its user would say it."""

    topology: str
    trace: str
    profile: str
    loading: Sequence[str]
    targets: SloTargets
    limits: Mapping[str, object]
    fleet: Mapping[str, int]
    skipped: int = 0  # rows of the trace's file that were left out
    longest_s: float | None = None  # simulated time at which a run is cut, if --longest gives one


class UnfinishedRun(NamedTuple):
    """A run that Ctrl-C ended or did not let begin, or that was lost with its process."""

    policy: str
    loading: str
    seed: int


class SimulationOutcome(NamedTuple):
    """`series`: over time, of the first seed of each policy. A policy none of whose runs ended is only `unfinished`."""

    setup: SimulationSetup
    policies: Sequence[PolicyStatistics]
    series: Sequence[RunSeries]
    unfinished: Sequence[UnfinishedRun] = ()


def combine_digests(digests: Sequence[str]) -> str | None:
    """Of one run the SHA-256 of its event log; of several that of their digests, one per line, in their order.

    None where no run has ended.
    """
    if len(digests) < 2:
        return digests[0] if digests else None
    return hashlib.sha256("".join(f"{one}\n" for one in digests).encode()).hexdigest()


def to_document(outcome: SimulationOutcome) -> dict[str, object]:
    setup = outcome.setup
    slo = {
        "ttft_s": setup.targets.ttft / SECOND,
        "tbt_s": setup.targets.tbt / SECOND,
        "ttft_per_prompt_token_s": setup.targets.ttft_token / SECOND,
    }
    return {
        "schema": SCHEMA,
        "digest": combine_digests([run.digest for policy in outcome.policies for run in policy.runs]),
        "trace": setup.trace,
        "skipped_rows": setup.skipped,
        "topology": setup.topology,
        "profile": setup.profile,
        "slo": slo,
        "fleet": dict(setup.fleet),
        "limits": dict(setup.limits),
        "longest_s": setup.longest_s,
        "policies": [_policy(one) for one in outcome.policies],
        "unfinished": [one._asdict() for one in outcome.unfinished],
    }


def _policy(one: PolicyStatistics) -> dict[str, object]:
    told: dict[str, object] = {"policy": one.policy, "seeds": len(one.runs)}
    told |= _nested([estimate.mean for estimate in one.estimates])
    told["loading"] = one.loading
    told["events_by_kind"] = dict(one.by_kind)
    told["intervals"] = {
        figure.name: list(estimate.interval)
        for figure, estimate in zip(FIGURES, one.estimates, strict=True)
        if estimate.interval is not None
    }
    told["runs"] = [_run(run) for run in one.runs]
    return told


def _run(run: RunStatistics) -> dict[str, object]:
    head = {"seed": run.seed, "digest": run.digest, "logged_events": run.logged, "cut_at_s": run.cut_at_s}
    return {**head, **_nested(run.figures), "events_by_kind": dict(run.by_kind)}


def _nested(values: Sequence[float | None]) -> dict[str, object]:
    """The values by the paths of their figures: `{"slo_attainment": {"ttft": 0.98, …}, …}`."""
    told: dict[str, object] = {}
    for figure, value in zip(FIGURES, values, strict=True):
        outer, *inner = figure.path
        if not inner:
            told[outer] = value
            continue
        members = told.setdefault(outer, {})
        assert isinstance(members, dict)
        members[inner[0]] = value
    return told
