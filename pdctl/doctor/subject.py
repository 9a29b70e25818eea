"""What a report is about: topology files, manifests, a run, a router or single servers, from the words as typed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pdctl.doctor import request as asking
from pdctl.doctor import selection
from pdctl.doctor.facts import Depth
from pdctl.doctor.request import Request
from pdctl.errors import UsageError
from pdctl.manifests import read as manifests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdctl.doctor.selection import Suppression
    from pdctl.layout.instance_plan import Plan
    from pdctl.topology.model import Topology


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

    run: the name of the run it is, "" for anything else. over: nobody of that run is left to ask; how it ended is
    recorded, and the rest is judged by what is written.
    """

    request: Request
    title: str
    suppressions: tuple[Suppression, ...] = ()
    run: str = ""
    over: bool = False


def subject(words: Words, environ: Mapping[str, str], of_run: Callable[[str | None, bool], Subject]) -> Subject:
    """`of_run`: the run of that name (None: the only one), asked for what is written alone, or for all.

    UsageError for words that contradict each other, NotFoundError when there is nothing to look at.
    """
    topologies, kept = _sorted(words.files)
    endpoints = asking.given(words.prefills, words.decodes)
    router = asking.url(words.router) if words.router else ""
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
    """A topology and where its instances are."""
    router = asking.planned_router(plan)
    request = Request(topology=topology, plan=plan, router=router, model=topology.model.served_name)
    return Subject(request, topology.name, selection.accepted(topology))


def _of_files(files: Sequence[str], sets: Sequence[str]) -> Subject:
    from pdctl.layout.planner import plan_topology  # late: a router alone needs no plan
    from pdctl.topology import resolve

    topology = resolve.load([resolve.find(each) for each in files], list(sets))
    return of_plan(topology, plan_topology(topology))


def _sorted(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Topologies, and what is read as manifest or script. A name that is no file is a shipped topology's."""
    topologies: list[str] = []
    others: list[str] = []
    for each in files:
        kind = manifests.TOPOLOGY if each != manifests.STDIN else manifests.MANIFEST
        (topologies if (manifests.sort(each) or kind) == manifests.TOPOLOGY else others).append(each)
    return topologies, others


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
