"""What a simulation came to, as a table: a row for each policy, the means over its seeds with their intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple
from pdctl.render.term import prose, table, visible
from pdctl.simulation.kernel import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.render.term import Term
    from pdctl.simulation.simulation_document import SimulationOutcome, SimulationSetup
    from pdctl.simulation.statistics import Estimate, PolicyStatistics


MOST_NAMED = 5  # runs that did not end


class TableColumn(NamedTuple):
    """`figure`: the name of a row of `FIGURES`."""

    title: str
    figure: str
    words: Callable[[float], str]


def percent(share: float) -> str:
    return f"{share:.1%}"


def duration(seconds: float) -> str:
    """To three digits: `84 ms`, `1.23 s`."""
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{three(seconds)} s"


def three(amount: float) -> str:
    """To three digits, and all those of a whole number: `1.25`, `16,400`."""
    return f"{amount:,.3g}" if abs(amount) < 999.5 else f"{amount:,.0f}"


def volume(size: float) -> str:
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return f"{size / least:.3g} {unit}"
    return f"{size:.0f} B"


SERVICE = (
    TableColumn("TTFT MET", "slo_attainment.ttft", percent),
    TableColumn("TBT MET", "slo_attainment.tbt", percent),
    TableColumn("BOTH", "slo_attainment.both", percent),
    TableColumn("TTFT p50", "ttft_s.p50", duration),
    TableColumn("p95", "ttft_s.p95", duration),
    TableColumn("p99", "ttft_s.p99", duration),
    TableColumn("TBT p50", "tbt_s.p50", duration),
    TableColumn("p95", "tbt_s.p95", duration),
    TableColumn("p99", "tbt_s.p99", duration),
)
COST = (
    TableColumn("GPU-TIME", "gpu_time_s", lambda value: f"{three(value)} s"),
    TableColumn("LOADING", "loading_share", percent),
    TableColumn("DRAINING", "draining_share", percent),
    TableColumn("MEAN GPUS", "mean_gpus", three),
    TableColumn("GOODPUT", "goodput_requests_per_s", lambda value: f"{three(value)}/s"),
    TableColumn("PER GPU-HOUR", "goodput_per_gpu", lambda value: three(value * 3600)),
    TableColumn("EVENTS", "events", three),
    TableColumn("KV MOVED", "kv_bytes", volume),
    TableColumn("WEIGHTS", "parameter_bytes", volume),
    TableColumn("IMBALANCE", "decode_imbalance", three),
)


def show(outcome: SimulationOutcome, term: Term) -> None:
    for line in lines(outcome, term):
        term.write(line)


def lines(outcome: SimulationOutcome, term: Term) -> Iterator[str]:
    setup = outcome.setup
    yield from prose(term, f"{visible(setup.trace)}:", head(setup), "bold")
    if outcome.policies:
        for title, columns in (("service", SERVICE), ("cost", COST)):
            yield ""
            rows = [[one.name, *(cell(one, column) for column in columns)] for one in outcome.policies]
            yield from table(term, [title.upper(), *(column.title for column in columns)], rows)
        yield ""
        yield from notes(outcome, term)
    for each in outcome.unfinished[:MOST_NAMED]:
        yield term.style(f"not finished: {each.policy} {each.loading}, seed {each.seed}", "yellow")
    if (more := len(outcome.unfinished) - MOST_NAMED) > 0:
        yield term.style(f"not finished: {more:,} more; -o json names all", "yellow")


def head(setup: SimulationSetup) -> str:
    fleet = (
        f"{setup.fleet['prefills']} prefill and {setup.fleet['decodes']} decode of {setup.fleet['replicas']} replicas"
    )
    targets = f"TTFT {duration(setup.targets.ttft / SECOND)}"
    if setup.targets.ttft_token:
        targets += f" + {duration(setup.targets.ttft_token / SECOND)} per prompt token"
    skipped = f"; {setup.skipped:,} rows of the file skipped" if setup.skipped else ""
    loading = ", ".join(setup.loading)
    return (
        f"on {visible(setup.topology)} ({fleet}), profile {visible(setup.profile)}, weights by {loading}; "
        f"wanted: {targets}, TBT {duration(setup.targets.tbt / SECOND)}{skipped}"
    )


def notes(outcome: SimulationOutcome, term: Term) -> Iterator[str]:
    seeds = max(len(one.runs) for one in outcome.policies)
    means = (
        f"means over {seeds} seeds with their 95 % intervals" if seeds > 1 else "one seed; --seeds 5 shows the spread"
    )
    yield from prose(term, "figures:", f"{means}; TBT is the 99th percentile of a request's token gaps", "dim")
    longest = outcome.setup.longest_s
    for one in outcome.policies:
        cut = sum(run.cut_at_s is not None for run in one.runs)
        if longest is not None and cut:
            runs = "the run was" if len(one.runs) == 1 else f"{cut} of {len(one.runs)} runs were"
            yield from prose(term, f"{one.name}:", f"{runs} cut at {duration(longest)}, as --longest says", "yellow")
        unserved = one.estimate("unserved").mean
        if unserved:
            said = f"{three(unserved)} of {three(one.estimate('requests').mean or 0)} requests did not end"
            too_large = one.estimate("too_large").mean
            said += f"; no replica has room for {three(too_large)} of them" if too_large else ""
            yield from prose(term, f"{one.name}:", said, "yellow")


def cell(one: PolicyStatistics, column: TableColumn) -> str:
    """`97.2% (96.8–97.5)`; `-` where no run has a value."""
    estimate: Estimate = one.estimate(column.figure)
    if estimate.mean is None:
        return "-"
    said = column.words(estimate.mean)
    if estimate.interval is None or estimate.interval[0] == estimate.interval[1]:
        return said
    low, high = (column.words(value) for value in estimate.interval)
    return said if low == high else f"{said} ({between(low, high)})"


def between(low: str, high: str) -> str:
    """`1.2–1.4 s`: a unit that both have is said once."""
    for unit in ("%", "/s"):
        if low.endswith(unit) and high.endswith(unit):
            return f"{low.removesuffix(unit)}–{high}"
    number, _, unit = low.partition(" ")
    return f"{number}–{high}" if unit and high.partition(" ")[2] == unit else f"{low}–{high}"
