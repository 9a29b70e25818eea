"""Servers read from a plan or a manifest, with each flag's place; where a router's addresses lead; `written` checks."""

from __future__ import annotations

import dataclasses
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs
from pdctl.doctor.check import NOT_FOR_EMBEDDED, Check, Skipped, Unknown, merge_findings
from pdctl.doctor.static.servers import RouterLine, Server, Servers, WrittenSetting
from pdctl.engines import numerals
from pdctl.engines.kinds import EMBEDDED, RELEASED
from pdctl.engines.sglang.arguments import gap
from pdctl.engines.sglang.endpoints import DEFAULT_PORT as HTTP
from pdctl.engines.versions import resolve
from pdctl.errors import UsageError
from pdctl.fleet.address import host_and_port
from pdctl.loopback import is_loopback
from pdctl.manifests.command_lines import Flags, Listed, ServerProgram, in_full, parse, program, worker
from pdctl.manifests.manifest import COMPOSE, SCRIPT, PlacedWord
from pdctl.quick_definitions import NamedTuple
from pdctl.topology import owned_flags as owned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pdctl.doctor.check import Facts, Verdict
    from pdctl.engines.versions import Version
    from pdctl.layout.instance_plan import InstancePlan, Plan, RouterPlan
    from pdctl.manifests.manifest import Container, Manifest, ManifestPod, Service
    from pdctl.topology.model import Topology


RUST = "SGLANG_RUST_SERVER"  # the variable with which the bootstrap routes are served on the HTTP port
TAG = re.compile(r":v?(\d+\.\d+\.\d+\w*(?:\.post\d+)?)[^/@:]*(?:@|$)")  # lmsysorg/sglang:v0.5.18-cu126
EXPANSION = re.compile(r"\$\((\w+)\)")
ORDINAL = re.compile(r"(.+)-\d+")  # names of the pods of a StatefulSet, a LeaderWorkerSet, or a role of a group


def from_plan(topology: Topology, plan: Plan) -> Servers:
    engines = tuple(_server(topology, one) for one in plan.instances)
    sides = tuple(side for role in ("prefill", "decode") for side in _side(engines, role))
    routers = (_planned_router(topology, plan.router),) if plan.router is not None else ()
    return Servers(engines, sides, routers, topology=topology, plan=plan)


def _side(engines: tuple[Server, ...], role: str) -> tuple[Server, ...]:
    """One Server for a plan's instances of a role, which differ only in their addresses; it has the role's name."""
    found = [one for one in engines if one.role == role]
    if len(found) < 2:
        return tuple(found)
    return (dataclasses.replace(found[0], name=role, count=len(found)),)


def _server(topology: Topology, one: InstancePlan) -> Server:
    command = one.commands[0]
    embedded = one.serving.kind == EMBEDDED
    release = topology.engine.version or ""
    return Server(
        name=one.name,
        role=one.role,
        engine=one.serving.kind,
        release="" if embedded else release,
        version=resolve(release).known if release and not embedded else None,
        flags=_planned_flags(command.argv, _places(topology, one.role)),
        env=_planned_env(topology, one.role, dict(command.env)),
        network=one.host_name,
        count=1,
        url=one.url,
        instance=one,
    )


def _planned_flags(argv: tuple[str, ...], place: Callable[[str], str]) -> Flags:
    started = program(tuple(PlacedWord(word, 0) for word in argv))
    words = [word.text for word in started.flags] if started is not None else list(argv)
    return parse(((word, "") for word in words), place)


def _places(topology: Topology, role: str) -> Callable[[str], str]:
    """A function that finds where a flag comes from: the role's args, the engine's, or the key that decides it."""

    def place(flag: str) -> str:
        owner = owned.owner(flag, f"roles.{role}.args")
        paths = (f"roles.{role}.args.{flag}", f"engine.args.{flag}", *(owner.keys if owner else ()))
        return _place(topology, *paths)

    return place


def _place(topology: Topology, *paths: str) -> str:
    span = next((topology.spans[path] for path in paths if path in topology.spans), None)
    return f"{span.file}:{span.line}" if span is not None else ""


def _planned_env(topology: Topology, role: str, env: Mapping[str, str]) -> dict[str, WrittenSetting]:
    """The environment with the place of each variable: role before transfer before engine, as in the layout."""
    found = {}
    for name, value in env.items():
        paths = (f"roles.{role}.env.{name}", f"transfer.env.{name}", f"engine.env.{name}")
        found[name] = WrittenSetting(name, value, _place(topology, *paths))
    return found


def _planned_router(topology: Topology, planned: RouterPlan) -> RouterLine:
    flags = _planned_flags(planned.command.argv, lambda flag: _place(topology, f"router.args.{flag}", f"router.{flag}"))
    prefills = tuple(worker(flag) for flag in flags.all("prefill"))
    return RouterLine(
        name=planned.name,
        kind=topology.router.kind,
        flags=flags,
        prefills=_rehearsed(flags, prefills),
        decodes=tuple(worker(flag) for flag in flags.all("decode")),
        network=planned.host_name,
    )


def _rehearsed(flags: Flags, prefills: tuple[Listed, ...]) -> tuple[Listed, ...]:
    """The ports pdctl's router sends when told to reproduce a real router's mistake (`--rehearse`)."""
    said = flags.find("rehearse")
    incident, _, wrong = (flags.text("rehearse") or "").partition("=")
    if said is None or not prefills:
        return prefills
    ports = [each.port for each in prefills]
    if incident == "missing-bootstrap-port":
        ports = [None] * len(ports)
    elif incident == "wrong-bootstrap-port" and (port := numerals.port(wrong)) is not None:
        ports = [port, *ports[1:]]
    elif incident == "swapped-bootstrap-ports":
        ports = [*ports[1:], ports[0]]
    return tuple(
        each._replace(port=port, evidence=f"{said.evidence} (a rehearsal)")
        for each, port in zip(prefills, ports, strict=True)
    )


def from_manifest(manifest: Manifest) -> Servers:
    engines: list[Server] = []
    routers: list[RouterLine] = []
    for pod in manifest.pods:
        found = [(container, program(container.argv)) for container in pod.containers]
        several = sum(started is not None for _, started in found) > 1
        for container, started in found:
            if started is None:
                continue
            name = pod.name.removesuffix("/leader")  # the leader stands for its group
            if several:
                name = f"{name}/{container.name}"
            if started.role == "router":
                routers.append(_deployed_router(name, pod, container, started))
            else:
                engines.append(_engine(name, pod, container, started))
    leading = tuple(one for one in engines if not one.follows)
    return Servers(tuple(engines), leading, tuple(routers), manifest=manifest)


def engines_behind(found: Servers, url: str, network: str) -> tuple[Server, ...]:
    """The engines a URL leads to from within `network`; () if that cannot be determined."""
    if found.manifest is None:
        one = _by_url(found).get(url)
        return () if one is None else (one,)
    host, port = host_and_port(url)
    if is_loopback(host):
        return tuple(one for one in found.engines if one.network == network and one.port == port)
    service = service_of(found.manifest, host)
    if service is not None:
        pods = {id(pod) for pod in found.manifest.pods if pod.carries(service.selector)}
        return tuple(one for one in found.sides if id(one.pod) in pods)
    own = tuple(one for one in found.sides if _is_set(one.pod) and one.name == host.partition(".")[0])
    if own:
        return own
    named = ORDINAL.fullmatch(host.partition(".")[0])
    if named is not None:
        return tuple(one for one in found.sides if one.name.replace("/", "-") == named[1])
    return tuple(one for one in found.engines if host in written_hosts(one) and one.port == port)


def written_hosts(engine: Server) -> tuple[str, ...]:
    """The names of its host that are written: the address it listens on, and the host a script starts it on."""
    names = (engine.flags.text("host"), engine.container.host if engine.container is not None else None)
    return tuple(name for name in names if name)


def uncalled_in_script(servers: Servers, router: RouterLine, role: str) -> tuple[Server, ...]:
    """The engines of the role that no router of these files calls, if the router is a script's and lists its workers.

    () if a variable keeps open which engine an address leads to.
    """
    lists = [each for one in servers.routers for each in (one.prefills if role == "prefill" else one.decodes)]
    if router.pod is None or router.pod.kind != SCRIPT or any(one.discovers for one in servers.routers):
        return ()
    if any("$" in each.url for each in lists):
        return ()
    called = {
        id(engine)
        for one in servers.routers
        for each in (*one.prefills, *one.decodes)
        for engine in engines_behind(servers, each.url, one.network)
    }
    found = tuple(one for one in servers.sides if one.role == role and id(one) not in called)
    return found if all(one.port is not None and not one.flags.unclear("host") for one in found) else ()


class ListedPort(NamedTuple):
    """What one router says about one prefill. `engine` None: the address leads to no engine in these files."""

    router: RouterLine
    listed: Listed
    engine: Server | None

    @property
    def name(self) -> str:
        return self.engine.name if self.engine is not None else self.listed.url

    @property
    def true(self) -> int | None:
        """The port its bootstrap server listens on; with the Rust server, its HTTP port."""
        if self.engine is None:
            return None
        return self.engine.port if self.engine.on(RUST) else self.engine.bootstrap_port


@lru_cache(maxsize=2)
def claims(servers: Servers) -> tuple[ListedPort, ...]:
    """Every prefill on every router's command line, except those whose port depends on a variable."""
    found = []
    for router in servers.routers:
        for listed in filter(lambda each: each.clear, router.prefills):
            engines = engines_behind(servers, listed.url, router.network)
            prefills = tuple(one for one in engines if one.role == "prefill") or engines
            found.append(ListedPort(router, listed, prefills[0] if prefills else None))
    return tuple(found)


def _is_set(pod: ManifestPod | None) -> bool:
    """Whether it is a LeaderWorkerSet, whose controller creates a headless Service of its name if there is none."""
    return pod is not None and pod.kind == "LeaderWorkerSet"


@lru_cache(maxsize=2)
def _by_url(found: Servers) -> dict[str, Server]:
    """A plan's engines by URL; there may be hundreds."""
    return {one.url: one for one in found.engines}


def service_of(manifest: Manifest, host: str) -> Service | None:
    """The Service that a name's first label names (`svc`, `svc.ns.svc.cluster.local`), or its second (a pod's name)."""
    names = host.split(".")[:2]
    return next((service for name in names for service in manifest.services if service.name == name), None)


def _engine(name: str, pod: ManifestPod, container: Container, started: ServerProgram) -> Server:
    flags, env = _deployed_flags(pod, container, started), _deployed_env(pod, container)
    release, version = _release(container.image)
    mode = flags.text("disaggregation-mode") or ""
    if pod.kind == SCRIPT:
        name = f"{mode or 'engine'}:{flags.number('port') or HTTP}"
    return Server(
        name=name,
        role=mode if mode in ("prefill", "decode") else "",
        engine=started.kind,
        release=release,
        version=version,
        flags=flags,
        env=env,
        network=_network(pod, container),
        count=1 if pod.replicas is None else pod.replicas,
        pod=pod,
        container=container,
        mistyped=_mistyped(flags, release, version) if started.kind == RELEASED else frozenset(),
    )


def _mistyped(flags: Flags, release: str, version: Version | None) -> frozenset[str]:
    """The flags that words which are no flags of the release most likely mean."""
    if release and version is None:
        return frozenset()
    found = (gap(said.name, resolve(release) if release else None) for said in flags.given)
    return frozenset(missing.write for missing in found if missing is not None and missing.write)


def _deployed_router(name: str, pod: ManifestPod, container: Container, started: ServerProgram) -> RouterLine:
    flags = _deployed_flags(pod, container, started)
    return RouterLine(
        name="router" if pod.kind == SCRIPT else name,
        kind=started.kind,
        flags=flags,
        prefills=tuple(worker(flag) for flag in flags.all("prefill")),
        decodes=tuple(worker(flag) for flag in flags.all("decode")),
        network=_network(pod, container),
        pod=pod,
        container=container,
    )


def _deployed_flags(pod: ManifestPod, container: Container, started: ServerProgram) -> Flags:
    """The container's flags, with the variables that Kubernetes would expand from its own environment."""
    values = {said.name: said.value for said in container.env if said.value is not None and "$(" not in said.value}

    def filled(text: str) -> str:
        return EXPANSION.sub(lambda found: values.get(found[1], found[0]), text)

    words = ((filled(word.text), pod.at(word.line)) for word in started.flags)
    return parse(words, full=in_full(started.kind, _release(container.image)[1]))


def _deployed_env(pod: ManifestPod, container: Container) -> dict[str, WrittenSetting]:
    return {said.name: WrittenSetting(said.name, said.value, pod.at(said.line)) for said in container.env}


def _network(pod: ManifestPod, container: Container) -> str:
    """A key for what a pod shares ports with. Pods of one template differ by name; a compose file is one host.

    A script's commands share its host, except those that it starts on another one.
    """
    if container.host is None:
        return f"{pod.file}#{[each is container for each in pod.containers].index(True)}"
    if container.host:
        return f"{pod.file}#{container.host}"
    if pod.kind == COMPOSE and pod.host_network:
        return f"{pod.file}#host"
    return f"{pod.file}#{pod.line}#{pod.name}"


def _release(image: str) -> tuple[str, Version | None]:
    found = TAG.search(image)
    if found is None:
        return "", None
    try:
        return found[1], resolve(found[1]).known
    except UsageError:  # older than any release pdctl knows
        return found[1], None


def templates(manifest: Manifest) -> Iterator[tuple[ManifestPod, Container, ServerProgram]]:
    """Every container that starts an engine or a router, with its pod and program."""
    for pod in manifest.pods:
        for container in pod.containers:
            started = program(container.argv)
            if started is not None:
                yield pod, container, started


NO_TEXT = Skipped("no topology and no manifest was given")


def written(code: str, judge: Callable[[Servers], Verdict], *, embedded: bool = True) -> Check:
    """A check that calls `judge`. `embedded` False: it concerns SGLang and is skipped if only pdctl's engine runs."""

    def ask(facts: Facts) -> Verdict:
        servers = read(facts)
        if not isinstance(servers, Servers):
            return servers
        if servers.embedded and not embedded:
            return NOT_FOR_EMBEDDED
        verdict = judge(servers)
        return verdict if isinstance(verdict, (Skipped, Unknown)) else merge_findings(verdict)

    return Check(code, (Needs.TOPOLOGY,), ask)


@lru_cache(maxsize=2)
def read(facts: Facts) -> Servers | Skipped | Unknown:
    """The servers of the topology, or else of the manifest. They are read once per Facts, which compare by identity."""
    if facts.topology is not None:
        from pdctl.layout.planner import plan_topology  # late: most callers bring the plan

        plan = facts.plan if facts.plan is not None else plan_topology(facts.topology)
        if plan.instances:
            return from_plan(facts.topology, plan)
        first = plan.problems[0].message if plan.problems else "it has no instances"
        return Unknown(f"the plan places nothing: {first}")
    if facts.manifest is not None:
        return from_manifest(facts.manifest)
    return NO_TEXT
