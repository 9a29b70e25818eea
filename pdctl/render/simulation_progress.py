"""How far simulated runs are: a bar for all of them and the simulated clock of each that goes on, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from pdctl.simulation.kernel import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import TaskID

    from pdctl.render.term import Term
    from pdctl.simulation.parallel_runs import RunProgress

SHOWN = 8  # runs with a line of their own


class SimulationProgress:
    """`names` of the jobs, as `RunProgress.job` counts them. No thread redraws it: a run forks processes."""

    def __init__(self, names: Sequence[str], term: Term) -> None:
        console = Console(
            file=term.stream, force_terminal=True, color_system="standard" if term.color else None, highlight=False
        )
        name, clock = TextColumn("{task.description}"), TextColumn("{task.fields[clock]}")
        columns = (name, BarColumn(), TaskProgressColumn(), clock, TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self._names = names
        self._lines: dict[int, TaskID] = {}
        self._shares: dict[int, float] = {}
        self._all = self._bars.add_task(f"{len(names)} runs", total=len(names), clock="")

    def start(self) -> None:
        self._bars.start()

    def stop(self) -> None:
        self._bars.stop()

    def tell(self, one: RunProgress) -> None:
        """What comes after the last arrival takes as long as it takes: the bar waits at its end."""
        share = min(1.0, one.now_ns / one.last_ns) if one.last_ns else 1.0
        self._shares[one.job] = share
        clock = f"{_clock(one.now_ns)} of {_clock(one.last_ns)} simulated"
        if one.job not in self._lines and len(self._lines) < SHOWN:
            self._lines[one.job] = self._bars.add_task(self._names[one.job], total=1.0, clock=clock)
        if one.job in self._lines:
            self._bars.update(self._lines[one.job], completed=share, clock=clock)
        self._draw()

    def finish(self, job: int) -> None:
        self._shares[job] = 1.0
        if job in self._lines:
            self._bars.remove_task(self._lines.pop(job))
        self._draw()

    def _draw(self) -> None:
        self._bars.update(self._all, completed=sum(self._shares.values()))
        self._bars.refresh()


def _clock(time_ns: int) -> str:
    """`0:01:05`."""
    minutes, seconds = divmod(time_ns // SECOND, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
