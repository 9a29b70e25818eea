"""Runs and their processes as tables and JSON."""

from __future__ import annotations

import json
import re
import textwrap
import time
from typing import TYPE_CHECKING

from pdctl.launch.run import OVER, State
from pdctl.launch.state import as_document
from pdctl.launch.verdict import span
from pdctl.render.prefix import HUES
from pdctl.render.visible import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.launch.health import Health, RunHealth
    from pdctl.launch.run import Run
    from pdctl.render.term import Term

STATUS, RUNS = "pdctl.status/1", "pdctl.runs/1"
COLORS = {
    State.PENDING: "yellow",
    State.SERVING: "green",
    State.STARTING: "yellow",
    State.STOPPING: "yellow",
    State.STOPPED: "dim",
    State.FAILED: "red",
    State.STALE: "red",
}
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
HEAD = ("NAME", "ROLE", "PID", "UPTIME", "PORT", "HEALTH", "BOOTSTRAP", "ROUTER", "RESTARTS", "MISSING")


def status(health: RunHealth, term: Term) -> None:
    state = term.style(health.state.value, COLORS[health.state])
    flight = f", {health.in_flight} in flight" if health.in_flight else ""
    over = health.state in OVER
    age = f"started {span(health.seconds)} ago" if over else f"for {span(health.seconds)}"
    term.write(f"{health.name}: {state} at {health.url}, {health.shape}, {age}{flight}")
    if health.job:
        term.write(f"  {_job(health)}")
    if health.logs_lost:
        term.write(f"  {term.style(visible(health.logs_lost, term), 'red')}; free space there, the run goes on")
    for line in health.note.splitlines():
        term.write(f"  {visible(line, term)}")
    rows = [_row(instance, term) for instance in health.instances]
    table(HEAD, rows, term)
    for instance in health.instances:
        if instance.died:
            again = f"; it was started again {times(instance.restarts)}" if instance.restarts else ""
            term.write(f"{instance.name} {visible(instance.died, term)}{again}")
        for line in instance.tail:
            term.write(f"  {instance.name} | {visible(line, term)}")
        if instance.untold:
            term.write(f"  {visible(instance.untold, term)}")


def times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"


def _job(health: RunHealth) -> str:
    if health.queued:
        return f"job {health.job} waits: {health.queued}"
    left = health.ends_at - time.time()
    ends = "" if not health.ends_at else f", ends in {span(left)}" if left > 0 else ", its time is over"
    return f"job {health.job}{ends}"


def _row(health: Health, term: Term) -> tuple[str, ...]:
    known = "-" if health.registered is None else f"{health.registered}/{health.ranks}"
    listed = "-" if health.in_router is None else "yes" if health.in_router else "no"
    return (
        term.style(health.name, HUES[health.role]),
        health.role.value,
        f"{health.pid or '-'}@{health.place}" if health.place else str(health.pid or "-"),
        span(health.seconds) if health.alive else "-",
        health.url.rpartition(":")[2],
        health.health or "-",
        known,
        listed,
        str(health.restarts),
        term.style(health.missing, "red") if health.missing else "-",
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], term: Term) -> None:
    """Aligned on a terminal that is wide enough, a list on a narrow one, tab-separated elsewhere; nothing is cut."""
    if not term.tty:
        for row in (head, *rows):
            term.write("\t".join(row))
        return
    widths = [max(len(plain(row[column])) for row in (head, *rows)) for column in range(len(head))]
    if sum(widths) + 2 * (len(widths) - 1) > term.width:
        _listed(head, rows, term)
        return
    for row in (tuple(term.style(word, "dim") for word in head), *rows):
        cells = (cell + " " * (width - len(plain(cell))) for cell, width in zip(row, widths, strict=True))
        term.write("  ".join(cells).rstrip())


def _listed(head: Sequence[str], rows: Sequence[Sequence[str]], term: Term) -> None:
    """Row by row, for a terminal that is too narrow for the table; what has nothing to say (`-`) is left out."""
    for name, *cells in rows:
        term.write(name)
        for title, cell in zip(head[1:], cells, strict=True):
            if plain(cell) == "-":
                continue
            lead = f"  {title.lower()} "
            first, *more = textwrap.wrap(
                lead + plain(cell), max(term.width, len(lead) + 1), subsequent_indent="    ", break_on_hyphens=False
            )
            term.write(first.replace(plain(cell), cell, 1) if not more else first)
            for line in more:
                term.write(line)


def plain(text: str) -> str:
    """`text` without colour."""
    return ESCAPE.sub("", text)


def status_json(health: RunHealth) -> str:
    return json.dumps({"schema": STATUS, **as_document(health)}, indent=2)


def runs(found: Sequence[Run], term: Term) -> None:
    rows = [
        (
            run.name,
            term.style(run.condition.value, COLORS[run.condition]),
            run.deployment.shape,
            run.deployment.url,
            span(time.time() - run.created),
            _keeper(run),
        )
        for run in found
    ]
    table(("NAME", "STATE", "SHAPE", "URL", "AGE", "PID"), rows, term)


def _keeper(run: Run) -> str:
    """Who supervises it: a process of this machine, or a job."""
    if not run.alive:
        return "-"
    return f"job {run.allocation.job}" if run.allocation is not None else str(run.supervisor)


def runs_json(found: Sequence[Run], unreadable: Sequence[str], clusters: Sequence[Mapping[str, object]] = ()) -> str:
    rows = [
        {
            "name": run.name,
            "state": run.condition.value,
            "shape": run.deployment.shape,
            "url": run.deployment.url,
            "created": run.created,
            "supervisor": run.supervisor if run.alive else None,
            "detached": run.detached,
        }
        for run in found
    ]
    document = {"schema": RUNS, "runs": rows, "clusters": list(clusters), "unreadable": list(unreadable)}
    return json.dumps(document, indent=2)
