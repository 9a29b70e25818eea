"""A Kubernetes cluster, through the user's own kubectl. No pdctl process keeps running: the cluster supervises.

It therefore has no `Runtime`: operators group, start and restart pods, and the kubelet probes them.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import time
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.errors import LaunchError, NotFoundError, NotReadyError, UsageError
from pdctl.launch import clusters, kubectl
from pdctl.launch.clusters import Cluster, ClusterHealth
from pdctl.launch.kubectl import OPERATORS, Kubectl
from pdctl.launch.log_tail import LogFiles, LogLine
from pdctl.launch.run_choice import load_all
from pdctl.launch.run_directory import check_name, home
from pdctl.launch.targets.target import DryRun
from pdctl.manifests.write.objects import COMPONENT, INSTANCE, MANAGED_BY, OURS, stream
from pdctl.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdctl.launch.kubectl import ClusterPod
    from pdctl.launch.log_tail import LogQuestion
    from pdctl.launch.run_record import RunEvent
    from pdctl.launch.targets.target import Display, LaunchOrder
    from pdctl.layout.instance_plan import Plan
    from pdctl.manifests.write.kubernetes_settings import KubernetesSettings
    from pdctl.manifests.write.objects import Object

MANAGER = "pdctl"  # the field manager's name for server-side apply
PAUSE = 1.0  # minimum seconds between two checks of the pods: each starts a kubectl
APPLY = ("apply", "--server-side", "--validate=strict", f"--field-manager={MANAGER}", "--filename=-")
AT_ONCE = 200  # the maximum number of pods whose logs are followed, which kubectl must know beforehand
NUMBERED = re.compile(r"(prefill|decode)-(\d+)")


class KubernetesTarget:
    rehearsal = False

    def __init__(self, order: LaunchOrder) -> None:
        self._order = order
        self.topology = order.topology._replace(name=check_name(order.name or order.topology.name))
        from pdctl.manifests.write import rendering  # imported late: only rendering needs the schemas

        self._made = rendering.render(self.topology)
        self.plan, self.cautions = self._made.plan, self._made.cautions

    def dry_run(self) -> DryRun:
        return DryRun(manifests=stream(self._made.objects))

    def launch(self, display: Display) -> None:
        """Validate on the API server, apply, wait until every pod is ready. The deployment stays, also after Ctrl-C."""
        made, root = self._made, home(os.environ)
        of = cluster(made.plan, made.settings, made.objects)
        if any(run.alive for run in load_all(root)[0] if run.name == of.name):
            raise UsageError(f"a run called {of.name} is alive on this machine", f"--name {of.name}-2")
        through = open_kubectl(of, os.environ)
        judge(through, of, made.objects)
        clusters.save(root, of)  # first, so that `pdctl down` can remove the objects even if the connection breaks
        apply(through, made.objects)
        display.say(f"{of.name}: {len(made.objects)} objects applied to {of.place}")
        readiness = self.topology.readiness
        limit = readiness.timeout if self._order.timeout is None else self._order.timeout
        try:
            found = await_ready(through, of, limit, readiness.interval, display.waiting)
        except KeyboardInterrupt:
            display.say(f"{of.name} goes on without being waited for; pdctl status {of.name}, pdctl down {of.name}")
            raise
        display.cluster_serving(of, found)


class LaunchedCluster:
    """The `launched.Launched` of what `KubernetesTarget` applied. It queries the cluster on every call."""

    deployment = None
    running = True

    def __init__(self, root: Path, of: Cluster) -> None:
        self._root = root
        self._of = of
        self._through = open_kubectl(of, os.environ)

    @property
    def name(self) -> str:
        return self._of.name

    def health(self) -> ClusterHealth:
        found = look(self._through, self._of)
        return ClusterHealth(self._of, found, kubectl.shortfall(found, self._of.pods))

    def await_ready(self, limit: float, tell: Callable[[tuple[str, ...]], None]) -> ClusterHealth:
        return ClusterHealth(self._of, await_ready(self._through, self._of, limit, 0, tell), ())

    def stop(self, force: bool, limit: float, emit: Callable[[RunEvent], None]) -> str:
        del emit
        remove(self._through, self._of, limit, force)
        clusters.forget(self._root, self._of.name)
        return f"{self._of.name} is gone from {self._of.place}"

    def log_files(self) -> LogFiles:
        """The logs of its pods, copied to this machine. Raise LaunchError if there are none."""
        found = fetch_logs(self._through, self._of, self._root / "clusters" / f"{self._of.name}.logs")
        return LogFiles({str(path): lane for path, lane in found.items()}, {str(path): path.name for path in found})

    def lines(self, asked: LogQuestion) -> Iterator[tuple[LogLine, ...]]:
        """The lines of `kubectl logs --prefix`, for all pods or for those of the named instances."""
        options = [f"--tail={-1 if asked.tail is None else asked.tail}", f"--max-log-requests={AT_ONCE}"]
        options += [] if asked.raw else ["--prefix"]
        if asked.since is not None:
            moment = dt.datetime.fromtimestamp(asked.since, dt.timezone.utc)
            options.append(f"--since-time={moment.isoformat(timespec='seconds')}")
        options += ["--follow"] if asked.follow else []
        for selected in [self._selected(each) for each in asked.instances] or [selector(self._of)]:
            yield from self._logged(self._through.words("logs", f"--selector={selected}", *options))

    def _logged(self, argv: Sequence[str]) -> Iterator[tuple[LogLine, ...]]:
        """The lines that `argv` prints. Raise LaunchError if kubectl fails; its own message is on stderr."""
        process = subprocess.Popen(
            [self._through.program(), *argv[1:]], stdout=subprocess.PIPE, encoding="utf-8", errors="replace"
        )
        try:
            for line in process.stdout or ():
                yield (LogLine("", line.rstrip("\n")),)
        finally:
            process.terminate()  # a reader that went away, or Ctrl-C, must not have to wait for the next line
            code = process.wait()
        if code > 0:
            raise LaunchError(f"kubectl logs left with exit code {code}", " ".join(argv))

    def _selected(self, instance: str) -> str:
        """The label selector for the pods of an instance or of a whole part. Raise NotFoundError for any other word."""
        if instance in kubectl.ORDER:
            return selector(self._of, instance)
        found = NUMBERED.fullmatch(instance)
        if found is None:
            raise NotFoundError(
                f"{self._of.name} has no instance `{instance}`", "name prefill-0, decode-0, …, or router"
            )
        number = kubectl.NUMBERS[self._of.flavour == "rbg"]
        return selector(self._of, found[1], **{number: found[2]})


def cluster(plan: Plan, settings: KubernetesSettings, objects: Sequence[Object]) -> Cluster:
    """The record of a deployment, to be saved before it is applied."""
    count = {role: sum(one.nnodes for one in plan.instances if one.role == role) for role in ("prefill", "decode")}
    return Cluster(
        name=settings.name,
        namespace=settings.namespace,
        context=settings.context,
        flavour=settings.flavour,
        port=plan.router.port if plan.router is not None else 0,
        created=time.time(),
        pods={**count, "router": 1},
        kinds=tuple(dict.fromkeys(_resource(each) for each in objects)),
    )


def open_kubectl(of: Cluster, environ: Mapping[str, str]) -> Kubectl:
    return Kubectl(of.context, of.namespace, environ)


def judge(through: Kubectl, of: Cluster, objects: Sequence[Object]) -> None:
    """Let the API server validate every object before any is created.

    Raise LaunchError with its message, or naming the operator that is not installed.
    """
    served = set(through.run("api-resources", "--output=name", "--verbs=create").split())
    for each in objects:
        if _resource(each) in of.kinds and _resource(each) not in served:
            raise LaunchError(f"the cluster has no {each['kind']}", OPERATORS.get(each["kind"], "ask who runs it"))
    through.run(*APPLY, "--dry-run=server", stdin=stream(objects))


def apply(through: Kubectl, objects: Sequence[Object]) -> None:
    """Create or update the objects. Raise LaunchError on failure; what was created by then stays."""
    through.run(*APPLY, stdin=stream(objects))


def look(through: Kubectl, of: Cluster) -> tuple[ClusterPod, ...]:
    return kubectl.read_pods(through.run("get", "pods", f"--selector={selector(of)}", "--output=json"))


def await_ready(
    through: Kubectl, of: Cluster, limit: float, interval: float, tell: Callable[[tuple[str, ...]], None]
) -> tuple[ClusterPod, ...]:
    """Wait until every pod is ready. Call `tell` with what is missing whenever that changes.

    Raise NotReadyError naming what is missing after `limit` seconds; the deployment is left as it is.
    """
    deadline = time.monotonic() + limit
    last: tuple[str, ...] = ()
    while True:
        found = look(through, of)
        missing = kubectl.shortfall(found, of.pods)
        if not missing:
            return found
        if missing != last:
            tell(missing)
            last = missing
        if time.monotonic() >= deadline:
            lines = "\n  ".join(missing)
            message = f"{of.name} is not ready after {format_duration(limit)}:\n  {lines}"
            raise NotReadyError(message, f"pdctl logs {of.name}, and pdctl down {of.name} when you have seen enough")
        time.sleep(max(interval, PAUSE))


def fetch_logs(through: Kubectl, of: Cluster, directory: Path) -> dict[Path, str]:
    """Save every pod's log, and the previous log of a restarted container, as a file: path → instance.

    Raise LaunchError if there are none.
    """
    user_files.make_directories(directory, 0o700)
    found: dict[Path, str] = {}
    for pod in look(through, of):
        lane = f"{pod.instance}-node{pod.node}" if pod.node else pod.instance
        for before in (True, False) if pod.restarts else (False,):
            file = directory / f"{lane}{'.before' if before else ''}.log"
            if through.write(file, "logs", pod.name, *(["--previous"] if before else [])):
                found[file] = lane
    if not found:
        raise LaunchError(f"{of.name}: no pod has a log", f"pdctl status {of.name}")
    return found


def remove(through: Kubectl, of: Cluster, limit: float, force: bool) -> None:
    """Delete the router first, waiting at most half the time, so that requests in flight can finish; then the rest.

    `force`: delete everything at once. Raise LaunchError naming the pods that are left after `limit` seconds.
    """
    deadline = time.monotonic() + limit
    if not force:
        through.run(
            "delete", "deployments", f"--selector={selector(of, 'router')}", "--wait=false", "--ignore-not-found"
        )
        _left(through, selector(of, "router"), deadline - limit / 2)
    through.run("delete", ",".join(of.kinds), f"--selector={selector(of)}", "--wait=false", "--ignore-not-found")
    if force:
        through.run("delete", "pods", f"--selector={selector(of)}", "--wait=false", "--grace-period=1")
    left = _left(through, selector(of), deadline)
    if left:
        few = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        fix = f"wait on with pdctl down {of.name} --timeout 10m, or end them now: pdctl down {of.name} --force"
        raise LaunchError(f"{of.name}: pods are still there: {few}", fix)


def _left(through: Kubectl, selected: str, deadline: float) -> list[str]:
    """Wait until no selected pod is left; return those that are left at the deadline."""
    while (left := _names(through, selected)) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    return left


def _names(through: Kubectl, selected: str) -> list[str]:
    """The names of the selected pods, including those being deleted."""
    return through.run("get", "pods", f"--selector={selected}", "--output=name").split()


def selector(of: Cluster, part: str = "", **more: str) -> str:
    wanted = {INSTANCE: of.name, MANAGED_BY: OURS, **({COMPONENT: part} if part else {}), **more}
    return ",".join(f"{key}={value}" for key, value in wanted.items())


def _resource(value: Object) -> str:
    """An object's resource kind in kubectl's form, as `deployments.apps`."""
    group = value["apiVersion"].rpartition("/")[0]
    plural = f"{value['kind'].lower()}s"
    return f"{plural}.{group}" if group else plural
