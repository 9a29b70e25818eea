"""Everything that would keep a deployment from starting on this machine, found before anything is started."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import program, user_files
from pdctl.errors import LaunchError, MissingExtraError, PdctlError, UsageError
from pdctl.fleet import listeners
from pdctl.launch import installed_parts, procfs
from pdctl.launch.deployment import ServerRole
from pdctl.launch.process import RUN
from pdctl.launch.runtime import Obstacle

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pdctl.launch.deployment import Deployment, ServerPort, Spec

PORT_TAKEN = "port-taken"


def free_base(
    base: int, taken: Iterable[int], host: str = "", step: int = 100, avoid: Collection[int] = ()
) -> int | None:
    """The nearest base above `base` where all ports of the block (given at the old base) are free, none in `avoid`."""
    block = tuple(taken)
    for shift in range(step, 65536, step):
        if max(block, default=base) + shift > 65535:
            return None
        if all(port + shift not in avoid and listeners.is_free(port + shift, host) for port in block):
            return base + shift
    return None


def check(deployment: Deployment) -> tuple[Obstacle, ...]:
    """All obstacles, in the order in which to fix them: parts, commands, packages, checkpoint, ports."""
    return (*not_installed(deployment), *_checkpoint(deployment), *_taken_ports(deployment))


def not_installed(deployment: Deployment) -> tuple[Obstacle, ...]:
    """What the commands need and this machine lacks; a dry run says it too."""
    return (
        *_missing_parts(deployment),
        *_missing_commands(deployment),
        *installed_parts.obstacles(deployment),
    )


def refuse(name: str, obstacles: Sequence[Obstacle]) -> PdctlError:
    """One error that lists all obstacles."""
    kind = MissingExtraError if any(obstacle.missing_extra for obstacle in obstacles) else LaunchError
    if len(obstacles) == 1:
        return kind(obstacles[0].message, obstacles[0].fix)
    moves = dict.fromkeys(obstacle.fix for obstacle in obstacles if obstacle.code == PORT_TAKEN)
    rows = ""
    for number, obstacle in enumerate(obstacles, 1):
        rows += f"\n  {number}. {obstacle.message}"
        if obstacle.fix and obstacle.fix not in moves:
            rows += f"\n     fix: {obstacle.fix}"
    # One line that moves every port that is taken.
    return kind(f"{len(obstacles)} problems keep `{name}` from starting:{rows}", " ".join(moves))


def _missing_parts(deployment: Deployment) -> Iterator[Obstacle]:
    modules = {program.module_of(spec.argv) for spec in deployment.specs}
    found = installed_parts.find_interpreter(installed_parts.parts(modules))
    if not found.missing:
        return
    what = "engine" if "pdctl.engine" in modules else "router"
    message = f"the {what} is not installed here: {', '.join(found.missing)} missing"
    fix = program.install_command(found.missing, "engine", found.python or "python3")
    if program.FILE:
        message = f"no Python here has the {what}"
        if found.python:
            message = f"{found.python} does not have the {what}: {', '.join(found.missing)} missing"
        fix = f"{fix}, or set {program.PYTHON} to a Python that has it"
    yield Obstacle("extra-missing", message, fix, missing_extra=True)


def _missing_commands(deployment: Deployment) -> Iterator[Obstacle]:
    commands: dict[str, list[str]] = {}
    for spec in deployment.specs:
        commands.setdefault(spec.argv[0], []).append(spec.name)
    for command, names in commands.items():
        if shutil.which(command) is None:
            message, fix = _not_found(command)
            key = "router.command" if names == [ServerRole.ROUTER.value] else "engine.command"
            yield Obstacle("command-missing", f"{', '.join(names)}: {message}", f"{fix}, or set {key} in the topology")


def _not_found(command: str) -> tuple[str, str]:
    """Why a command cannot be started, and what mends that."""
    path = Path(command)
    if len(path.parts) > 1:
        try:
            if path.is_file():
                return f"`{command}` is not executable for this user", f"chmod +x {shlex.quote(command)}"
        except PermissionError:  # a directory above it is closed to this user
            return f"this user may not reach the command `{command}`", "install it where this user may"
    return f"there is no command `{command}`", "install it"


def _checkpoint(deployment: Deployment) -> Iterator[Obstacle]:
    """Problems of a local checkpoint. A model id is left to the engine, which downloads it."""
    if not deployment.checkpoint:
        return
    folder = Path(deployment.checkpoint)
    problem = "no such directory" if not folder.is_dir() else _config(folder)
    if not problem and not _made_up(deployment):
        problem = _weights(folder)
    if problem:
        fix = "--set model.path=DIR, a directory with config.json, *.safetensors and tokenizer.json"
        yield Obstacle("checkpoint-unreadable", f"checkpoint {folder}: {problem}", fix)


def _made_up(deployment: Deployment) -> bool:
    """Whether every server uses `--load-format dummy`, which draws weights at random and reads none."""
    return all(("--load-format", "dummy") in itertools.pairwise(spec.argv) for spec in deployment.roles)


def _config(folder: Path) -> str:
    try:
        json.loads((folder / "config.json").read_bytes())
    except OSError as error:
        return f"config.json: {error.strerror}"
    except ValueError as error:
        return f"config.json is not JSON: {error}"
    return ""


def _weights(folder: Path) -> str:
    index = folder / "model.safetensors.index.json"
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if index.is_file():
        try:
            shards = set(json.loads(index.read_bytes())["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            return f"{index.name} is not an index of shards: {error}"
        missing = sorted(shards - set(names))
        return f"{len(missing)} of {len(shards)} shards missing, first {missing[0]}" if missing else ""
    if not names:
        return "no *.safetensors file"
    try:
        with (folder / names[0]).open("rb") as stream:
            return "" if len(stream.read(8)) == 8 else f"{names[0]} is cut off"
    except OSError as error:
        return f"{names[0]}: {error.strerror}"


def _taken_ports(deployment: Deployment) -> Iterator[Obstacle]:
    moves: dict[str, str] = {}
    reserved = {(port.key, port.port) for spec in deployment.specs for port in spec.ports}
    for spec in deployment.specs:
        for port in spec.ports:
            if not listeners.is_free(port.port, spec.host):
                if port.key not in moves:
                    moves[port.key] = _move(deployment, port.key, reserved)
                yield _taken(spec, port, moves[port.key])


def _taken(spec: Spec, port: ServerPort, move: str) -> Obstacle:
    what = f"port {port.port} ({spec.name}, {port.purpose})"
    holder = listeners.holder(port.port)
    if holder.pid is None:
        why = "needs privileges, or is taken" if port.port < 1024 else "is taken by a process of another user"
        why = listeners.connected_use(port.port) or why
        return Obstacle(PORT_TAKEN, f"{what} {why}", move)
    run = procfs.variable(holder.pid, RUN)
    if run:
        by = f"run `{run}` (pid {holder.pid}; {_elsewhere(holder.pid)}pdctl down {run})"
        return Obstacle(PORT_TAKEN, f"{what} is taken by {by}", move)
    return Obstacle(PORT_TAKEN, f"{what} is taken by pid {holder.pid} ({holder.command:.100})", move)


def _elsewhere(pid: int) -> str:
    """What a command about the run of `pid` must begin with, because its state directory is not the current one."""
    theirs = {name: value for name in ("PDCTL_HOME", "XDG_STATE_HOME", "HOME") if (value := procfs.variable(pid, name))}
    with contextlib.suppress(UsageError):
        home = user_files.state_directory(theirs) if "HOME" in theirs or "PDCTL_HOME" in theirs else None
        if home is not None and home.resolve() != user_files.state_directory(os.environ).resolve():
            return f"PDCTL_HOME={shlex.quote(str(home))} "
    return ""


def _move(deployment: Deployment, key: str, reserved: set[tuple[str, int]]) -> str:
    """The --set that moves the whole block of `key` to the nearest base at which all its ports are free.

    `reserved`: key and port of everything the deployment uses, to which the block's new ports are added.
    """
    block = [entry.port for spec in deployment.specs for entry in spec.ports if entry.key == key]
    base = min(block)
    free = free_base(base, block, avoid={port for other, port in reserved if other != key})
    if free is None:
        return f"--set {key}=PORT"
    reserved.update((key, port + free - base) for port in block)
    return f"--set {key}={free}"
