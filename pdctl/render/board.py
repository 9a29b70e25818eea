"""The start of a run, redrawn in place on a terminal: one row per process, one column per stage of its readiness."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pdctl.launch.ending_reasons import span
from pdctl.launch.readiness import stages
from pdctl.launch.run_record import EventKind, RunEvent, StartStage
from pdctl.render.run_view import PlainView

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.launch.deployment import Deployment, Spec
    from pdctl.render.term import Term

REDRAWS = 5  # a second
DURING = (EventKind.STAGE, EventKind.PAIR)


class Screen(Console):
    def __init__(self, term: Term) -> None:
        super().__init__(
            file=term.stream, force_terminal=True, color_system="standard" if term.color else None, highlight=False
        )

    def on_broken_pipe(self) -> None:
        raise  # rich would end the program; the run goes on without display


class TerminalView(PlainView):
    """Until the run serves (or fails), the stages of every process, redrawn in place; then plain lines below."""

    def __init__(self, deployment: Deployment, term: Term, attached: bool) -> None:
        super().__init__(deployment, term, attached)
        self._deployment = deployment
        self._events: list[RunEvent] = []
        self._live = Live(get_renderable=self.board, console=Screen(term), refresh_per_second=REDRAWS)
        self._over = False

    def event(self, event: RunEvent) -> None:
        if not self._over and event.kind in DURING:
            self._events.append(event)
            if not self._live.is_started:  # on a cluster it may wait before anything starts
                self._live.start(refresh=True)
            return
        if self._live.is_started:
            if event.kind is EventKind.LIMIT:  # `pdctl status` shows it, and the board goes on
                return
            self._over = True
            self._events.append(event)
            self._live.stop()
        super().event(event)

    def close(self) -> None:
        self._live.stop()

    def board(self, now: float | None = None) -> Group:
        """The table of the events so far. `now`: seconds since the epoch."""
        events, specs = self._events.copy(), self._deployment.specs  # copied: another thread adds events
        over = any(event.kind not in DURING for event in events)
        todo = self.term.symbol("–", "-") if over else self.term.symbol("…", ".")
        used = {stage for spec in specs for stage in stages(spec)}
        columns = [stage for stage in StartStage if stage in used and stage is not StartStage.STARTED]
        table = Table("", "", "port", "", box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
        for stage in columns:  # wide enough for the values to come
            table.add_column(stage.value, min_width=10 if stage is StartStage.WORKERS else 6)
        for spec in specs:
            mine = [event for event in events if event.subject == spec.name]
            table.add_row(*self._row(spec, columns, mine, todo, now or time.time()))
        pairs = [self._pair(event) for event in events if event.kind is EventKind.PAIR]
        total = len(self._deployment.prefills) * len(self._deployment.decodes)
        awaited = [] if over else [Text(f"{total} pairs to verify", "dim")]
        return Group(table, Columns(pairs or awaited, padding=(0, 3)))

    def _row(
        self, spec: Spec, columns: Sequence[StartStage], events: Sequence[RunEvent], todo: str, now: float
    ) -> Iterator[Text]:
        reached = {event.stage: event for event in events if event.stage}
        last = next((event for event in events if event.kind is EventKind.DIED), reached.get(StartStage.READY))
        yield Text(spec.name, self.prefix.style(spec.name))
        yield self._mark(last.kind is not EventKind.DIED) if last else Text(todo if reached else "")
        yield Text(str(spec.port))
        yield Text(f"{span((last.at if last else now) - reached[StartStage.STARTED].at):>6}" if reached else "")
        slowest = max((event.seconds for event in reached.values()), default=0.0)
        # A log without the line (another engine, another format) must not look like unfinished work.
        lacking = self.term.symbol("–", "-") if last else todo
        for stage in columns:
            took = _stage_time(reached[stage], slowest) if stage in reached else Text(lacking, "dim")
            yield took if stage in stages(spec) else Text()

    def _pair(self, event: RunEvent) -> Text:
        return Text.assemble(self._mark(event.detail == "answered"), f" {event.subject} {span(event.seconds)}")

    def _mark(self, good: bool) -> Text:
        return Text(self.term.symbol("✓", "+"), "green") if good else Text(self.term.symbol("✗", "x"), "red")


def _stage_time(event: RunEvent, slowest: float) -> Text:
    """The time of a stage, after the ranks registered or the workers listed: "2/2 0.11 s"."""
    counts = [word for word in event.detail.split() if "/" in word]
    return Text(" ".join([*counts, span(event.seconds)]), "bold" if event.seconds == slowest else "")
