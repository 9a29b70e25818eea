"""One instance as one step of a job: started by srun, watched through records that its ranks write to shared-dir."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.launch.process import close_generation, open_generation
from pdctl.launch.run_record import Exit
from pdctl.launch.runtime import Exited, Located
from pdctl.launch.slurm import queue
from pdctl.program import command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pdctl.launch.deployment import Spec

EAGER, CALM = 0.2, 1.0  # seconds between checks of the records: while it starts or ends, and otherwise
LAG = 3.0  # seconds until a record is visible on a shared file system
DEAF = 5.0  # seconds for a killed step to be gone


def ranks_file(folder: Path, step: str) -> Path:
    """The file that says what each rank of the step `INSTANCE.gGENERATION` runs."""
    return folder / f"{step}.json"


def rank_command(ranks: Path) -> tuple[str, ...]:
    """The command that srun starts on every host of a step."""
    return (*command("pdctl.launch.slurm.rank"), str(ranks))


class StepTask:
    """One node's part of a step. `terminate` and `kill` act on the whole step: its nodes start and end together."""

    started = ""  # not a process of this machine

    def __init__(self, step: SlurmStep, spec: Spec, generation: int, log: Path, record: Path) -> None:
        self.spec = spec
        self.generation = generation
        self.pid = 0
        self.since = time.time()
        self.log = log
        self.log_start = open_generation(log, spec, generation)
        self.record = record
        self.exit: Exit | None = None
        self._step = step

    @property
    def words(self) -> str:
        return f"on {self.spec.place}"

    def terminate(self) -> None:
        self._step.terminate()

    def kill(self) -> None:
        self._step.kill()


class SlurmStep:
    """The srun step that runs one instance of `job` on the hosts of `specs`.

    Its files, named after the instance and generation, are in `folder`.
    """

    def __init__(
        self, run: str, job: str, folder: Path, specs: Sequence[Spec], generation: int, logs: Sequence[Path]
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.name = f"{specs[0].instance}.g{generation}"
        self.file = ranks_file(folder, self.name)
        self.id = ""  # Slurm's step id, once a rank has reported it
        self._job = job
        self._output = folder / f"{self.name}.srun"
        self._popen: subprocess.Popen[bytes] | None = None
        self._asked = self._killed = 0.0
        self._guard = threading.Lock()
        self.ranks = tuple(
            StepTask(self, spec, generation, log, folder / f"{spec.name}.g{generation}")
            for spec, log in zip(specs, logs, strict=True)
        )
        for rank in self.ranks:
            for old in (_start(rank), _exit(rank)):
                old.unlink(missing_ok=True)
        document = {"run": run, "ranks": [_entry(rank) for rank in self.ranks]}
        user_files.write_whole(self.file, json.dumps(document))

    def start(self, words: Sequence[str], post: Callable[[Exited | Located], None]) -> None:
        """Start the step. `words`: srun and its flags."""
        with self._output.open("ab") as output:
            self._popen = subprocess.Popen(
                [*words, *rank_command(self.file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        threading.Thread(target=self._watch, args=(post,), name=f"step {self.name}", daemon=True).start()

    def terminate(self) -> None:
        with self._guard:
            if not self._asked and not self.over:
                self._asked = time.monotonic()
                self._signal("TERM")

    def kill(self) -> None:
        with self._guard:
            if not self._killed and not self.over:
                self._killed = time.monotonic()
                self._signal("KILL")

    def lose(self, rank: StepTask, why: str, post: Callable[[Exited | Located], None]) -> None:
        """Record `rank` as lost with its host. What ran there may keep running, but nobody can reach it."""
        self._end(rank, Exit(1, 0, time.time(), lost=why), post)

    @property
    def over(self) -> bool:
        return all(rank.exit is not None for rank in self.ranks)

    def _signal(self, name: str) -> None:
        if self.id:
            queue.cancel(self.id, name)
        elif self._popen is not None:  # no rank has started yet: without srun none will
            self._popen.terminate()

    def _watch(self, post: Callable[[Exited | Located], None]) -> None:
        ended = 0.0
        while not self.over:
            changing = self._asked or self._killed or not all(rank.pid for rank in self.ranks)
            time.sleep(EAGER if changing else CALM)
            self._look(post)
            gone = self._gone()
            ended = ended or (time.monotonic() if gone else 0.0)
            if ended and time.monotonic() - ended > LAG:
                break
        lost = [rank for rank in self.ranks if rank.exit is None]
        if lost:
            why = self._why(lost)
            for rank in lost:
                self._end(rank, Exit(1, 0, time.time(), lost=why[rank.spec.name]), post)
        self._reap()

    def _reap(self) -> None:
        """Wait for srun, which ends soon after its tasks; kill it if it does not learn that they ended."""
        assert self._popen is not None
        try:
            self._popen.wait(timeout=DEAF)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def _gone(self) -> bool:
        """Whether srun has ended. It is killed if it outlives its killed step, because then its node is unreachable."""
        assert self._popen is not None
        if self._popen.poll() is not None:
            return True
        if self._killed and time.monotonic() - self._killed > DEAF:
            self._popen.kill()
            self._popen.wait()
            return True
        return False

    def _look(self, post: Callable[[Exited | Located], None]) -> None:
        ends: list[tuple[float, StepTask, Exit]] = []
        for rank in self.ranks:
            if not rank.pid:
                start = _read(_start(rank))
                if start is not None:
                    rank.pid, self.id = int(str(start["pid"])), f"{self._job}.{start['step']}"
                    post(Located(rank.spec.name, rank.generation, rank.pid))
                    if self._asked or self._killed:  # it was asked to end before its step id was known
                        queue.cancel(self.id, "KILL" if self._killed else "TERM")
            exit = _read(_exit(rank)) if rank.exit is None else None
            if exit is not None:
                code, number, at = int(str(exit["code"])), int(str(exit["signal"])), float(str(exit["at"]))
                ours = bool(self._killed) and number == signal.SIGKILL
                ends.append((at, rank, Exit(code, number, at, ours=ours, asked=bool(self._asked))))
        if ends and not (self._asked or self._killed):
            self._lose_with_hosts(post)
        for _, rank, ended in sorted(ends, key=lambda entry: entry[0]):
            self._end(rank, ended, post)

    def _lose_with_hosts(self, post: Callable[[Exited | Located], None]) -> None:
        """Report ranks on lost hosts first: a lost host is the cause, and the other ends are its consequence."""
        hosts = queue.nodes(",".join(rank.spec.place for rank in self.ranks))
        gone = {node.name: node for node in hosts if node.down or node.silent}
        for rank in self.ranks:
            if rank.spec.place in gone:
                self.lose(rank, lost_with(gone[rank.spec.place]), post)

    def _end(self, rank: StepTask, exit: Exit, post: Callable[[Exited | Located], None]) -> None:
        with self._guard:
            if rank.exit is not None:
                return
            rank.exit = exit
        with contextlib.suppress(OSError):
            close_generation(rank.log, rank.spec, rank.generation, exit)
        post(Exited(rank.spec.name, rank.generation, exit))

    def _why(self, lost: Sequence[StepTask]) -> dict[str, str]:
        """Spec name → why it was lost: its node if that is down, otherwise what srun said."""
        states = {node.name: node for node in queue.nodes(",".join(rank.spec.place for rank in lost))}
        said = self.said()
        found = {}
        for rank in lost:
            node = states.get(rank.spec.place)
            if node is not None and (node.down or node.silent):
                found[rank.spec.name] = lost_with(node)
            else:
                what = "ended without a record" if rank.pid else "did not start"
                found[rank.spec.name] = f"was lost on {rank.spec.place}: it {what}{f' ({said})' if said else ''}"
        return found

    def said(self) -> str:
        """The last line of srun's output; empty if there is none."""
        try:
            lines = self._output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""


def _entry(rank: StepTask) -> dict[str, object]:
    return {
        "node": rank.spec.place,
        "argv": list(rank.spec.argv),
        "env": [list(pair) for pair in rank.spec.env],
        "log": str(rank.log),
        "record": str(rank.record),
    }


def _start(rank: StepTask) -> Path:
    return rank.record.with_name(f"{rank.record.name}.start")


def _exit(rank: StepTask) -> Path:
    return rank.record.with_name(f"{rank.record.name}.exit")


def _read(path: Path) -> dict[str, object] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def lost_with(node: queue.SlurmNode) -> str:
    reason = f": {node.reason}" if node.reason and node.reason != "none" else ""
    return f"was lost with its node {node.name} ({node.state}{reason})"
