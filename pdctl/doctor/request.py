"""What doctor is asked to look at: topology files, manifests, a run, a router, or single servers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.doctor import selection
from pdctl.doctor.bootstrap_ports import address, plain, workers
from pdctl.doctor.check import Depth
from pdctl.engines import numerals
from pdctl.errors import UsageError
from pdctl.fleet import peer_json
from pdctl.fleet.address import LAST_PORT, Unanswered, join, parse, without_userinfo
from pdctl.fleet.observations import Endpoint
from pdctl.manifests import read as manifests
from pdctl.quick_definitions import NamedTuple
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdctl.doctor.selection import Suppression
    from pdctl.fleet.observations import Ended, ObservedRouter
    from pdctl.layout.instance_plan import Plan
    from pdctl.manifests.manifest import Manifest
    from pdctl.topology.model import Topology


SCRIPTS = (".sh", ".bash")
HEAD = 64 << 10  # bytes that tell a log
LOGS = ("*", "*/*")  # where a directory of logs has them


class Progress(NamedTuple):
    """`what` is being looked at, in words for the user; `done` of `total` are finished."""

    what: str
    done: int
    total: int


def _silent(_: Progress) -> None:
    pass


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


def _no_pids() -> Mapping[int, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Request:
    """What to look at and how. Times in seconds: `deadline` for all but canaries, `canary_deadline` for one canary.

    endpoints: if () and a router is given, its workers are used, named prefill-0, decode-0, … in the order of their
    addresses. router_metrics: the URL of its Prometheus text, if on neither its own port nor 29000.
    key: bearer token for servers that require one. model: the name canaries request ("": the engine's own).
    logs: files, directories or globs. names: path → instance, for a run. since: epoch seconds; older lines belong to
    another run. environ: this host's, for the host checks. run: its name, "" for anything else. own: pid → instance of
    its processes on this host. ended: those that have ended, as recorded. folders: where it writes, each with why
    writing fails, or "".
    extras: after the pairs, also send an over-length prompt, a cancelled stream, n = 2 and a burst.
    """

    depth: Depth = Depth.LIVE
    topology: Topology | None = None
    plan: Plan | None = None
    manifest: Manifest | None = None
    endpoints: tuple[Endpoint, ...] = ()
    router: str = ""
    router_metrics: str = ""
    key: str = ""
    model: str = ""
    logs: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=_nothing)
    since: float | None = None
    environ: Mapping[str, str] = field(default_factory=_nothing)
    run: str = ""
    own: Mapping[int, str] = field(default_factory=_no_pids)
    folders: Mapping[str, str] = field(default_factory=_nothing)
    ended: tuple[Ended, ...] = ()
    deadline: float = 8.0
    canary_deadline: float = 30.0
    extras: bool = True
    host: bool = True
    progress: Callable[[Progress], None] = _silent


class Words(NamedTuple):
    """The command line as typed."""

    files: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    run: str | None = None
    router: str | None = None
    prefills: tuple[str, ...] = ()
    decodes: tuple[str, ...] = ()
    static: bool = False
    canary: bool = False


class Subject(NamedTuple):
    """`title` heads the report; `suppressions` are the topology's own.

    run: the run's name, "" for anything else. over: the run has ended, so nothing is left to probe; its end is
    recorded, and the rest is judged by its files.
    """

    request: Request
    title: str
    suppressions: tuple[Suppression, ...] = ()
    run: str = ""
    over: bool = False


def subject(words: Words, environ: Mapping[str, str], of_run: Callable[[str | None, bool], Subject]) -> Subject:
    """The subject the command line names. `of_run(name, static)`: the run of that name (None: the only one).

    Raise UsageError if the arguments contradict each other, NotFoundError if there is nothing to look at.
    """
    topologies, kept = _sorted(words.files)
    endpoints = given_endpoints(words.prefills, words.decodes)
    router = "" if words.router is None else url(words.router)
    _check(words, topologies, kept, bool(endpoints or router))
    if topologies:
        found = _of_files([*topologies, *words.overlays], words.sets)
    elif kept or endpoints or router:
        found = Subject(Request(), " ".join(kept) or router or f"{len(endpoints)} instances")
    else:
        found = of_run(words.run, words.static)
    live = bool(topologies or endpoints or router or found.run) and not (words.static or found.over)
    request = replace(
        found.request,
        depth=Depth.STATIC if not live else Depth.CANARY if words.canary else Depth.LIVE,
        manifest=manifests.load(kept) if kept else None,
        endpoints=endpoints or found.request.endpoints,
        router=router or found.request.router,
        environ=environ,
    )
    return found._replace(request=request)


def of_plan(topology: Topology, plan: Plan) -> Subject:
    """The subject of a topology and the addresses in its plan."""
    router = planned_router(plan)
    request = Request(topology=topology, plan=plan, router=router, model=topology.model.served_name)
    return Subject(request, topology.name, selection.accepted(topology))


def _of_files(files: Sequence[str], sets: Sequence[str]) -> Subject:
    from pdctl.layout.planner import plan_topology  # late: a router alone needs no plan
    from pdctl.topology import resolve

    topology = resolve.load([resolve.topology_file(each) for each in files], list(sets))
    return of_plan(topology, plan_topology(topology))


def _sorted(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Topologies, and files read as manifest or script. A name that is not a file is a shipped topology's."""
    topologies: list[str] = []
    others: list[str] = []
    for each in files:
        kind = manifests.sort(each)
        exists = each != manifests.STDIN and Path(each).exists()
        if exists and not kind:
            _refuse_logs(each)
        is_manifest = each == manifests.STDIN or (exists and Path(each).suffix in SCRIPTS)
        kind = kind or (manifests.MANIFEST if is_manifest else manifests.TOPOLOGY)
        (topologies if kind == manifests.TOPOLOGY else others).append(each)
    return topologies, others


def _refuse_logs(name: str) -> None:
    """Raise UsageError if `name` is a log, or a directory of logs without a topology, or of such directories."""
    from pdctl.engines.row_matching import speech  # late, as below: it compiles all rows

    path, fix = Path(name), f"pdctl diagnose {pasteable(name)}"
    if path.is_dir():
        from pdctl.logs.source import is_log

        if not any(path.glob("*.y*ml")) and any(is_log(file.name) for files in LOGS for file in path.glob(files)):
            raise UsageError(f"{name} is a directory of logs, not a topology", fix)
    elif path.is_file():
        with path.open("rb") as stream:
            head = stream.read(HEAD).splitlines()
        if any(said is not None for _, said in speech().read(head)):
            raise UsageError(f"{name} is a log, not a topology", fix)


def _check(words: Words, topologies: Sequence[str], others: Sequence[str], servers: bool) -> None:
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


def planned(plan: Plan) -> tuple[Endpoint, ...]:
    """The endpoints of the instances that a plan would start."""
    return tuple(
        Endpoint(
            name=one.name,
            role=one.role,
            url=one.url,
            bootstrap_port=one.bootstrap_port,
            ranks=one.shape.gpus if one.role == "prefill" else None,
        )
        for one in plan.instances
    )


def planned_router(plan: Plan) -> str:
    """The URL of the plan's router, "" if it has none."""
    router = plan.router
    if router is None:
        return ""
    return join(router.address, router.port)


def planned_metrics(plan: Plan) -> str:
    """The URL of the metrics of the plan's router, "" if they are on its own port."""
    router = plan.router
    return "" if router is None or router.metrics is None else join(router.address, router.metrics)


def listed_endpoints(router: ObservedRouter) -> tuple[Endpoint, ...]:
    """The router's workers, named by role and numbered in the order of their addresses, so that names are stable."""
    found: list[Endpoint] = []
    for role in ("prefill", "decode"):
        urls = sorted({plain(one.url) for one in workers(router) if one.role == role}, key=address)
        found += [Endpoint(f"{role}-{number}", role, url) for number, url in enumerate(urls)]
    return tuple(found)


def given_endpoints(prefills: tuple[str, ...], decodes: tuple[str, ...]) -> tuple[Endpoint, ...]:
    """The endpoints of `--prefill URL[,PORT]` and `--decode URL`. Raise UsageError naming a value that is not valid."""
    found = [_prefill(f"prefill-{number}", text) for number, text in enumerate(prefills)]
    found += [Endpoint(f"decode-{number}", "decode", url(text)) for number, text in enumerate(decodes)]
    return tuple(found)


def _prefill(name: str, text: str) -> Endpoint:
    where, comma, port = text.rpartition(",")
    if not comma:
        return Endpoint(name, "prefill", url(text))
    number = numerals.port(port.strip())
    if number is None or not 0 < number <= LAST_PORT:
        raise UsageError(f"`{port}` in --prefill {text} is no bootstrap port", "--prefill http://HOST:30000,8998")
    return Endpoint(name, "prefill", url(where), number)


def url(text: str) -> str:
    """`text` with http:// added if it has no scheme. Raise UsageError if it cannot be an address."""
    text = text.strip()
    whole = text if "://" in text else f"http://{text}"
    try:
        parse(whole)
    except Unanswered:
        fix = "write it as http://HOST:PORT"
        raise UsageError(f"`{peer_json.excerpt(without_userinfo(text))}` is no address of a server", fix) from None
    return plain(whole)
