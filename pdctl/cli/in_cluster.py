"""status, logs and down of a deployment in a Kubernetes cluster."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
from typing import TYPE_CHECKING

import typer

from pdctl.errors import ExitCode, NotFoundError
from pdctl.launch import clusters, kubectl
from pdctl.launch.state import home
from pdctl.launch.targets import kubernetes
from pdctl.render import run_tables as shown
from pdctl.render import term
from pdctl.render.log_printer import pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.launch.clusters import Cluster

AT_ONCE = 200  # pods whose logs are followed: kubectl asks for the number beforehand
INSTANCE = re.compile(r"(prefill|decode)-(\d+)")


def status(of: Cluster, as_json: bool, wait: bool, limit: float) -> None:
    through = kubernetes.open_kubectl(of, os.environ)
    if wait:
        found = kubernetes.await_ready(
            through, of, limit, 0, lambda missing: shown.cluster_waiting(missing, term.err())
        )
    else:
        found = kubernetes.look(through, of)
    missing = kubectl.shortfall(found, of.pods)
    if as_json:
        term.out().write(shown.cluster_status_json(of, found, missing))
    else:
        shown.cluster_status(of, found, missing, term.out())
    if missing:
        raise typer.Exit(int(ExitCode.NOT_READY))


def logs(
    of: Cluster,
    instances: Sequence[str],
    follow: bool,
    tail: int | None,
    since: float | None,
    grep: str | None,
    raw: bool,
) -> None:
    """kubectl's own, of all pods or of those of the named instances."""
    wanted = pattern(grep)
    through = kubernetes.open_kubectl(of, os.environ)
    options = [f"--tail={-1 if tail is None else tail}", f"--max-log-requests={AT_ONCE}"]
    options += [] if raw else ["--prefix"]
    if since is not None:
        moment = dt.datetime.fromtimestamp(since, dt.timezone.utc)
        options.append(f"--since-time={moment.isoformat(timespec='seconds')}")
    options += ["--follow"] if follow else []
    for selected in [_selected(of, each) for each in instances] or [kubernetes.selector(of)]:
        _print([through.program(), *through.words("logs", f"--selector={selected}", *options)[1:]], wanted)


def _print(argv: Sequence[str], wanted: re.Pattern[str] | None) -> None:
    """Raises typer.Exit where kubectl failed, after what it said on stderr."""
    out = term.out()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace")
    try:
        for line in process.stdout or ():
            if wanted is None or wanted.search(line):
                out.write(line.rstrip("\n"))
    finally:
        process.terminate()  # a reader that went away, or Ctrl-C, must not wait for the next line
        code = process.wait()
    if code > 0:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _selected(of: Cluster, instance: str) -> str:
    """The pods of an instance, or of a whole part."""
    if instance in kubectl.ORDER:
        return kubernetes.selector(of, instance)
    found = INSTANCE.fullmatch(instance)
    if found is None:
        raise NotFoundError(f"{of.name} has no instance `{instance}`", "name prefill-0, decode-0, …, or router")
    number = kubectl.NUMBERS[of.flavour == "rbg"]
    return kubernetes.selector(of, found[1], **{number: found[2]})


def down(of: Cluster, force: bool, limit: float) -> None:
    kubernetes.remove(kubernetes.open_kubectl(of, os.environ), of, limit, force)
    clusters.forget(home(os.environ), of.name)
    term.out().write(f"{of.name} is gone from {of.place}")
