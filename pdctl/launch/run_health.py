"""The health of a run, as its processes answer right now, and what doctor needs to know about it."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.errors import NotProbedError
from pdctl.fleet import bootstrap_probe, engine_probe, http_client, listeners, load_probe, router_probe
from pdctl.fleet.observations import Ended, Endpoint
from pdctl.launch import credentials, ending_reasons, procfs, storage
from pdctl.launch.deployment import OnDeath, ServerRole, Spec
from pdctl.launch.log_tail import parts
from pdctl.launch.run_choice import describe_ended
from pdctl.launch.run_record import OVER, EventKind, Process, Run, State
from pdctl.launch.storage import storage_trouble

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pdctl.fleet.load_probe import InstanceLoad
    from pdctl.launch.deployment import Deployment
    from pdctl.launch.run_directory import RunDir
    from pdctl.launch.run_record import Run, RunEvent
    from pdctl.layout.instance_plan import Plan
    from pdctl.topology.model import Topology


PROBE = 3.0  # seconds one probe may take
LONGEST_COMMAND = 120  # characters shown of who holds a port
SILENT = "silent"  # in place of a status if there was no answer


@dataclass(frozen=True, slots=True)
class InstanceHealth:
    """One process. `missing`: what is wrong, empty if nothing is. `in_router`: whether the router lists it as healthy;
    None for the router itself, and if the router does not answer."""

    name: str
    role: ServerRole
    pid: int | None
    alive: bool
    url: str
    seconds: float  # since it was started
    restarts: int
    health: str  # "200", another status, or SILENT
    registered: int | None  # ranks known to the bootstrap server; None where there is none
    ranks: int
    in_router: bool | None
    missing: str
    used_pages: int | None = None  # of its KV pool, without those only the prefix cache keeps; None if not told
    pages: int | None = None
    queues: Mapping[str, int] | None = None  # rooms per queue, `running` for the batch; None if not told
    place: str = ""  # the host; empty: this machine
    died: str = ""  # its latest unexpected death, in words, with the time; empty: it never died
    tail: tuple[str, ...] = ()  # log lines that may tell why, if it is dead now
    untold: str = ""  # a sentence if no line tells why: it says where to look


@dataclass(frozen=True, slots=True)
class RunHealth:
    """A run. `ready`: it is supervised, serving, and nothing is missing. `seconds`: since it was launched."""

    name: str
    state: State
    url: str
    shape: str
    detached: bool
    supervisor: int | None
    seconds: float
    ready: bool
    in_flight: int
    instances: tuple[InstanceHealth, ...]
    note: str
    job: str = ""  # the job's id on a cluster
    queued: str = ""  # what the job waits for
    logs_lost: str = ""  # since when and why logs are being lost, in words; empty: they are written
    ends_at: float = 0.0  # when the allocation ends, in seconds since the epoch; 0: never
    serving_seconds: float | None = None  # since it last began to serve; None: never, or no record says

    @property
    def lacking(self) -> tuple[str, ...]:
        """The instances that are missing from a run that should serve, or lack something."""
        return tuple(each.name for each in self.instances if each.missing) if self.state is State.SERVING else ()

    @property
    def serves(self) -> bool:
        """Whether requests can be answered: the process at its address, and one instance of each role, lack nothing."""
        whole = {each.role for each in self.instances if not each.missing}
        front = not any(each.missing for each in self.instances if each.url == self.url)
        return self.state is State.SERVING and front and whole == {each.role for each in self.instances}


def probe(run: Run, directory: RunDir) -> RunHealth:
    router = run.deployment.router
    foreign = foreign_listeners(run)
    asks = {spec.name for spec in run.deployment.specs if run.lives(run.process(spec.name))} - set(foreign)
    key = credentials.api_key(run.deployment) if asks else ""
    with ThreadPoolExecutor(max_workers=17) as pool:
        asked = pool.submit(router_probe.fetch, router.url, PROBE, key) if router and router.name in asks else None
        answers = tuple(pool.map(lambda spec: _ask(spec, key) if spec.name in asks else None, run.deployment.specs))
        state = asked.result() if asked is not None else router_probe.RouterState(False, False)
    instances = tuple(
        _instance(run, spec, said, state, directory, foreign.get(spec.name, ""))
        for spec, said in zip(run.deployment.specs, answers, strict=True)
    )
    began = max((event.at for event in run.events if event.kind is EventKind.SERVING), default=0.0)
    watched = not ending_reasons.supervisor_stopped(run)
    ready = watched and run.condition is State.SERVING and not any(instance.missing for instance in instances)
    return RunHealth(
        name=run.name,
        state=run.condition,
        url=run.deployment.url,
        shape=run.deployment.shape,
        detached=run.detached,
        supervisor=run.supervisor if run.alive else None,
        seconds=time.time() - run.created,
        ready=ready,
        in_flight=state.in_flight,
        instances=instances,
        note=_note(run, directory),
        logs_lost=storage.storage_trouble(directory.path, directory.logs)
        if run.alive and run.allocation is None
        else "",
        job=run.allocation.job if run.allocation is not None else "",
        queued=_queued(run),
        ends_at=run.allocation.ends_at if run.allocation is not None else 0.0,
        serving_seconds=time.time() - began if began else None,
    )


def _queued(run: Run) -> str:
    if run.state is not State.PENDING or run.allocation is None:
        return ""
    from pdctl.launch.slurm import queue, submission  # imported late: only a run on a cluster needs it

    return submission.pending_reason(queue.leader(run.allocation.job))


def _note(run: Run, directory: RunDir) -> str:
    """What the table cannot show: why the run ended, a dead or stopped supervisor, a rehearsal."""
    if run.condition is State.STALE and run.allocation is not None:
        from pdctl.launch.slurm import submission  # imported late, as above

        return submission.outcome_of_ended_job(run).message
    if run.condition is State.STALE:
        return ending_reasons.supervisor_died(run, directory)
    if run.outcome:
        return run.outcome.message
    rehearsal = f"REHEARSAL: {run.deployment.rehearsal}" if run.deployment.rehearsal else ""
    return "\n".join(filter(None, (ending_reasons.supervisor_stopped(run), rehearsal)))


@dataclass(frozen=True, slots=True)
class _Said:
    """A server's answers. One that does not answer its health path is asked nothing else."""

    health: http_client.Answer
    registered: int | None = None
    mode: str | None = None
    load: InstanceLoad | None = None


def _ask(spec: Spec, key: str) -> _Said | None:
    """Ask one server; None for the router."""
    if spec.role is ServerRole.ROUTER:
        return None
    health = http_client.get(spec.url + spec.health_path, PROBE, key=key)
    if not health.reached:
        return _Said(health, 0 if spec.bootstrap_port is not None and spec.ranks else None)
    if not health.ok or spec.node:
        return _Said(health, _registered(spec))
    endpoint = Endpoint(spec.name, spec.role.value, spec.url)
    (engine,) = engine_probe.probe_engines((endpoint,), PROBE, patience=PROBE, wanted=("loads",), key=key)
    mode = (engine.mode or "null") if engine.info else None
    return _Said(health, _registered(spec), mode, load_probe.read_load(engine))


def _instance(
    run: Run, spec: Spec, said: _Said | None, state: router_probe.RouterState, directory: RunDir, foreign: str
) -> InstanceHealth:
    process = run.process(spec.name)
    alive = run.lives(process)
    health, registered, missing = "", None, ""
    if not alive:
        missing = (
            ending_reasons.in_words(process.exit) if process.exit else "not running" if process.pid else "not started"
        )
        missing += _restart_planned(run, spec)
        missing += f"; {foreign}" if foreign else ""
    elif foreign:
        missing, health = foreign, SILENT
    elif spec.role is ServerRole.ROUTER:
        health = "200" if state.ready else "not ready" if state.reached and not state.unauthorized else state.reason
        missing = "" if state.ready else f"/readiness: {state.reason}"
        if not state.reached:
            missing = _silent(run, process, state.reason)
            health = SILENT
    elif said is not None:
        health = str(said.health.status) if said.health.reached else SILENT
        registered = said.registered
        missing = _lacks(spec, said, state, run.deployment.router is not None)
        if not said.health.reached:
            missing = _silent(run, process, said.health.reason)
    load = said.load if said is not None else None
    death = _latest_death(run, spec)
    # A later generation, that ended otherwise, has nothing to say about it.
    exit = process.exit if death is not None and not alive and death.generation == process.generation else None
    tail = ending_reasons.reasons(directory, process, exit) if exit is not None else ()
    return InstanceHealth(
        name=spec.name,
        role=spec.role,
        pid=process.pid if alive else None,
        alive=alive,
        url=spec.url,
        seconds=time.time() - process.since if alive else 0.0,
        restarts=max(0, process.generation - 1),
        health=health,
        registered=registered,
        ranks=spec.ranks if spec.bootstrap_port else 0,
        in_router=(
            None
            if spec.role is ServerRole.ROUTER or spec.node or not alive or not state.reached
            else state.lists(spec.url)
        ),
        missing=missing,
        used_pages=load.pages("used_tokens") if load is not None else None,
        pages=load.pages("pool_tokens") if load is not None else None,
        queues=load.queues if load is not None and load.heard else None,
        place=process.place,
        died=_describe_death(death) if death is not None else "",
        tail=tail,
        untold=ending_reasons.no_last_lines(directory, process, exit) if exit is not None and not tail else "",
    )


def _latest_death(run: Run, spec: Spec) -> RunEvent | None:
    """The latest death that the supervisor recorded; None if there is none or the run's outcome already tells it."""
    if run.outcome is not None and run.outcome.message.startswith(f"{spec.name} "):
        return None
    deaths = [event for event in run.events if event.kind is EventKind.DIED and event.subject == spec.name]
    return deaths[-1] if deaths else None


def _describe_death(death: RunEvent) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(death.at))
    return f"{death.detail}, at {when}"


def _restart_planned(run: Run, spec: Spec) -> str:
    """When the supervisor will restart it, as a clause; empty if it will not."""
    if run.condition in OVER:
        return ""
    generation = run.process(spec.name).generation
    for event in reversed(run.events):
        theirs = event.subject == spec.instance or run.options.on_death is OnDeath.ALL
        if event.kind is EventKind.RESTARTING and theirs and event.generation == generation:
            left = event.at + event.seconds - time.time()
            return f"; restarts in {ending_reasons.span(left)}" if left > 0 else "; restarts now"
    return ""


def _registered(spec: Spec) -> int | None:
    if spec.bootstrap_port is None or not spec.ranks:
        return None
    return bootstrap_probe.registration(spec.host, spec.bootstrap_port, spec.ranks, PROBE).registered or 0


def _silent(run: Run, process: Process, reason: str) -> str:
    """Why a live process does not answer, and what to do if that is known."""
    stopped, fix = ending_reasons.describe_stopped(run, process)
    if stopped:
        return f"does not answer (for {PROBE:g} s): {stopped}. Continue: {fix}"
    return f"does not answer: {reason}"


def front_trouble(run: Run) -> tuple[str, str]:
    """Why the process at the run's address cannot answer, and what to do; ("", "") if it lives and is not stopped."""
    spec = run.deployment.router or next((one for one in run.deployment.servers if one.url == run.deployment.url), None)
    if spec is None:
        return "", ""
    process = run.process(spec.name)
    if not run.lives(process):
        ended = ending_reasons.in_words(process.exit) if process.exit else "is not running"
        return f"{spec.name} {ended}{_restart_planned(run, spec)}", f"pdctl status {run.name}"
    stopped, fix = ending_reasons.describe_stopped(run, process)
    return (f"{spec.name} does not answer: {stopped}", fix) if stopped else ("", "")


def _lacks(spec: Spec, said: _Said, state: router_probe.RouterState, routed: bool) -> str:
    answer, registered = said.health, said.registered
    if not answer.ok:
        return f"{spec.health_path}: {answer.status if answer.reached else answer.reason}"
    if spec.node:
        return ""
    if said.mode is not None and said.mode != spec.role.value:
        return f"it runs with --disaggregation-mode {said.mode}"
    if registered is not None and registered < spec.ranks:
        return f"bootstrap registered {registered}/{spec.ranks}"
    if routed and state.reached and not state.lists(spec.url):
        return "the router does not list it as healthy"
    return ""


def describe_end(run: Run) -> str:
    """How a run ended of which nothing is left to ask; "" while something of it may answer."""
    over = run.condition in OVER and not run.survivors
    return f"run {run.name} {describe_ended(run)}" if over else ""


def foreign_listeners(run: Run) -> dict[str, str]:
    """Name → who listens on its port instead of it, for each process of the run whose port is somebody else's.

    The API key of the run, and whatever else is meant for it, must not be sent there. What only /proc of another host
    could tell, and a listener that another user runs (as a container's port is held) for a process that lives, is left
    out.
    """
    if run.allocation is not None:
        return {}
    family = own(run)
    if run.supervisor is not None and run.alive:  # what it has started since the record was read
        family.update(dict.fromkeys(procfs.descendants(run.supervisor), run.name))
    specs = {spec.port: spec for spec in run.deployment.specs}
    found = {}
    for port, holder in listeners.listening(specs, family).items():
        lives = run.lives(run.process(specs[port].name))
        if holder.pid not in family and (holder.pid is not None or not lives):
            who = f"pid {holder.pid} ({holder.command[:LONGEST_COMMAND]})" if holder.pid is not None else "another user"
            found[specs[port].name] = f"port {port} of {specs[port].name} is held by {who}, not by run {run.name}"
    return found


def refuse_to_ask(run: Run, names: Collection[str] | None = None) -> None:
    """Raise NotProbedError for a run that is over, and where the port of one of `names` (None: all) is not its own.

    Every verb that sends something to the servers of a run asks this first.
    """
    if run.condition in OVER:
        what = f"run {run.name} {describe_ended(run)}: nothing of it can be asked"
        raise NotProbedError(what, f"pdctl diagnose --run {run.name}")
    for name, words in foreign_listeners(run).items():
        if names is None or name in names:
            raise NotProbedError(f"{words}: nothing is sent there", f"pdctl status {run.name}")


def describe_deaths(run: Run, directory: RunDir) -> tuple[str, ...]:
    """A sentence for each process that has ended by itself, with what it wrote last and when it is started again."""
    return tuple(
        f"{one.instance} {one.words}{one.next}{''.join(f'; it wrote: {line}' for line in one.lines[-1:])}"
        for one in ended(run, directory)
        if not one.ours
    )


def planned(run: Run, directory: RunDir) -> tuple[Topology, Plan] | None:
    """The run's topology and its plan on the allocated hosts; None if the run was not launched from a topology."""
    kept = directory.path / "topology.yaml"
    if not kept.exists():
        return None
    from pdctl.layout.planner import plan_topology  # imported late: status makes no plan
    from pdctl.topology import resolve

    topology = resolve.load([kept])
    if run.allocation is None or not run.allocation.seats:
        return topology, plan_topology(topology)
    from pdctl.launch.slurm import host_placement  # imported late: only a run on a cluster needs it

    return topology, host_placement.plan_on_allocation(topology, run.allocation.seats)


def as_running(topology: Topology, run: Run) -> Topology:
    """`topology` with the current number of instances per role: some may have switched roles since."""
    prefills, decodes = len(run.deployment.prefills), len(run.deployment.decodes)
    return topology._replace(
        prefill=topology.prefill._replace(instances=prefills), decode=topology.decode._replace(instances=decodes)
    )


def endpoints(deployment: Deployment) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(spec.name, spec.role.value, spec.url, spec.bootstrap_port, spec.ranks or None)
        for spec in deployment.servers
    )


def logs(run: Run, directory: RunDir) -> dict[str, str]:
    """Path → instance for every existing log, including those of later generations."""
    files = {str(path): each.name for each in run.processes for path in parts(directory.log(each.name))}
    return {path: name for path, name in files.items() if os.path.exists(path)}  # noqa: PTH110


def folders(directory: RunDir) -> dict[str, str]:
    """The folders the run writes to: its own, and that of its logs with the sentence of `storage_trouble`."""
    return {str(directory.path): "", str(directory.logs.resolve()): storage_trouble(directory.path, directory.logs)}


def own(run: Run) -> dict[int, str]:
    """Pid → instance for every process of the run on this machine and its descendants; empty for a run on a cluster."""
    if run.allocation is not None:
        return {}
    alive = {one.pid: one.name for one in run.survivors if one.pid is not None}
    return {**{below: name for pid, name in alive.items() for below in procfs.descendants(pid)}, **alive}


def ended(run: Run, directory: RunDir) -> tuple[Ended, ...]:
    """The processes that are known to have ended; those of a dead supervisor end with it, and it records nothing."""
    return (*_recorded_ends(run, directory), *_ended_with_supervisor(run, directory))


def _ended_with_supervisor(run: Run, directory: RunDir) -> Iterator[Ended]:
    if run.allocation is not None or run.condition is not State.STALE:
        return
    for one in run.processes:
        if one.exit is None and one.generation and not run.lives(one):
            log = directory.current_log(one.name)
            at = log.stat().st_mtime if log.exists() else run.created
            words = f"ended with its supervisor (pid {run.supervisor}), which died"
            told = ending_reasons.supervisor_died(run, directory)
            fix = f"pdctl down {run.name}; launch it again"
            yield Ended(one.name, words, at, log=str(log), untold=told, fix=fix, exact=False)


def _recorded_ends(run: Run, directory: RunDir) -> tuple[Ended, ...]:
    return tuple(
        Ended(
            instance=one.name,
            words=ending_reasons.in_words(one.exit),
            at=one.exit.at,
            ours=one.exit.ours or one.exit.asked,
            log=str(directory.current_log(one.name)),
            lines=(lines := ending_reasons.reasons(directory, one, one.exit)),
            untold="" if lines else ending_reasons.no_last_lines(directory, one, one.exit),
            next=_restart_planned(run, spec),
            fix="" if lines else ending_reasons.kernel_log(one, one.exit),
        )
        for spec in run.deployment.specs
        if (one := run.process(spec.name)).exit is not None
    )
