"""Open a run before anything is started: its directory, its lock, and the first run.json."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import __version__
from pdctl.errors import ExitCode, LaunchError, PdctlError, limit_reached
from pdctl.launch import credentials, deployment_plan, ending_reasons, preflight, storage
from pdctl.launch.run_directory import RunDir, check_name, home
from pdctl.launch.run_record import OVER, Process, Run, RunOutcome, State
from pdctl.layout import instance_plan
from pdctl.quick_definitions import NamedTuple
from pdctl.user_files import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pdctl.launch.deployment import Deployment, LaunchOptions
    from pdctl.launch.runtime import Obstacle
    from pdctl.launch.targets.target import LaunchOrder
    from pdctl.layout.instance_plan import Plan


EXITING = 10.0  # seconds; on a busy machine an interpreter takes its time to end


class Opened(NamedTuple):
    """A run that this process may start: it holds `lock` (a file descriptor) until it ends or passes the lock on."""

    directory: RunDir
    run: Run
    lock: int


def open_ordered(
    order: LaunchOrder, plan: Plan, deployment: Deployment, check: Callable[[Deployment], tuple[Obstacle, ...]]
) -> Opened:
    """Open a run for `order`, as `open_run` does, and keep the topology and its plan beside run.json."""
    opened = open_run(
        home(os.environ),
        order.name or deployment.name,
        deployment,
        deployment_plan.options(order.topology, order.timeout, order.on_death, order.verify),
        check=check,
        argv=order.argv,
        detached=order.detached,
        files=order.files,
        sets=order.sets,
        logs=order.topology.readiness.logs_dir,
        secret=order.topology.security.deployment_secret,
    )
    opened.directory.keep("topology.yaml", order.text)
    opened.directory.keep("plan.json", instance_plan.to_json(plan))
    return opened


def open_run(
    root: Path,
    name: str,
    deployment: Deployment,
    options: LaunchOptions,
    *,
    check: Callable[[Deployment], tuple[Obstacle, ...]],
    argv: Sequence[str],
    detached: bool = False,
    files: Sequence[str] = (),
    sets: Sequence[str] = (),
    logs: str | None = None,
    secret: bool = True,
) -> Opened:
    """Open a run. Raise LaunchError if one of that name is alive, or with every obstacle that `check` finds.

    `secret`: mint a deployment secret for the processes that can use one.
    """
    directory = RunDir.of(root, check_name(name))
    with storage.written_to(directory.path):
        lock = directory.lock()
    lock = _lock_of_ended(directory) if lock is None else lock
    if lock is None:
        raise _alive(directory)
    if _elsewhere(directory):
        os.close(lock)
        raise _alive(directory)
    obstacles = check(deployment)
    if obstacles:
        os.close(lock)
        raise preflight.refuse(name, obstacles)
    with storage.written_to(directory.path):
        directory.create(expanded(logs).absolute() / name if logs else None)
    with storage.written_to(directory.logs.resolve()):
        storage.try_out(directory.logs)
    run = Run(
        name=name,
        id=uuid.uuid4().hex[:12],
        created=time.time(),
        version=__version__,
        argv=tuple(argv),
        cwd=str(Path.cwd()),
        detached=detached,
        deployment=deployment,
        options=options,
        processes=tuple(Process(spec.name) for spec in deployment.specs),
        files=tuple(files),
        sets=tuple(sets),
        directory=str(directory.path.resolve()),
    )
    with storage.written_to(directory.path):
        credentials.mint(directory.path, deployment, secret)
        storage.prepare(directory.path)
        directory.save(run)
    return Opened(directory, run, lock)


@contextlib.contextmanager
def failing(opened: Opened) -> Iterator[None]:
    """Record that the run failed if an error leaves the block before a supervisor has taken it over."""
    try:
        yield
    except (PdctlError, OSError, RuntimeError, MemoryError, KeyboardInterrupt) as error:
        directory = opened.directory
        run = directory.load()
        if run.supervisor is None and run.state not in OVER:
            known = error if isinstance(error, PdctlError) else limit_reached(error)
            message = known.message if known is not None else str(error) or "interrupted"
            code = known.exit_code if known is not None else ExitCode.FINDINGS
            outcome = RunOutcome(f"it could not be started: {message}", int(code))
            credentials.forget(directory.path)
            directory.save_end(dataclasses.replace(run, state=State.FAILED, outcome=outcome))
        raise


def _lock_of_ended(directory: RunDir) -> int | None:
    """The lock of a run that is over, once its supervisor has exited; None if the run is alive, or it does not exit."""
    until = time.monotonic() + EXITING
    while time.monotonic() < until and directory.load().state in OVER:
        time.sleep(0.05)
        if (lock := directory.lock()) is not None:
            return lock
    return None


def _elsewhere(directory: RunDir) -> bool:
    """Whether a run of that name is alive on a cluster, where no lock on this machine shows it."""
    return (directory.path / "run.json").exists() and (run := directory.load()).allocation is not None and run.alive


def _alive(directory: RunDir) -> LaunchError:
    run = directory.load()
    lasted = ending_reasons.span(time.time() - run.created)
    supervisor = "its supervisor is being started" if run.supervisor is None else f"pid {run.supervisor}"
    who = f"job {run.allocation.job}" if run.allocation is not None else supervisor
    message = f"run `{run.name}` is {run.state.value} at {run.deployment.url} ({who}, for {lasted})"
    other = shlex.join(["pdctl", "down", run.name])
    return LaunchError(message, f"{other}, or launch beside it with --name and other ports")
