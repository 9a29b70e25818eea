"""`pdctl launch -t kubernetes`: render, let the API server judge, apply, wait until every pod is ready."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.launch import clusters
from pdctl.launch.state import check_name, home, load_all
from pdctl.launch.targets import kubernetes
from pdctl.render import run_tables as shown
from pdctl.render import term

if TYPE_CHECKING:
    from pdctl.manifests.write.rendering import Rendering
    from pdctl.topology.model import Topology


def launch(topology: Topology, name: str | None, limit: float | None, dry_run: bool, doctor: bool) -> None:
    """It goes on by itself; raises NotReadyError, LaunchError, UsageError."""
    from pdctl.cli.render import write_stream
    from pdctl.manifests.write import rendering

    topology = topology._replace(name=check_name(name or topology.name))
    made = rendering.render(topology)
    for caution in made.cautions:
        term.err().write(f"warning: {caution.message}")
    if dry_run:
        write_stream(made.objects)
        return
    if doctor:
        from pdctl.cli import rollout

        rollout.check(topology, made.plan, term.err())
    patience = topology.readiness.timeout if limit is None else limit
    _bring_up(made, patience, topology.readiness.interval)


def _bring_up(made: Rendering, patience: float, interval: float) -> None:
    root, of = home(os.environ), kubernetes.cluster(made.plan, made.settings, made.objects)
    if any(run.alive for run in load_all(root)[0] if run.name == of.name):
        raise UsageError(f"a run called {of.name} is alive on this machine", f"--name {of.name}-2")
    through = kubernetes.open_kubectl(of, os.environ)
    kubernetes.judge(through, of, made.objects)
    clusters.save(root, of)  # before anything is made: `pdctl down` must find what a broken connection leaves behind
    kubernetes.apply(through, made.objects)
    notice = term.err()
    notice.write(f"{of.name}: {len(made.objects)} objects applied to {of.place}")
    try:
        found = kubernetes.await_ready(
            through, of, patience, interval, lambda missing: shown.cluster_waiting(missing, notice)
        )
    except KeyboardInterrupt:
        notice.write(f"{of.name} goes on without being waited for; pdctl status {of.name}, pdctl down {of.name}")
        raise
    shown.cluster_serving(of, found, term.out())
