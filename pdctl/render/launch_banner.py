"""What a user needs once it serves: the address and a line to paste; and, before, what would be started."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.launch.deployment import Deployment, Spec
    from pdctl.launch.run import Run
    from pdctl.render.term import Term

DRY_RUN = "pdctl.launch/1"


def headline(deployment: Deployment, name: str, logs: Path, term: Term, where: str = "") -> None:
    """One line before anything is started. `where`: what is asked for, while the address is not known yet."""
    shape = term.style(deployment.shape, "bold")
    term.write(f"{name}: {shape}, {deployment.engine} engine, {where or deployment.url}; logs in {tilde(logs)}")
    rehearsal(deployment, term)


def rehearsal(deployment: Deployment, term: Term) -> None:
    """A deployment that breaks on purpose says so wherever it is shown."""
    if deployment.rehearsal:
        term.write(term.style("REHEARSAL", "yellow", "bold") + f": it fails on purpose: {deployment.rehearsal}")


def tilde(path: Path) -> str:
    """`path` as one would type it."""
    home = path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def banner(run: Run, term: Term) -> None:
    url = run.deployment.url
    body = {"model": run.deployment.served_name, "messages": [{"role": "user", "content": "Hello"}]}
    data = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    words = ["curl", "-s", f"{url}/v1/chat/completions", "-H", "content-type: application/json", "-d", data]
    ask = "pdctl ask Hello" if run.name == run.deployment.name else f"pdctl ask --run {run.name} Hello"
    term.write(f"serving at {term.style(url, 'bold')}")
    term.write(f"  {shlex.join(words)}")
    term.write(f"  {ask}")
    rehearsal(run.deployment, term)
    term.stream.flush()


def dry_run(deployment: Deployment, term: Term) -> None:
    """Every command with its environment, each as one line to paste."""
    for spec in deployment.specs:
        ports = ", ".join(f"{port.purpose} {port.port}" for port in spec.ports)
        term.write(term.style(f"# {spec.name}: {ports}", "dim"))
        term.write(command_line(spec))


def command_line(spec: Spec) -> str:
    env = [f"{key}={shlex.quote(value)}" for key, value in spec.env]
    return " ".join([*env, shlex.join(spec.argv)])


def dry_run_json(deployment: Deployment) -> str:
    processes = [
        {
            "name": spec.name,
            "role": spec.role.value,
            "url": spec.url,
            "argv": list(spec.argv),
            "env": dict(spec.env),
            "ports": [{"port": port.port, "purpose": port.purpose} for port in spec.ports],
        }
        for spec in deployment.specs
    ]
    return json.dumps(
        {"schema": DRY_RUN, "name": deployment.name, "url": deployment.url, "processes": processes}, indent=2
    )
