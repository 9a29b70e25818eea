"""The rank processes of an instance: started before anything heavy is imported, counted, watched, and ended.

An instance lives and dies as one: a tensor-parallel group cannot go on without a rank, so the first death ends it all.
A process writes why it ends into a pipe, which its parent reads afterwards: a message over a socket may still be on its
way when the exit code is known. One write of at most `MAX_END_REASON` bytes is atomic (POSIX, PIPE_BUF: 4096 on Linux,
512 on macOS).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl import program
from pdctl.engine.config.instance_args import Key, ReplicaRank
from pdctl.engine.config.process_log import decorations
from pdctl.engine.drill import fault_points
from pdctl.errors import PdctlError
from pdctl.lifeline import Lifeline, is_pipe
from pdctl.loopback import bracketed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.ipc.messages import Died, Ready, StartupStage

    Facts = Mapping[str, str | int | float | bool | None]

log = logging.getLogger("pdctl.engine")

SCHEDULER = "pdctl.engine.scheduler"
CONTROLLER = "pdctl.engine.cluster.dp_controller"
# Seconds: a launcher's default limit (topology: readiness.timeout); large checkpoints take minutes to load.
READY_WITHIN = 1800.0
STOP_WITHIN = 5.0
REHEARSED_LOOK = 0.1  # seconds between polls of a watch that is to end on a rehearsed error
END_REASON_ENV = "PDCTL_END_REASON_FD"
MAX_END_REASON = select.PIPE_BUF  # bytes


@dataclass(frozen=True, slots=True)
class Child:
    """`name` is what log lines call it: `rank DP0 TP1`, or `DP controller`."""

    name: str
    process: subprocess.Popen[bytes]
    reason: EndReason


@dataclass(frozen=True, slots=True)
class StageDone:
    """A start-up step that one rank has taken, and how many seconds it took."""

    name: str
    tp_rank: int
    dp_rank: int
    seconds: float


class Ranks:
    """`spawn` needs no event loop; the rest runs on the loop given to `attach`. The tokenizer manager calls `on_…`."""

    def __init__(self, args: ServerArgs, ipc_dir: Path, module: str = SCHEDULER) -> None:
        self._args = args
        self._ipc_dir = ipc_dir
        self._module = module
        self._lifeline = Lifeline()
        self._children: list[Child] = []
        self._exited = 0
        self._stopping = False
        self._began = time.monotonic()
        self._all = {here.key: here for here in ReplicaRank.all(args.shape)}
        self._ready: dict[Key, Facts] = {}
        self.stages: list[StageDone] = []

    @property
    def expected(self) -> int:
        """Ranks of the whole instance, on all its nodes."""
        return len(self._all)

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    @property
    def facts(self) -> Facts:
        """What rank 0 of the first replica reported; empty until it has."""
        return self._ready.get((0, 0, 0), {})

    def spawn(self) -> None:
        """Start one process for each rank of this node, and on node 0 the DP controller if it is needed."""
        meeting_points = [_dist_init(self._args, replica) for replica in range(self._args.dp_size)]
        for here in self._all.values():
            rank = here.rank
            if rank.node != self._args.node_rank:
                continue
            options = {
                "--tp-rank": rank.tp_rank,
                "--pp-rank": rank.pp_rank,
                "--replica": here.replica,
                "--dist-init": meeting_points[here.replica],
            }
            words = [str(word) for option in options.items() for word in option]
            self._start(self._name(here.key), self._module, words)
        if self._args.dispatches and self._args.node_rank == 0:
            self._start("DP controller", CONTROLLER, [])

    def _name(self, key: Key) -> str:
        """`rank DP0 TP1`, as in the prefix of its log lines."""
        return "rank" + (decorations(self._args, self._all[key].rank) or " TP0")

    def _start(self, name: str, module: str, options: list[str]) -> None:
        argv = [*program.command(module), "--args-json", self._args.to_json(), "--ipc-dir", str(self._ipc_dir)]
        reason = EndReason()
        process = subprocess.Popen(
            [*argv, *options],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self._lifeline.env, **reason.env},
            pass_fds=(*self._lifeline.fds, *reason.fds),
        )
        reason.started()
        self._children.append(Child(name, process, reason))

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch the processes from now on: a blocked thread for each is a portable way to learn of its end."""
        self._loop = loop
        self.all_ready: asyncio.Future[None] = loop.create_future()
        self.dead: asyncio.Future[str] = loop.create_future()
        self._all_exited: asyncio.Event = asyncio.Event()
        for child in self._children:
            threading.Thread(target=self._wait, args=(child,), name=f"wait {child.name}", daemon=True).start()

    def _wait(self, child: Child) -> None:
        reach = fault_points.raiser("thread.rank-watch")
        if reach is None:
            code = child.process.wait()
        else:
            while (polled := child.process.poll()) is None:
                time.sleep(REHEARSED_LOOK)
                reach()
            code = polled
        reason = child.reason.read()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._gone, child, code, reason)

    def _gone(self, child: Child, code: int, reason: str) -> None:
        self._exited += 1
        if self._exited == len(self._children):
            self._all_exited.set()
        self.lose(
            cannot_go_on(child.name, reason) if reason else f"{child.name} (pid {child.process.pid}) {ending(code)}"
        )

    def lose(self, reason: str) -> None:
        """Declare that the instance cannot go on, for this `reason`; ignored while it is stopping."""
        if not self._stopping:
            self._die(reason)

    def _die(self, reason: str) -> None:
        if not self.dead.done():
            self.dead.set_result(reason)

    def on_ready(self, message: Ready) -> None:
        self._ready[(message.dp_rank, message.pp_rank, message.tp_rank)] = message.facts
        if len(self._ready) == self.expected and not self.all_ready.done():
            self.all_ready.set_result(None)

    def on_stage(self, message: StartupStage) -> None:
        self.stages.append(StageDone(message.name, message.tp_rank, message.dp_rank, message.seconds))
        count = sum(stage.name == message.name for stage in self.stages)
        log.info("Start-up: %s %d/%d ranks, %.2f s", message.name, count, self.expected, message.seconds)

    def on_died(self, message: Died) -> None:
        name = message.who or self._name((message.dp_rank, message.pp_rank, message.tp_rank))
        self._die(cannot_go_on(name, message.reason))

    async def ready(self, seconds: float = READY_WITHIN) -> None:
        """Wait until every rank is ready. Raise PdctlError naming the ranks that are not, or the one that died."""
        either: set[asyncio.Future[Any]] = {self.all_ready, self.dead}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self.dead.done():
            raise PdctlError(self.dead.result())
        if not self.all_ready.done():
            missing = self.missing(self._ready.keys())
            raise PdctlError(
                f"waited {seconds:g} s for {missing} to become ready", "see the last line of each rank above"
            )

    def missing(self, there: Iterable[Key]) -> str:
        """Return the ranks that are not `there`, in words, node by node if there are several."""
        absent = [self._all[key] for key in sorted(self._all.keys() - set(there))]
        by_node: dict[int, list[str]] = {}
        for here in absent:
            by_node.setdefault(here.rank.node, []).append(self._name(here.key).removeprefix("rank "))
        if self._args.nnodes == 1:
            return ", ".join(by_node.get(0, ()))
        return "; ".join(f"{', '.join(names)} of node {node}" for node, names in sorted(by_node.items()))

    def expect_exit(self) -> None:
        """From now on, a rank that ends does so as told."""
        self._stopping = True

    async def exited(self, seconds: float = STOP_WITHIN) -> bool:
        """Wait up to `seconds` for every process to end by itself; return whether they did."""
        try:
            await asyncio.wait_for(self._all_exited.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    def kill(self) -> None:
        """Kill the processes that are left."""
        self._stopping = True
        for child in self._children:
            if child.process.poll() is None:
                child.process.kill()


def cannot_go_on(name: str, reason: str) -> str:
    return f"{name} cannot go on: {reason.rstrip('.')}"


def ending(code: int) -> str:
    """Return in words how a process with this exit code ended."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _dist_init(args: ServerArgs, replica: int) -> str:
    """Return where the ranks of one replica meet (torch.distributed), as host:port."""
    if args.nnodes > 1:
        return args.dist_init_addr or ""
    own, family = ("::1", socket.AF_INET6) if ":" in args.host else ("127.0.0.1", socket.AF_INET)
    if args.dist_init_addr:
        return f"{bracketed(own)}:{int(args.dist_init_addr.rpartition(':')[2]) + replica}"
    with socket.socket(family) as probe:
        probe.bind((own, 0))
        return f"{bracketed(own)}:{probe.getsockname()[1]}"


class EndReason:
    """A pipe on which a child tells its parent why it ended.

    Pass `env` and `fds` to subprocess.Popen, then call `started`; call `read` after the child has ended.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    @property
    def fds(self) -> tuple[int, ...]:
        return (self._write,)

    @property
    def env(self) -> dict[str, str]:
        return {END_REASON_ENV: str(self._write)}

    def started(self) -> None:
        os.close(self._write)

    def read(self) -> str:
        """Return the first reason that was written, or an empty string. Call it once, after the process has ended."""
        told = b""
        with contextlib.suppress(BlockingIOError):  # a child of the process holds the pipe, too
            told = os.read(self._read, MAX_END_REASON)
        os.close(self._read)
        return told.split(b"\n")[0].decode("utf-8", "replace")


def tell_end_reason(reason: str) -> None:
    """Write `reason` for the parent; a no-op in a process started by hand. Callable from any thread."""
    number = os.environ.get(END_REASON_ENV, "")
    if number.isdigit() and is_pipe(int(number)):
        line = " ".join(reason.split()).encode()[: MAX_END_REASON - 1] + b"\n"
        with contextlib.suppress(BrokenPipeError):  # the parent is gone
            os.write(int(number), line)
