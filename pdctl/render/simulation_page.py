"""A simulation as one HTML file: its figures as a table, its plots by plotly, whose script the file contains.

No network is needed to look at it. A page takes about 5 MB, almost all of it that script.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from plotly.graph_objects import Figure as Plot
from plotly.io import to_html as plot_html
from plotly.offline import get_plotlyjs

from pdctl import __version__
from pdctl.package_data import data
from pdctl.quick_definitions import NamedTuple
from pdctl.render import simulation_table
from pdctl.render.simulation_table import COST, SERVICE, duration
from pdctl.render.term import visible
from pdctl.replica.states import ReplicaState
from pdctl.simulation.run_series import IDLE
from pdctl.simulation.simulation_document import combine_digests

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.simulation.run_series import RunSeries
    from pdctl.simulation.simulation_document import SimulationOutcome
    from pdctl.simulation.statistics import PolicyStatistics

# Okabe and Ito's colours, which people who do not see all colours can tell apart; a ninth policy is dashed.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
DASHES = ("solid", "dash", "dot")
# What a state is drawn in: by what the replica does, blue a prefill, green a decode, orange on its way, grey leaving.
STATE_COLORS = {
    ReplicaState.PREFILL: "#0072B2",
    ReplicaState.NEW_PREFILL: "#56B4E9",
    ReplicaState.REFRACTORY_PREFILL: "#8CC8EE",
    ReplicaState.OLD_PREFILL: "#3A5FCD",
    ReplicaState.DECODE: "#009E73",
    ReplicaState.LOADING_PREFILL: "#E69F00",
    ReplicaState.LOADING_DECODE: "#F0C24B",
    ReplicaState.MUTATING_TO_DECODE: "#CC79A7",
    ReplicaState.MUTATING_TO_PREFILL: "#E3AFCB",
    ReplicaState.AUS_PREFILL: "#9AD0E8",
    ReplicaState.AUS_DECODE: "#8FD3BC",
    ReplicaState.SHUTTING_PREFILL: "#8A8A8A",
    ReplicaState.SHUTTING_DECODE: "#A8A8A8",
    ReplicaState.SHUTTING_NULL: "#D0D0D0",
}
PARTS = (("serving", "#009E73"), ("loading", "#E69F00"), ("draining or parked", "#A8A8A8"))
HEIGHT, LEGEND = 290, 8  # pixels of a plot, and what each line of its legend adds


class PagePlot(NamedTuple):
    """`wide`: it takes the whole width of the page."""

    title: str
    says: str
    figure: Plot
    wide: bool = False


def to_html(outcome: SimulationOutcome) -> str:
    return "\n".join(_page(outcome))


def _page(outcome: SimulationOutcome) -> Iterator[str]:
    setup = outcome.setup
    style = (data("render") / "simulation_page.css").read_text("utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_escaped(setup.trace)}</title>\n<style>\n{style}</style>"
    yield f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<main>"
    yield f"<h1>{_escaped(setup.trace)}</h1>\n<p class=sub>{_escaped(simulation_table.head(setup))}</p>"
    for title, columns in (("Service", SERVICE), ("Cost", COST)):
        yield f"<h2>{title}</h2>"
        yield from _table(outcome.policies, columns)
    yield f"<p class=sub>{_escaped(_about_figures(outcome))}</p>"
    config = {"responsive": True, "displayModeBar": False}
    yield "<div class=plots>"
    for number, plot in enumerate(_plots(outcome)):
        yield f"<section{' class=wide' if plot.wide else ''}>"
        yield f"<h2>{_escaped(plot.title)}</h2><p>{_escaped(plot.says)}</p>"
        yield plot_html(
            plot.figure, config=config, include_plotlyjs=False, full_html=False, div_id=f"plot-{number}",
            default_width="100%", default_height=f"{HEIGHT + LEGEND * len(plot.figure.data)}px",
        )  # fmt: skip
        yield "</section>"
    yield "</div>"
    digest = combine_digests([run.digest for one in outcome.policies for run in one.runs])
    yield f"<footer>pdctl {__version__} simulate, digest <code>{digest}</code></footer>\n</main>\n</body>\n</html>"


def _escaped(text: str) -> str:
    return html.escape(visible(text), quote=True)


def _about_figures(outcome: SimulationOutcome) -> str:
    seeds = max((len(one.runs) for one in outcome.policies), default=0)
    means = f"Means over {seeds} seeds with their 95 % intervals. " if seeds > 1 else ""
    return f"{means}TBT is the 99th percentile of a request's token gaps. Plots over time show the first seed."


def _table(policies: Sequence[PolicyStatistics], columns: Sequence[simulation_table.TableColumn]) -> Iterator[str]:
    heads = "".join(f"<th>{_escaped(column.title)}</th>" for column in columns)
    yield f"<div class=scroll><table><thead><tr><th>policy</th>{heads}</tr></thead><tbody>"
    for one in policies:
        cells = "".join(f"<td>{_cell(simulation_table.cell(one, column))}</td>" for column in columns)
        yield f"<tr><th>{_escaped(one.name)}</th>{cells}</tr>"
    yield "</tbody></table></div>"


def _cell(text: str) -> str:
    """A mean, and its interval below it."""
    mean, _, interval = text.partition(" (")
    return _escaped(mean) + (f"<small>{_escaped(interval.removesuffix(')'))}</small>" if interval else "")


def _plots(outcome: SimulationOutcome) -> Iterator[PagePlot]:
    policies, series = outcome.policies, outcome.series
    yield PagePlot("SLO attainment", "Share of all requests that met a target.", _attainment(policies))
    yield PagePlot("GPU-time", "What the GPUs' time went to.", _gpu_time(series))
    yield PagePlot(
        "Time to first token",
        "99th percentile of the requests that arrived in each stretch of time; the median is thin.",
        _first_tokens(series),
        wide=True,
    )
    yield PagePlot(
        "Replicas in use", "All that take GPU-time: serving, loading, draining, parked.",
        _lines(series, "replicas", [one.in_use for one in series]),
    )  # fmt: skip
    yield PagePlot(
        "Waiting requests", "The highest number in each stretch of time.",
        _lines(series, "requests", [one.waiting_requests for one in series]),
    )  # fmt: skip
    yield PagePlot(
        "KV cache of the decodes", "The highest share of their blocks in use.",
        _lines(series, "share", [one.kv_use for one in series], tickformat=".0%"),
    )  # fmt: skip
    for one in series:
        yield PagePlot(f"Replicas by state: {one.name}", "The mean of each stretch of time.", _states(one))


def _line(at: int) -> dict[str, object]:
    return {"color": COLORS[at % len(COLORS)], "dash": DASHES[at // len(COLORS) % len(DASHES)]}


def _attainment(policies: Sequence[PolicyStatistics]) -> Plot:
    figure = Plot()
    for at, part in enumerate(("ttft", "tbt", "both")):
        estimates = [one.estimate(f"slo_attainment.{part}") for one in policies]
        means = [each.mean or 0 for each in estimates]
        ends = [each.interval or (mean, mean) for each, mean in zip(estimates, means, strict=True)]
        error = {
            "type": "data",
            "symmetric": False,
            "array": [high - mean for (_, high), mean in zip(ends, means, strict=True)],
            "arrayminus": [mean - low for (low, _), mean in zip(ends, means, strict=True)],
            "visible": any(each.interval for each in estimates),
        }
        names = [one.name for one in policies]
        name = {"ttft": "TTFT", "tbt": "TBT", "both": "both"}[part]
        figure.add_bar(x=names, y=means, name=name, error_y=error, marker_color=COLORS[at])
    figure.update_layout(barmode="group")
    return _laid_out(figure, "share", "", tickformat=".0%", range=[0, 1.02])


def _gpu_time(series: Sequence[RunSeries]) -> Plot:
    figure = Plot()
    rows = [(one.serving_s, one.loading_s, one.draining_s) for one in series]
    for (name, color), values in zip(PARTS, zip(*rows, strict=True), strict=True) if rows else ():
        figure.add_bar(x=[one.name for one in series], y=values, name=name, marker_color=color)
    figure.update_layout(barmode="stack")
    return _laid_out(figure, "GPU-seconds", "")


def _first_tokens(series: Sequence[RunSeries]) -> Plot:
    figure = Plot()
    for at, one in enumerate(series):
        for share, width in ((99, 2), (50, 1)):
            figure.add_scatter(
                x=one.times_s, y=one.ttft_s[share], name=one.name, legendgroup=one.name, showlegend=share == 99,
                mode="lines", line={**_line(at), "width": width}, opacity=1 if share == 99 else 0.55,
                hovertemplate=f"{one.name} p{share}: %{{y:.3s}} s at %{{x:.0f}} s<extra></extra>",
            )  # fmt: skip
    seconds = [value for one in series for share in (50, 99) for value in one.ttft_s[share] if value]
    marks = _marks(min(seconds, default=1.0), max(seconds, default=1.0))
    words = [duration(mark) for mark in marks]
    return _laid_out(figure, "", "simulated seconds", type="log", tickvals=marks, ticktext=words)


def _marks(least: float, most: float) -> list[float]:
    """Round values of a logarithmic axis: 1, 2 and 5 of each power of ten, of a long axis the powers alone."""
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    return [digit * 10.0**power for power in powers for digit in ((1, 2, 5) if len(powers) < 5 else (1,))]


def _lines(
    series: Sequence[RunSeries],
    unit: str,
    values: Sequence[Sequence[float | None]],
    **axis: object,
) -> Plot:
    figure = Plot()
    for at, (one, points) in enumerate(zip(series, values, strict=True)):
        figure.add_scatter(x=one.times_s, y=points, name=one.name, mode="lines", line=_line(at))
    return _laid_out(figure, unit, "simulated seconds", rangemode="tozero", **axis)


def _states(one: RunSeries) -> Plot:
    figure = Plot()
    idle = {state.value for state in IDLE}
    for state, values in one.replicas.items():
        if state not in idle:
            color = STATE_COLORS[ReplicaState(state)]
            figure.add_scatter(
                x=one.times_s, y=values, name=state, mode="lines", stackgroup="all", line={"width": 0, "color": color},
                fillcolor=color,
            )  # fmt: skip
    return _laid_out(figure, "replicas", "simulated seconds", rangemode="tozero")


def _laid_out(figure: Plot, unit: str, along: str, **axis: object) -> Plot:
    """Small margins and the legend below, so that a plot is legible on a telephone too."""
    figure.update_layout(
        template="plotly_white", paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", hovermode="closest",
        margin={"l": 8, "r": 8, "t": 8, "b": 8}, font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "yanchor": "top", "y": -0.2, "x": 0, "traceorder": "normal"},
    )  # fmt: skip
    figure.update_xaxes(title=along, automargin=True, fixedrange=False)
    figure.update_yaxes(title=unit, automargin=True, **axis)
    return figure
