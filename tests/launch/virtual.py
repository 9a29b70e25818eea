"""A supervisor under a clock that only tests move: processes are entries of a table, and hours pass in milliseconds.

Everything between the message and what follows from it is the real supervisor. Readiness and processes of their own are
tested where they are the subject (test_readiness.py, test_supervisor.py).
"""

from __future__ import annotations

import heapq
import itertools
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty

from pdctl.launch.deployment import Deployment, Spec
from pdctl.launch.log_tail import LogTail
from pdctl.launch.readiness import stages
from pdctl.launch.run_record import Exit, Run, StartStage
from pdctl.launch.runtime import Exited, Interrupt, Message, Reached, SupervisorMailbox

EPOCH = 1_800_000_000.0  # what the wall clock says when the virtual one says 0
TO_READY = 1.0  # virtual seconds from a start to the last stage
END_OF_TIME = 1e5
Post = Callable[[Message], None]


class VirtualMailbox(SupervisorMailbox):
    """Time passes only where the supervisor waits, and then at once to what is planned next."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._order = itertools.count()
        self._planned: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        return self._now

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._planned, (self._now + seconds, next(self._order), act))

    def receive(self, until: float) -> Message | None:
        assert self._now < END_OF_TIME, "the supervisor waits for ever"
        while True:
            try:
                return self._messages.get_nowait()
            except Empty:
                if not self._planned or self._planned[0][0] > until:
                    self._now = max(self._now, until)
                    return None
                at, _, act = heapq.heappop(self._planned)
                self._now = max(self._now, at)
                act()


class VirtualProcess:
    """`deaf`: it ends by SIGKILL alone."""

    pid = 0
    started = ""
    log_start = 0

    def __init__(self, spec: Spec, generation: int, box: VirtualMailbox, post: Post, deaf: bool) -> None:
        self.spec = spec
        self.generation = generation
        self.since = EPOCH + box.now()
        self.words = "virtual"
        self.exit: Exit | None = None
        self._box, self._post, self._deaf = box, post, deaf
        self._asked = False

    def terminate(self) -> None:
        self._asked = True
        if not self._deaf:
            self._box.after(0.1, lambda: self.end())

    def kill(self) -> None:
        self._box.after(0.0, lambda: self.end(signal.SIGKILL, ours=True))

    def end(self, number: int = 0, ours: bool = False) -> None:
        if self.exit is None:
            at = EPOCH + self._box.now()
            self.exit = Exit(0, number, at, ours=ours, asked=self._asked)
            self._post(Exited(self.spec.name, self.generation, self.exit))


class VirtualRuntime:
    ends_at = 0.0
    moves_ports = False

    def __init__(self, box: VirtualMailbox, deaf: Sequence[str] = ()) -> None:
        self.box = box
        self.now: dict[str, VirtualProcess] = {}
        self._deaf = deaf

    def moved(self, specs: tuple[Spec, ...], generation: int) -> tuple[Spec, ...]:
        del generation
        return specs

    def start(
        self, specs: tuple[Spec, ...], generation: int, logs: Sequence[Path], post: Post
    ) -> tuple[VirtualProcess, ...]:
        del logs
        new = {spec.name: VirtualProcess(spec, generation, self.box, post, spec.name in self._deaf) for spec in specs}
        self.now.update(new)
        return tuple(new.values())

    def kill_from_outside(self, name: str) -> None:
        self.now[name].end(signal.SIGKILL)

    def beyond_help(self, specs: tuple[Spec, ...]) -> str:
        del specs
        return ""

    def sweep(self) -> tuple[str, ...]:
        return ()

    def busy_ports(self, deployment: Deployment) -> tuple[int, ...]:
        del deployment
        return ()


class VirtualWatch:
    """Reaches every stage within TO_READY; what `stuck` names loads its weights and then waits, with these words."""

    def __init__(
        self, box: VirtualMailbox, stuck: Mapping[str, str], spec: Spec, generation: int, tail: LogTail,
        workers: tuple[str, ...], interval: float, post: Post, key: str,
    ) -> None:  # fmt: skip
        del tail, workers, interval, key
        self._box, self._spec, self._generation, self._post = box, spec, generation, post
        self._stuck = stuck.get(spec.name)
        self._closed = False

    def start(self) -> None:
        self._box.after(TO_READY, self._go_through)

    def close(self) -> None:
        self._closed = True

    def _go_through(self) -> None:
        if self._closed:
            return
        at = EPOCH + self._box.now()
        through = stages(self._spec) if self._stuck is None else (StartStage.BOUND, StartStage.WEIGHTS)
        for stage in through:
            if stage is not StartStage.STARTED:
                self._post(Reached(self._spec.name, self._generation, stage, stage.value, at))
        if self._stuck is not None:
            self._post(Reached(self._spec.name, self._generation, None, self._stuck, at))


def stop(box: VirtualMailbox) -> None:
    """What Ctrl-C posts."""
    box.put(Interrupt(signal.SIGINT))


def started_generations(run: Run) -> dict[str, int]:
    return {process.name: process.generation for process in run.processes}
