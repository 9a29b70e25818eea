"""PD504 from command lines: ranks against nodes and GPUs, GPUs that two engines use, a rendezvous that two have."""

from __future__ import annotations

import re
from math import gcd
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import finding, names
from pdctl.doctor.static.listen_addresses import WILDCARD
from pdctl.doctor.static.server_sources import engines_behind, written
from pdctl.engines import numerals
from pdctl.engines.kinds import EMBEDDED
from pdctl.fleet.address import host_and_port
from pdctl.layout.shape import Shape, gpu_id, on_node
from pdctl.loopback import is_loopback
from pdctl.manifests.command_lines import program
from pdctl.manifests.manifest import COMPOSE, MOST_GPUS, SCRIPT
from pdctl.quick_definitions import NamedTuple
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.doctor.check import Finding
    from pdctl.doctor.static.servers import Server, Servers

VISIBLE = "CUDA_VISIBLE_DEVICES"
SIZES = ("tp-size", "pp-size", "dp-size", "attn-dp-size", "nnodes", "base-gpu-id", "gpu-id-step")
USUAL_GPUS = 8  # of one host
ID = re.compile(r"\d{1,3}|(GPU|MIG)-[\w/-]+")
PASSED = re.compile(rf"(?:--env=|-e)?{VISIBLE}=(.*)")  # a word behind `ssh HOST`, or an option of `docker run`
REMOTE = ("ssh", "docker", "podman")


def nodes(servers: Servers) -> Iterator[Finding]:
    """In a manifest: the GPUs of all nodes against tp x pp, as far as both are written."""
    for side in servers.sides if servers.manifest is not None else ():
        tp, pp = side.flags.number("tp-size") or 1, side.flags.number("pp-size") or 1
        count = side.flags.number("nnodes") or (side.pod.size if side.pod is not None and side.pod.size else 1)
        if side.flags.unclear("tp-size", "pp-size") or count < 1 or not side.role:
            continue
        if tp * pp % count:
            yield _nodes(side, f"tp {tp} x pp {pp} on {count} nodes", f"set --nnodes to {gcd(tp * pp, count)}")
        gpus = side.container.gpus if side.container is not None else None
        per_node = tp * pp // count if side.dp_attention or side.dp_ranks == 1 else None
        if gpus is not None and per_node is not None and gpus < per_node:
            observed = f"{per_node} ranks on a node, the container has {gpus} GPUs"
            yield _nodes(side, observed, f"set nvidia.com/gpu to {per_node}, or --tp-size to {gpus * count}")


def _nodes(side: Server, observed: str, fix: str, more: Sequence[str] = ()) -> Finding:
    evidence = [*more, *_said(side, "tp-size", "pp-size", "nnodes")]
    return finding("PD504", side.name, observed, "ranks = nodes x GPUs", evidence or [side.place()], fix=fix)


def _said(side: Server, *flags: str) -> list[str]:
    return [said.evidence for name in flags if (said := side.flags.find(name)) is not None]


class VisibleGpus(NamedTuple):
    """The GPUs that an engine sees. `ids` (): all of its host. `evidence`: where that is written, "" if nowhere."""

    ids: tuple[str, ...]
    evidence: str = ""


class UsedGpus(NamedTuple):
    """The GPUs of its host that an engine uses, one for each rank, as numbers or UUIDs.

    `chosen`: its command says which.
    """

    engine: Server
    ids: tuple[str, ...]
    chosen: bool
    evidence: tuple[str, ...]


def unseen(servers: Servers) -> Iterator[Finding]:
    """PD504: a rank is to use a GPU that its engine does not see."""
    for engine in servers.engines:
        visible, wanted = _visible(engine), _wanted(engine)
        if visible is None or wanted is None or not visible.ids or max(wanted) < len(visible.ids):
            continue
        have, need = len(visible.ids), len(wanted)
        observed = f"{need} ranks on a node, which sees {have} GPU{'s' if have > 1 else ''}"
        fix = f"list {need} GPUs in {VISIBLE}"
        if have >= need:
            observed = f"it sees {have} GPUs, of which it is to use {_gpus(map(str, wanted))}, counted from 0"
            fix = f"start {pasteable(engine.name)} without --base-gpu-id"
        if engine.instance is not None:
            fix = f"remove {VISIBLE} from the topology"  # pdctl gives each instance its GPUs
        evidence = [visible.evidence, *_said(engine, *SIZES)]
        yield finding("PD504", engine.name, observed, "GPUs that it sees", list(filter(None, evidence)), fix=fix)


def shared(servers: Servers) -> Iterator[Finding]:
    """PD504: two engines of one host use one GPU, and do not say how to share its memory."""
    known = [used for engine in servers.engines if (used := _used(engine)) is not None]
    for beside in _by_host(servers, known):
        users: dict[str, list[UsedGpus]] = {}
        taken = {gpu for one in beside for gpu in one.ids}
        for later in beside:
            earlier = next(_contested(later, users), None)
            if earlier is not None:
                both = [gpu for gpu in later.ids if gpu in earlier.ids]
                are = "are" if len(both) > 1 else "is"
                observed = f"{_gpus(both)} of its host {are} {earlier.engine.name}'s as well"
                severity = None if earlier.chosen or later.chosen else Severity.WARNING
                evidence = [*earlier.evidence, *later.evidence]
                fix = _move(later, taken)
                yield finding("PD504", later.engine.name, observed, "GPUs of its own", evidence, severity, fix=fix)
            for gpu in later.ids:
                users.setdefault(gpu, []).append(later)


def _contested(later: UsedGpus, users: Mapping[str, Sequence[UsedGpus]]) -> Iterator[UsedGpus]:
    """The engines before it that have a GPU of its, and with which it does not share the memory."""
    for gpu in later.ids:
        yield from (one for one in users.get(gpu, ()) if not _share_memory(one.engine, later.engine))


def _gpus(ids: Iterable[str]) -> str:
    found = list(ids)
    return f"GPU{'s' if len(found) > 1 else ''} {names(found)}"


def _used(engine: Server) -> UsedGpus | None:
    """None if they cannot be told."""
    visible, wanted = _visible(engine), _wanted(engine)
    if visible is None or wanted is None or (visible.ids and max(wanted) >= len(visible.ids)):
        return None
    ids = tuple(visible.ids[each] if visible.ids else str(each) for each in wanted)
    said = [each for each in (visible.evidence, *_said(engine, *SIZES)) if each]
    evidence = said or [f"{engine.place()}: no {VISIBLE}, no --base-gpu-id and no --tp-size"]
    return UsedGpus(engine, ids, bool(visible.ids) or engine.flags.has("base-gpu-id"), tuple(evidence))


def _wanted(engine: Server) -> list[int] | None:
    """The GPUs of its ranks on one node, counted among those it sees; None if that depends on what is not written."""
    flags = engine.flags
    if engine.engine == EMBEDDED or flags.unclear(*SIZES) or (flags.text("device") or "cuda") not in ("cuda", "auto"):
        return None
    if not engine.mistyped.isdisjoint(SIZES):
        return None
    tp, pp, count = (flags.number(name) or 1 for name in ("tp-size", "pp-size", "nnodes"))
    if count == 1 and engine.pod is not None and engine.pod.size:
        count = engine.pod.size
    replicas = 1 if engine.dp_attention else engine.dp_ranks
    base, step = flags.number("base-gpu-id") or 0, flags.number("gpu-id-step") or 1
    if min(tp, pp, count, replicas, step) < 1 or base < 0 or tp * pp % count:
        return None
    if tp * pp // count * replicas > MOST_GPUS:
        return None  # a typing error, or nodes that are not written
    shape = Shape(tp=tp, pp=pp, replicas=replicas, nnodes=count, base_gpu_id=base, gpu_id_step=step)
    return [gpu_id(shape, replica, *place) for replica in range(replicas) for place in on_node(shape, 0)] or None


def _visible(engine: Server) -> VisibleGpus | None:
    """None if it cannot be told."""
    value, evidence = _named(engine)
    given = engine.container.devices if engine.container is not None else ()
    if value is None:
        told = given is not None or engine.flags.has("base-gpu-id")
        return VisibleGpus(given or (), engine.place() if given else "") if told else None
    ids = tuple(each.strip() for each in value.strip("\"'").split(","))
    if not all(map(ID.fullmatch, ids)):
        return None
    if given and all(each.isdigit() and int(each) < len(given) for each in ids):
        ids = tuple(given[int(each)] for each in ids)
    return VisibleGpus(ids, evidence)


def _named(engine: Server) -> tuple[str | None, str]:
    """The value of CUDA_VISIBLE_DEVICES, and where it is written. `ssh` and `docker run` pass on what they are told."""
    container, said = engine.container, engine.env.get(VISIBLE)
    if container is not None and engine.pod is not None and engine.pod.kind == SCRIPT:
        started = program(container.argv)
        words = started.head if started is not None else ()
        if any(word.text.rpartition("/")[2] in REMOTE for word in words):
            for word in words:
                passed = PASSED.fullmatch(word.text)
                if passed is not None:
                    return passed[1], f"{engine.place(word.line)}: {word.text}"
            return None, ""
    return (said.value or "$", said.evidence) if said is not None else (None, "")


def _by_host(servers: Servers, known: Sequence[UsedGpus]) -> Iterator[list[UsedGpus]]:
    """The engines that certainly run on one host, and are not given different GPUs by Kubernetes."""
    deciding = {one.engine.network for one in known if one.chosen}
    local = _called_as_local(servers)
    hosts: dict[str, list[UsedGpus]] = {}
    for one in known:
        engine, container = one.engine, one.engine.container
        key = engine.network
        if engine.pod is not None and container is not None:
            in_script = engine.pod.kind == SCRIPT and not container.host  # on the host where the script is started
            if container.host is None or (container.gpus is not None and engine.pod.kind != COMPOSE):
                continue
            if in_script and (engine.flags.number("nnodes") or 1) > 1:
                continue  # it is started on each node
            if in_script and key not in deciding and id(engine) not in local:
                continue  # who names no GPUs may mean several hosts
            key = engine.pod.file if engine.pod.kind == COMPOSE else key
        hosts.setdefault(key, []).append(one)
    for beside in hosts.values():
        addresses = {one.engine.flags.text("host") for one in beside} - {None, *WILDCARD}
        if len([each for each in addresses if each and not is_loopback(each)]) < 2:
            yield beside


def _called_as_local(servers: Servers) -> set[int]:
    """The engines, by id, that a router calls at a loopback address."""
    return {
        id(engine)
        for router in servers.routers
        for each in (*router.prefills, *router.decodes)
        if is_loopback(host_and_port(each.url)[0])
        for engine in engines_behind(servers, each.url, router.network)
    }


def _share_memory(one: Server, other: Server) -> bool:
    """Whether both are given a part of the memory, which together is not more than all."""
    parts = [numerals.real(each.flags.text("mem-fraction-static") or "") for each in (one, other)]
    return None not in parts and sum(part or 0 for part in parts) <= 1


def _move(used: UsedGpus, taken: set[str]) -> str:
    """What to write instead: the first GPUs that nobody has, which are added to `taken`."""
    name = pasteable(used.engine.name)
    if used.engine.instance is not None or not all(map(str.isdigit, used.ids)):
        return f"set {VISIBLE} of {name} to GPUs that no other engine uses"
    numbers = [int(each) for each in used.ids]
    for base in range(USUAL_GPUS - max(numbers) + min(numbers)):
        ids = [str(base + each - min(numbers)) for each in numbers]
        if not taken.isdisjoint(ids):
            continue
        taken.update(ids)
        if used.engine.container is not None and used.engine.container.devices:
            return f"give the container of {name} {_gpus(ids)} instead"
        if _named(used.engine)[0] is None:
            return f"start {name} with --base-gpu-id {base}"
        return f"set {VISIBLE} of {name} to {','.join(ids)}"
    return f"start {name} on another host"


def rendezvous(servers: Servers) -> Iterator[Finding]:
    """Two instances of a manifest or script that would meet at one --dist-init-addr."""
    seen: dict[str, Server] = {}
    for side in servers.sides if servers.manifest is not None else ():
        said, address = side.flags.find("dist-init-addr"), side.flags.text("dist-init-addr")
        if said is None or address is None:
            continue
        rank = side.flags.number("node-rank")
        other = seen.setdefault(f"{address} {rank}", side)
        if other is not side:
            what = f"--dist-init-addr {address} and node rank {rank or 0} are also {other.name}'s"
            fix = f"set --dist-init-addr of {pasteable(side.name)} to an address of its own"
            yield finding("PD504", side.name, what, "an address of its own", [said.evidence], fix=fix)


CHECKS = (
    written("PD504", nodes, embedded=False),
    written("PD504", rendezvous, embedded=False),
    written("PD504", unseen, embedded=False),
    written("PD504", shared, embedded=False),
)
