"""Runs, their processes, and deployments in a Kubernetes cluster, as tables and JSON."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from pdctl.launch.clusters import ClusterHealth
from pdctl.launch.ending_reasons import span
from pdctl.launch.run import OVER, State
from pdctl.launch.state import as_document
from pdctl.render.columns import write_table
from pdctl.render.launch_view import HUES
from pdctl.render.visible import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.launch.clusters import Cluster
    from pdctl.launch.kubectl import ClusterPod
    from pdctl.launch.run import Run
    from pdctl.launch.run_health import InstanceHealth, RunHealth
    from pdctl.render.term import Term


STATUS, RUNS = "pdctl.status/1", "pdctl.runs/1"
COLORS = {
    State.PENDING: "yellow",
    State.SERVING: "green",
    State.STARTING: "yellow",
    State.STOPPING: "yellow",
    State.STOPPED: "dim",
    State.FAILED: "red",
    State.STALE: "red",
}
HEAD = ("NAME", "ROLE", "PID", "UPTIME", "PORT", "HEALTH", "BOOTSTRAP", "ROUTER", "RESTARTS", "MISSING")
CLUSTER_STATUS = "pdctl.cluster-status/1"
CLUSTER_HEAD = ("INSTANCE", "NODE", "POD", "READY", "RESTARTS", "HOST", "MISSING")


def status(health: RunHealth | ClusterHealth, term: Term) -> None:
    if isinstance(health, ClusterHealth):
        _cluster_status(health, term)
        return
    state = term.style(health.state.value, COLORS[health.state])
    flight = f", {health.in_flight} in flight" if health.in_flight else ""
    over = health.state in OVER
    age = f"started {span(health.seconds)} ago" if over else f"for {span(health.seconds)}"
    term.write(f"{health.name}: {state} at {health.url}, {health.shape}, {age}{flight}")
    if health.job:
        term.write(f"  {_job(health)}")
    if health.logs_lost:
        term.write(f"  {term.style(visible(health.logs_lost, term), 'red')}; free space there, the run goes on")
    for line in health.note.splitlines():
        term.write(f"  {visible(line, term)}")
    rows = [_row(instance, term) for instance in health.instances]
    write_table(HEAD, rows, term)
    for instance in health.instances:
        if instance.died:
            again = f"; it was started again {times(instance.restarts)}" if instance.restarts else ""
            term.write(f"{instance.name} {visible(instance.died, term)}{again}")
        for line in instance.tail:
            term.write(f"  {instance.name} | {visible(line, term)}")
        if instance.untold:
            term.write(f"  {visible(instance.untold, term)}")


def times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"


def _job(health: RunHealth) -> str:
    if health.queued:
        return f"job {health.job} waits: {health.queued}"
    left = health.ends_at - time.time()
    ends = "" if not health.ends_at else f", ends in {span(left)}" if left > 0 else ", its time is over"
    return f"job {health.job}{ends}"


def _row(health: InstanceHealth, term: Term) -> tuple[str, ...]:
    known = "-" if health.registered is None else f"{health.registered}/{health.ranks}"
    listed = "-" if health.in_router is None else "yes" if health.in_router else "no"
    return (
        term.style(health.name, HUES[health.role]),
        health.role.value,
        f"{health.pid or '-'}@{health.place}" if health.place else str(health.pid or "-"),
        span(health.seconds) if health.alive else "-",
        health.url.rpartition(":")[2],
        health.health or "-",
        known,
        listed,
        str(health.restarts),
        term.style(health.missing, "red") if health.missing else "-",
    )


def status_json(health: RunHealth | ClusterHealth) -> str:
    if isinstance(health, ClusterHealth):
        return _cluster_status_json(health)
    return json.dumps({"schema": STATUS, **as_document(health)}, indent=2)


def runs(found: Sequence[Run], term: Term) -> None:
    rows = [
        (
            run.name,
            term.style(run.condition.value, COLORS[run.condition]),
            run.deployment.shape,
            run.deployment.url,
            span(time.time() - run.created),
            _keeper(run),
        )
        for run in found
    ]
    write_table(("NAME", "STATE", "SHAPE", "URL", "AGE", "PID"), rows, term)


def _keeper(run: Run) -> str:
    """Who supervises it: a process of this machine, or a job."""
    if not run.alive:
        return "-"
    return f"job {run.allocation.job}" if run.allocation is not None else str(run.supervisor)


def runs_json(found: Sequence[Run], unreadable: Sequence[str], clusters: Sequence[Mapping[str, object]] = ()) -> str:
    rows = [
        {
            "name": run.name,
            "state": run.condition.value,
            "shape": run.deployment.shape,
            "url": run.deployment.url,
            "created": run.created,
            "supervisor": run.supervisor if run.alive else None,
            "detached": run.detached,
        }
        for run in found
    ]
    document = {"schema": RUNS, "runs": rows, "clusters": list(clusters), "unreadable": list(unreadable)}
    return json.dumps(document, indent=2)


def cluster_waiting(missing: Sequence[str], term: Term) -> None:
    for line in missing:
        term.write(f"  waiting for {line}" if not line.startswith(" ") else f"  {line}")


def cluster_serving(of: Cluster, found: Sequence[ClusterPod], term: Term) -> None:
    where = f"--namespace {of.namespace}" + (f" --context {of.context}" if of.context else "")
    term.write(f"{of.name} serves at {of.url} (inside the cluster), {len(found)} pods ready")
    term.write(f"  kubectl {where} port-forward service/{of.name}-router {of.port}:{of.port}")
    term.write(f"  pdctl doctor --router http://127.0.0.1:{of.port}")
    term.write(f"  pdctl down {of.name}")


def _cluster_status(health: ClusterHealth, term: Term) -> None:
    of, missing = health.of, health.missing
    state = term.style("starting", "yellow") if missing else term.style("serving", "green")
    age = span(time.time() - of.created)
    term.write(f"{of.name}: {state} at {of.url}, {of.flavour} in {of.place}, applied {age} ago")
    for line in missing:
        if not line.startswith(" "):
            term.write(f"  {line}")
    rows = [
        (
            pod.instance,
            str(pod.node),
            pod.name,
            "yes" if pod.ready else "no",
            str(pod.restarts),
            pod.host or "-",
            term.style(pod.missing, "red") if pod.missing else "-",
        )
        for pod in health.pods
    ]
    write_table(CLUSTER_HEAD, rows, term)


def _cluster_status_json(health: ClusterHealth) -> str:
    document = {
        "schema": CLUSTER_STATUS,
        **health.of._asdict(),
        "url": health.of.url,
        "ready": health.ready,
        "missing": [line.strip() for line in health.missing],
        "pods_found": [pod._asdict() for pod in health.pods],
    }
    return json.dumps(document, indent=2)
