"""Runs as text: a line per transition during the start, lines of their logs, the tables of `ls` and `status`."""

from __future__ import annotations

import errno
import json
import os
import shlex
import threading
import time
from typing import TYPE_CHECKING

from pdctl.launch.clusters import ClusterHealth
from pdctl.launch.deployment import ServerRole
from pdctl.launch.ending_reasons import span
from pdctl.launch.run_directory import as_document
from pdctl.launch.run_record import OVER, EventKind, RunEvent, StartStage, State
from pdctl.render.term import visible, write_table

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pdctl.launch.clusters import Cluster
    from pdctl.launch.deployment import Deployment, Spec
    from pdctl.launch.kubectl import ClusterPod
    from pdctl.launch.log_tail import LogLine
    from pdctl.launch.run_health import InstanceHealth, RunHealth
    from pdctl.launch.run_record import Run
    from pdctl.launch.targets.target import DryRun
    from pdctl.render.term import Term


HUES = {ServerRole.PREFILL: "blue", ServerRole.DECODE: "green", ServerRole.ROUTER: "magenta"}
DRY_RUN = "pdctl.launch/1"


class NamePrefix:
    """Prefixes lines with a process name; the width is that of the longest name, so the column never moves."""

    def __init__(self, deployment: Deployment, term: Term) -> None:
        self._term = term
        self.width = max(len(spec.name) for spec in deployment.specs)
        self._bar = term.symbol("│", "|")
        self._styles: dict[str, tuple[str, ...]] = {}
        for spec in deployment.specs:
            same = sum(1 for name in self._styles if name.startswith(spec.role.value))
            # Neighbours of one role differ in weight: the sixteen base colours have only one usable shade of each hue.
            self._styles[spec.name] = (HUES[spec.role], "bold") if same % 2 else (HUES[spec.role],)

    def name(self, name: str) -> str:
        """The coloured, padded name."""
        return self._term.style(f"{name:{self.width}}", *self._styles.get(name, ()))

    def style(self, name: str) -> str:
        """The style of the name, as a rich style string."""
        return " ".join(self._styles.get(name, ()))

    def line(self, line: LogLine) -> str:
        return f"{self.name(line.source)} {self._term.style(self._bar, 'dim')} {line.text}"


class View:
    """Shows nothing."""

    def event(self, event: RunEvent) -> None:
        pass

    def line(self, line: LogLine) -> None:
        pass

    def close(self) -> None:
        """Restore the terminal."""


class PlainView(View):
    """One line per transition, with its time. attached: Ctrl-C ends the run, so the view says how to end it faster."""

    def __init__(self, deployment: Deployment, term: Term, attached: bool) -> None:
        self.term = term
        self.prefix = NamePrefix(deployment, term)
        self._attached = attached
        self._guard = threading.RLock()

    def event(self, event: RunEvent) -> None:
        text = self.sentence(event)
        if text:
            stamp = self.term.style(time.strftime("%H:%M:%S", time.localtime(event.at)), "dim")
            with self._guard:
                self.term.write(f"{stamp} {text}")
                self.term.stream.flush()

    def line(self, line: LogLine) -> None:
        with self._guard:
            self.term.write(self.prefix.line(line))
            self.term.stream.flush()

    def sentence(self, event: RunEvent) -> str:
        """The sentence for `event`; empty if something else reports it."""
        if event.kind is EventKind.SERVING:
            return ""  # the answer itself, on stdout
        name = self.prefix.name(event.subject)
        if event.kind is EventKind.STAGE:
            took = "" if event.stage is StartStage.STARTED else f"  {span(event.seconds)}"
            word = "started, " if event.stage is StartStage.STARTED else ""
            return f"{name} {word}{event.detail}{took}"
        if event.kind is EventKind.PAIR:
            return f"{event.subject} {event.detail}  {span(event.seconds)}"
        if event.kind is EventKind.STOPPING:
            again = "; Ctrl-C again ends everything now" if self._attached else ""
            busy = f" ({event.detail})" if event.detail else ""
            return f"stopping: router first, then decode and prefill{busy}{again}"
        if event.kind is EventKind.ENDED:
            return f"ended after {span(event.seconds)}; {event.detail}"
        if event.kind in (EventKind.STOPPED, EventKind.KILLED):
            return f"{name} {'killed' if event.kind is EventKind.KILLED else 'stopped'}  {span(event.seconds)}"
        mark = self.term.style(self.term.symbol("✗", "x"), "red") if event.kind is EventKind.DIED else ""
        return f"{name} {mark}{' ' if mark else ''}{event.detail}"


def ending(deployment: Deployment | None, term: Term) -> View:
    """A view of a run's end from another shell; it shows nothing if the cluster ends the run itself."""
    return PlainView(deployment, term, attached=False) if deployment is not None else View()


class LogPrinter:
    """Writes the lines that match, each after the name of its process.

    No name is added with `raw`, or without a deployment: a cluster's lines carry it already."""

    def __init__(self, deployment: Deployment | None, term: Term, grep: re.Pattern[str] | None, raw: bool) -> None:
        self._term = term
        self._grep = grep
        self._prefix = NamePrefix(deployment, term) if deployment is not None and not raw else None

    def show(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            if self._grep is None or self._grep.search(line.text):
                self._term.write(self._prefix.line(line) if self._prefix else line.text)
        self._term.flush()  # a reader behind a pipe follows too


def headline(deployment: Deployment, name: str, logs: Path, term: Term, where: str = "") -> None:
    """Write one line before anything is started. where: replaces the address while that is unknown."""
    shape = term.style(deployment.shape, "bold")
    term.write(f"{name}: {shape}, {deployment.engine} engine, {where or deployment.url}; logs in {tilde(logs)}")
    rehearsal(deployment, term)


def rehearsal(deployment: Deployment, term: Term) -> None:
    """If the deployment fails on purpose, say so."""
    if deployment.rehearsal:
        term.write(term.style("REHEARSAL", "yellow", "bold") + f": it fails on purpose: {deployment.rehearsal}")


def tilde(path: Path) -> str:
    """`path` with the home directory, if this user has one, as `~`."""
    try:
        home = path.home()
    except RuntimeError:  # without HOME and without an entry in passwd
        return str(path)
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
    term.flush()


def dry_run(found: DryRun, as_json: bool, term: Term) -> None:
    """Write the scripts and steps that start processes, then each command with its environment as one line to paste."""
    if found.deployment is None:
        term.write(found.manifests.rstrip())
        return
    if as_json:
        term.write(json.dumps(_dry_run_document(found, found.deployment), indent=2))
        return
    for file, text in found.scripts.items():
        term.write(f"# {file}\n{text.rstrip()}")
    for instance, words in found.steps:
        term.write(f"# step {instance}, from the supervisor on the first host")
        term.write(shlex.join(words))
    for spec in found.deployment.specs:
        ports = ", ".join(f"{port.purpose} {port.port}" for port in spec.ports)
        term.write(term.style(f"# {spec.name}: {ports}", "dim"))
        term.write(command_line(spec))


def command_line(spec: Spec) -> str:
    env = [f"{key}={shlex.quote(value)}" for key, value in spec.env]
    return " ".join([*env, shlex.join(spec.argv)])


def _dry_run_document(found: DryRun, deployment: Deployment) -> dict[str, object]:
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
    document: dict[str, object] = {
        "schema": DRY_RUN,
        "name": deployment.name,
        "url": deployment.url,
        "processes": processes,
    }
    if found.scripts:
        document["scripts"] = dict(found.scripts)
        document["steps"] = [{"name": instance, "argv": list(words)} for instance, words in found.steps]
    return document


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
HEAD = (
    "NAME",
    "ROLE",
    "PID",
    "UPTIME",
    "PORT",
    "HEALTH",
    "BOOTSTRAP",
    "ROUTER",
    "PAGES",
    "QUEUES",
    "RESTARTS",
    "MISSING",
)
CLUSTER_STATUS = "pdctl.cluster-status/1"
CLUSTER_HEAD = ("INSTANCE", "NODE", "POD", "READY", "RESTARTS", "HOST", "MISSING")


def status(health: RunHealth | ClusterHealth, term: Term) -> None:
    if isinstance(health, ClusterHealth):
        _cluster_status(health, term)
        return
    flight = f", {health.in_flight} in flight" if health.in_flight else ""
    over = health.state in OVER or (health.state is State.SERVING and not health.serves)
    since = health.serving_seconds if health.state is State.SERVING else health.seconds
    age = f"started {span(health.seconds)} ago" if over or since is None else f"for {span(since)}"
    term.write(f"{health.name}: {_state(health, term)} at {health.url}, {health.shape}, {age}{flight}")
    if health.job:
        term.write(f"  {visible(_job(health), term)}")
    if health.logs_lost:
        full = any(os.strerror(each) in health.logs_lost for each in (errno.ENOSPC, errno.EDQUOT))
        room = "free space there, " if full else ""
        term.write(f"  {term.style(visible(health.logs_lost, term), 'red')}; {room}the run goes on")
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


def _state(health: RunHealth, term: Term) -> str:
    """What its processes answer now: the supervisor's `serving` stays where one of them has died or is silent."""
    lacking = ", ".join(health.lacking)
    if not lacking:
        return term.style(health.state.value, COLORS[health.state])
    return term.style(f"serving without {lacking}" if health.serves else f"not serving (see {lacking})", "red")


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
        visible(f"{health.pid or '-'}@{health.place}", term) if health.place else str(health.pid or "-"),
        span(health.seconds) if health.alive else "-",
        health.url.rpartition(":")[2],
        visible(health.health, term) or "-",
        known,
        listed,
        "-" if health.used_pages is None or health.pages is None else f"{health.used_pages}/{health.pages}",
        _queues(health.queues),
        str(health.restarts),
        term.style(visible(health.missing, term), "red") if health.missing else "-",
    )


def _queues(queues: Mapping[str, int] | None) -> str:
    """`waiting 3, inflight 1`, `empty`, or a dash where they are not known."""
    if queues is None:
        return "-"
    return ", ".join(f"{name} {count}" for name, count in queues.items() if count) or "empty"


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
    """What supervises it: a process on this machine, or a job."""
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
        shown = visible(line, term)
        term.write(f"  waiting for {shown}" if not line.startswith(" ") else f"  {shown}")


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
            term.write(f"  {visible(line, term)}")
    rows = [
        (
            visible(pod.instance, term),
            str(pod.node),
            visible(pod.name, term),
            "yes" if pod.ready else "no",
            str(pod.restarts),
            visible(pod.host, term) or "-",
            term.style(visible(pod.missing, term), "red") if pod.missing else "-",
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
