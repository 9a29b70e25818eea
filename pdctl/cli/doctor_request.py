"""From the words of `pdctl doctor` to what is looked at: topology files, manifests, a run, a router, single servers."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pdctl.doctor import request as asking
from pdctl.doctor import selection
from pdctl.doctor.facts import Depth
from pdctl.doctor.request import Request
from pdctl.errors import NotFoundError, NotProbedError, UsageError
from pdctl.fleet.observations import Ended, Endpoint
from pdctl.manifests import read as manifests

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.doctor.selection import Suppression
    from pdctl.launch.deployment import Deployment
    from pdctl.launch.run import Run
    from pdctl.launch.state import RunDir
    from pdctl.layout.instance_plan import Plan
    from pdctl.topology.model import Topology


class Words(NamedTuple):
    """The command line as typed."""

    files: tuple[str, ...]
    overlays: tuple[str, ...]
    sets: tuple[str, ...]
    run: str | None
    router: str | None
    prefills: tuple[str, ...]
    decodes: tuple[str, ...]
    static: bool
    canary: bool


class Subject(NamedTuple):
    """`title` heads the report; `suppressions` are the topology's own; `run` is the run looked at, if it is one."""

    request: Request
    title: str
    suppressions: tuple[Suppression, ...] = ()
    run: Run | None = None


def subject(words: Words) -> Subject:
    """Raises UsageError for words that contradict each other, NotFoundError when there is nothing to look at."""
    names, kept = _sorted(words.files)
    endpoints = asking.given(words.prefills, words.decodes)
    router = asking.url(words.router) if words.router else ""
    _check(words, names, kept, bool(endpoints or router))
    if names:
        found = _of_topology(names, words)
    elif kept or endpoints or router:
        found = Subject(Request(), " ".join(kept) or router or f"{len(endpoints)} instances")
    else:
        found = _of_run(words.run, words.static)
    manifest = manifests.load(kept) if kept else None
    live = bool(names or endpoints or router or found.run)
    over = found.run is not None and _over(found.run)
    depth = Depth.STATIC if words.static or over or not live else Depth.CANARY if words.canary else Depth.LIVE
    request = replace(
        found.request,
        depth=depth,
        manifest=manifest,
        endpoints=endpoints or found.request.endpoints,
        router=router or found.request.router,
        environ=os.environ,
    )
    return found._replace(request=request)


def _sorted(files: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Topologies, and what is read as manifest or script. A name that is no file is a shipped topology's."""
    topologies: list[str] = []
    others: list[str] = []
    for each in files:
        kind = manifests.TOPOLOGY if each != manifests.STDIN else manifests.MANIFEST
        (topologies if (manifests.sort(each) or kind) == manifests.TOPOLOGY else others).append(each)
    return topologies, others


def _check(words: Words, topologies: list[str], others: list[str], servers: bool) -> None:
    if len(topologies) > 1:
        raise UsageError(
            f"{' and '.join(topologies)} are two topologies", f"an overlay goes after -F: -F {topologies[1]}"
        )
    if (words.overlays or words.sets) and not topologies:
        raise UsageError("-F and --set change a topology, and none is named", "name its file")
    if words.run is not None and (topologies or others or servers):
        raise UsageError("--run and what else is named are two deployments", "give one of them")
    if words.canary and others and not (topologies or servers):
        raise UsageError(
            "a manifest has no addresses a canary could go to", "add --router URL, or --prefill and --decode"
        )
    if servers and bool(words.prefills) != bool(words.decodes) and not words.router:
        missing = "--decode URL" if words.prefills else "--prefill URL"
        raise UsageError(f"a pair has two ends, and {missing} is missing", f"add {missing}")


def _of_topology(files: list[str], words: Words) -> Subject:
    from pdctl.layout.planner import plan_topology  # late: a router alone needs no plan
    from pdctl.topology import resolve

    topology = resolve.load([resolve.find(each) for each in (*files, *words.overlays)], list(words.sets))
    plan = plan_topology(topology)
    return Subject(_planned(topology, plan), topology.name, accepted(topology))


def _planned(topology: Topology, plan: Plan) -> Request:
    return Request(topology=topology, plan=plan, router=asking.planned_router(plan), model=topology.model.served_name)


def accepted(topology: Topology) -> tuple[Suppression, ...]:
    """The findings that the topology's `doctor: ignore:` list accepts."""
    found = []
    for at, entry in enumerate(topology.ignored):
        span = topology.spans.get(f"doctor.ignore[{at}]")
        place = f"{span.file}:{span.line}" if span is not None else f"doctor.ignore[{at}]"
        found.append(selection.suppression(entry.code, entry.because, entry.where or "*", entry.until or "", place))
    return tuple(found)


def _of_run(name: str | None, static: bool) -> Subject:
    """A run of `pdctl launch`: its processes where they really are, the topology it came from, its logs."""
    from pdctl.launch import clusters, credentials  # late: servers named by hand belong to no run
    from pdctl.launch.log_tail import parts
    from pdctl.launch.run import State
    from pdctl.launch.state import RunDir, ended, home, pick

    root = home(os.environ)
    cluster = clusters.meant(root, name)
    if cluster is not None:
        forward = f"kubectl --namespace {cluster.namespace} port-forward service/{cluster.name}-router {cluster.port}"
        fix = f"{forward}, and then pdctl doctor --router http://127.0.0.1:{cluster.port} --canary"
        raise UsageError(f"{cluster.name} runs in Kubernetes, whose network is not this machine's", fix)
    try:
        run = pick(root, name, (State.FAILED, State.STALE))
    except NotFoundError as error:
        if name is not None:
            raise
        raise NotFoundError(error.message, "name a topology, --router URL, or --prefill URL and --decode URL") from None
    if run.state is State.STOPPED and not static:
        why = run.outcome.message if run.outcome is not None else "it was stopped"
        raise NotProbedError(f"run {run.name} is over ({why}): nothing of it can be asked", f"pdctl logs {run.name}")
    over = _over(run)
    directory = RunDir.of(root, run.name)
    kept = directory.path / "topology.yaml"
    found = _of_file(kept, run) if kept.exists() else Subject(Request(), run.name)
    files = {str(path): each.name for each in run.processes for path in parts(directory.log(each.name))}
    logs = {path: name for path, name in files.items() if os.path.exists(path)}  # noqa: PTH110
    deployment = run.deployment
    endpoints = tuple(
        Endpoint(spec.name, spec.role.value, spec.url, spec.bootstrap_port, spec.ranks or None)
        for spec in deployment.servers
    )
    topology = found.request.topology
    request = replace(
        found.request,
        topology=_as_running(topology, deployment) if topology is not None else None,
        endpoints=() if static or over else endpoints,
        router=deployment.router.url if deployment.router is not None else "",
        model=deployment.served_name,
        logs=tuple(logs),
        names=logs,
        own={} if static or over else _own(run),
        ended=() if static else _ended(run, directory),
        key=credentials.api_key(deployment),
        since=run.created,  # a run of the same name before it wrote into the same files
    )
    title = f"run {run.name} {ended(run)}" if over else f"run {run.name}"
    return Subject(request, title, found.suppressions, run)


def _over(run: Run) -> bool:
    """Nobody of it is left to ask: how it ended is recorded, and the rest is judged by what is written."""
    return run.state.value == "failed" and not run.survivors


def _own(run: Run) -> dict[int, str]:
    """Pid → instance for every process of the run on this machine, with all that it started."""
    if run.allocation is not None:
        return {}
    from pdctl.launch import procfs  # late: servers named by hand belong to no run

    alive = {one.pid: one.name for one in run.survivors if one.pid is not None}
    return {**{below: name for pid, name in alive.items() for below in procfs.descendants(pid)}, **alive}


def _ended(run: Run, directory: RunDir) -> tuple[Ended, ...]:
    from pdctl.launch import ending_reasons  # late, as above

    return tuple(
        Ended(
            instance=one.name,
            words=ending_reasons.in_words(one.exit),
            at=one.exit.at,
            ours=one.exit.ours or one.exit.asked,
            log=str(directory.current_log(one.name)),
            lines=(lines := ending_reasons.reasons(directory, one, ending_reasons.TAIL)),
            untold="" if lines else ending_reasons.untold(directory, one, one.exit),
        )
        for one in run.processes
        if one.exit is not None
    )


def _as_running(topology: Topology, deployment: Deployment) -> Topology:
    """With the instances of each role as they are now: some may have taken the other role since."""
    prefills, decodes = len(deployment.prefills), len(deployment.decodes)
    return topology._replace(
        prefill=topology.prefill._replace(instances=prefills), decode=topology.decode._replace(instances=decodes)
    )


def _of_file(kept: Path, run: Run) -> Subject:
    """The plan on the hosts it was given, where a cluster gave some."""
    if run.allocation is None or not run.allocation.seats:
        return _of_topology([str(kept)], Words((), (), (), None, None, (), (), False, False))
    from pdctl.launch.slurm import host_placement  # late: a run of this machine asks no cluster
    from pdctl.topology import resolve

    topology = resolve.load([kept])
    plan = host_placement.given(topology, run.allocation.seats)
    return Subject(_planned(topology, plan), topology.name, accepted(topology))
