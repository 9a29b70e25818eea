"""Shows a run as it happens: one line per process redrawn in place on a terminal, one line per transition elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.launch.events import Event, Kind, Stage
from pdctl.launch.readiness import stages
from pdctl.launch.verdict import span
from pdctl.render.prefix import Prefix

if TYPE_CHECKING:
    from pdctl.launch.deployment import Deployment, Spec
    from pdctl.launch.relay import Line
    from pdctl.render.term import Term

REDRAW = 0.2  # seconds
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Progress(str, Enum):
    AUTO = "auto"
    TTY = "tty"
    PLAIN = "plain"
    NONE = "none"


class View:
    """Shows nothing."""

    def event(self, event: Event) -> None:
        pass

    def line(self, line: Line) -> None:
        pass

    def close(self) -> None:
        """Leave the terminal as the next program wants it."""


class PlainView(View):
    """One line per transition, with its time. `attached`: Ctrl-C ends the run, so the way to end it faster is told."""

    def __init__(self, deployment: Deployment, term: Term, attached: bool) -> None:
        self.term = term
        self.prefix = Prefix(deployment, term)
        self._attached = attached
        self._guard = threading.RLock()

    def event(self, event: Event) -> None:
        text = self.sentence(event)
        if text:
            stamp = self.term.style(time.strftime("%H:%M:%S", time.localtime(event.at)), "dim")
            with self._guard:
                self.term.write(f"{stamp} {text}")
                self.term.stream.flush()

    def line(self, line: Line) -> None:
        with self._guard:
            self.term.write(self.prefix.line(line))
            self.term.stream.flush()

    def sentence(self, event: Event) -> str:
        """What is said of `event`; empty for those that say it elsewhere."""
        if event.kind is Kind.SERVING:
            return ""  # the answer itself, on stdout
        name = self.prefix.name(event.subject)
        if event.kind is Kind.STAGE:
            took = "" if event.stage is Stage.STARTED else f"  {span(event.seconds)}"
            word = "started, " if event.stage is Stage.STARTED else ""
            return f"{name} {word}{event.detail}{took}"
        if event.kind is Kind.PAIR:
            return f"{event.subject} {event.detail}  {span(event.seconds)}"
        if event.kind is Kind.STOPPING:
            again = "; Ctrl-C again ends everything now" if self._attached else ""
            busy = f" ({event.detail})" if event.detail else ""
            return f"stopping: router first, then decode and prefill{busy}{again}"
        if event.kind is Kind.ENDED:
            return f"ended after {span(event.seconds)}; {event.detail}"
        if event.kind in (Kind.STOPPED, Kind.KILLED):
            return f"{name} {'killed' if event.kind is Kind.KILLED else 'stopped'}  {span(event.seconds)}"
        mark = self.term.style(self.term.symbol("✗", "x"), "red") if event.kind is Kind.DIED else ""
        return f"{name} {mark}{' ' if mark else ''}{event.detail}"


class TerminalView(PlainView):
    """Until the run serves (or fails), the causal list of every process, in place; then plain lines below it."""

    def __init__(self, deployment: Deployment, term: Term, attached: bool) -> None:
        super().__init__(deployment, term, attached)
        self._board = Board(deployment, term, self.prefix)
        self._drawn = 0
        self._live = True
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="redraw", daemon=True)
        self._draw()
        self._thread.start()

    def event(self, event: Event) -> None:
        with self._guard:
            if self._live and event.kind in (Kind.STAGE, Kind.PAIR):
                self._board.take(event)
                self._draw()
                return
            if self._live:
                self._board.take(event)
                self._freeze()
        super().event(event)

    def close(self) -> None:
        with self._guard:
            self._freeze()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _freeze(self) -> None:
        if self._live:
            self._draw()
            self._live = False
            self._closing.set()

    def _tick(self) -> None:
        while not self._closing.wait(REDRAW):
            with self._guard:
                if self._live:
                    self._draw()

    def _draw(self) -> None:
        rows = self._board.rows(time.time())
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        text = "".join(f"\r\x1b[2K{clip(row, self.term.width)}\n" for row in rows)
        self.term.stream.write(up + text)
        self.term.stream.flush()
        self._drawn = len(rows)


class Board:
    """The state behind the live view: which stages each process has reached, and how long each took."""

    def __init__(self, deployment: Deployment, term: Term, prefix: Prefix) -> None:
        self._deployment = deployment
        self._term = term
        self._prefix = prefix
        self._reached: dict[str, dict[Stage, Event]] = {spec.name: {} for spec in deployment.specs}
        self._dead: dict[str, Event] = {}
        self._pairs: list[Event] = []
        self._over = False

    def take(self, event: Event) -> None:
        if event.kind is Kind.STAGE and event.stage:
            self._reached[event.subject][event.stage] = event
        elif event.kind is Kind.PAIR:
            self._pairs.append(event)
        elif event.kind is Kind.DIED:
            self._dead[event.subject] = event
            self._over = True
        else:
            self._over = True

    def rows(self, now: float) -> list[str]:
        rows = [self._row(spec, now) for spec in self._deployment.specs]
        total = len(self._deployment.prefills) * len(self._deployment.decodes)
        if self._pairs or not self._over:
            rows.append(self._pair_row(total))
        return rows

    def _row(self, spec: Spec, now: float) -> str:
        reached = self._reached[spec.name]
        name = self._prefix.name(spec.name)
        if spec.name in self._dead:
            return f"{name} {self._mark('✗', 'x', 'red')} {self._dead[spec.name].detail}"
        if not reached:
            waits = "not started" if self._over else "waits for the others"
            return f"{name} {self._term.style(f'  {waits}', 'dim')}"
        done = Stage.READY in reached
        until = reached[Stage.READY].at if done else now
        clock = f"{span(until - reached[Stage.STARTED].at):>6}"
        mark = self._mark("✓", "+", "green") if done else self._term.symbol("…", ".")
        return f"{name} {mark} {clock}  {self._steps(spec, reached)}"

    def _steps(self, spec: Spec, reached: dict[Stage, Event]) -> str:
        steps = [stage for stage in stages(spec) if stage is not Stage.STARTED]
        slowest = max((reached[stage].seconds for stage in steps if stage in reached), default=0.0)
        words = [self._step(stage, reached.get(stage), slowest, Stage.READY in reached) for stage in steps]
        return self._term.style(" · ", "dim").join(words) if self._term.unicode else " - ".join(words)

    def _step(self, stage: Stage, event: Event | None, slowest: float, done: bool) -> str:
        if event is None:
            # A log without the line (another engine, another log format) must not look as if work were left.
            return self._term.style(f"{stage.value} {'–' if done else '…'}", "dim")
        label = event.detail.removeprefix("bootstrap ").removesuffix(" loaded")
        text = f"{label} {span(event.seconds)}"
        return self._term.style(text, "bold") if event.seconds == slowest else text

    def _pair_row(self, total: int) -> str:
        name = f"{'pairs':{self._prefix.width}}"
        if not self._pairs:
            return self._term.style(f"{name}   {total} to verify", "dim")
        words = [
            f"{self._mark('✓', '+', 'green') if pair.detail == 'answered' else self._mark('✗', 'x', 'red')} "
            f"{pair.subject} {span(pair.seconds)}"
            for pair in self._pairs
        ]
        return f"{name} {'   '.join(words)}"

    def _mark(self, fancy: str, plain: str, color: str) -> str:
        return self._term.style(self._term.symbol(fancy, plain), color)


def clip(text: str, width: int) -> str:
    """`text` in at most `width` columns; escape sequences take none, and the last one is closed."""
    if len(ESCAPE.sub("", text)) <= width:
        return text
    kept, columns = [], 0
    for piece in re.split(r"(\x1b\[[0-9;]*m)", text):
        if ESCAPE.fullmatch(piece):
            kept.append(piece)
            continue
        kept.append(piece[: max(0, width - 1 - columns)])
        columns += len(piece)
    return "".join(kept) + "…"


def choose(progress: Progress, deployment: Deployment, term: Term, attached: bool) -> View:
    """The view that fits the stream: in-place redraw needs a terminal high enough for every row."""
    if progress is Progress.NONE:
        return View()
    rows = len(deployment.specs) + 2
    fits = term.tty and os.environ.get("TERM") != "dumb" and shutil.get_terminal_size().lines > rows
    if progress is Progress.TTY or (progress is Progress.AUTO and fits):
        return TerminalView(deployment, term, attached)
    return PlainView(deployment, term, attached)
