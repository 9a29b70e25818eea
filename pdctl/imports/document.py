"""The topology that is equivalent to the imported files, as plain values and as YAML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.kinds import EMBEDDED, RELEASED
from pdctl.engines.sglang.endpoints import DEFAULT_BOOTSTRAP_PORT as BOOTSTRAP
from pdctl.engines.sglang.endpoints import DEFAULT_PORT as HTTP
from pdctl.errors import UsageError
from pdctl.imports import placement, sections
from pdctl.imports.found import GPU_LISTS, ROLES
from pdctl.imports.instances import instances, one_setting
from pdctl.imports.placement import GPUS
from pdctl.log_lines import escaped
from pdctl.manifests.manifest import pinned
from pdctl.quick_definitions import NamedTuple
from pdctl.topology.model import VERSION
from pdctl.units import UnitError, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.imports.found import Found, FoundRouter, Notes
    from pdctl.imports.instances import Settings
    from pdctl.imports.placement import Seat
    from pdctl.imports.sections import Section
    from pdctl.manifests.manifest import ManifestPod, Mount

STRIDE = 32
SMALLEST = 1024  # ports below it need privileges
LABEL = re.compile(r"[^a-z0-9]+")
KEPT = ("kubernetes", "slurm")  # targets that are kept even if they are empty
FLAVOURS = {"LeaderWorkerSet": "lws", "RoleBasedGroup": "rbg", "DisaggregatedSet": "disaggregatedset"}
USUAL = "disaggregatedset"
DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
SECRET = re.compile(rf"{DNS_NAME.pattern}/[-._a-zA-Z0-9]+")
PLAIN = ("cpu", "memory", "ephemeral-storage")
GPU = "nvidia.com/gpu"


class Draft(NamedTuple):
    """A topology as plain values. `seats`: the instances it was made from, in the plan's order."""

    values: Section
    seats: tuple[Seat, ...]
    router: FoundRouter | None
    both: Mapping[str, Settings]


def draft(found: Found, name: str, notes: Notes) -> Draft:
    """The topology of the files. Raise UsageError if they start no engine of one of the roles."""
    made = instances(found.engines, notes)
    missing = [role for role in ROLES if not any(one.role == role for one in made)]
    if missing:
        what = f"no {' and no '.join(missing)} engine is started in these files"
        fix = "name the files of both roles; what counts is --disaggregation-mode prefill and decode"
        nulls = [
            each for router in found.routers for each in router.listed["prefill"] if each.port is None and each.clear
        ]
        if nulls:
            what += "".join(
                f"\n  {escaped(placement.describe_null_port(each, 'PD201 bootstrap-port-null: '))}" for each in nulls
            )
            given = " ".join(f"--prefill {escaped(each.url)} PORT" for each in nulls)
            fix = f"give the router the bootstrap port of every prefill: {given}; and to import them, {fix}"
        raise UsageError(what, fix)
    kinds = sorted({one.leader.kind for one in made})
    if EMBEDDED in kinds and len(kinds) > 1:
        raise UsageError(f"the engines are of two kinds: {' and '.join(kinds)}", "name the files of one deployment")
    both = {role: one_setting([one for one in made if one.role == role], notes) for role in ROLES}
    router = _router(found, notes)
    seats = placement.seats(made, found.routers, found.form, notes)
    kind = EMBEDDED if EMBEDDED in kinds else RELEASED
    if "dynamo" in kinds:
        notes.changed(both[ROLES[0]].engine.place, "dynamo.sglang: pdctl starts sglang.launch_server, without Dynamo")
    values: Section = {"version": VERSION, "name": _label(str(found.sections.get("name") or name))}
    values["model"] = sections.model(both, notes)
    flags = {role: sections.args(one, notes) for role, one in both.items()}
    engine: Section = {"kind": kind}
    if kind != EMBEDDED:
        engine["version"] = sections.release(both)
        engine["traceable"] = None if sections.traceable(flags, notes) else False
    engine["command"] = list(both[ROLES[0]].engine.command) or None
    common, own = sections.split_common(flags)
    env_common, env_own = sections.split_common({role: one.env for role, one in both.items()})
    values["engine"] = engine | {"args": common, "env": env_common}
    roles = {role: sections.role(one, _count(seats, role), notes) for role, one in both.items()}
    values["pools"] = _pools(found, seats, roles, notes)
    values["roles"] = {role: each | {"args": own[role], "env": env_own[role]} for role, each in roles.items()}
    values["router"] = sections.router(router, notes)
    values["transfer"] = sections.transfer(both, kind, notes)
    values["ports"] = _ports(seats)
    values |= {key: found.sections[key] for key in ("readiness", "workload") if key in found.sections}
    values["targets"] = _targets(found, seats, router, notes)
    return Draft(_pruned(values), seats, router, both)


def to_yaml(values: Section, head: Sequence[str]) -> str:
    import yaml  # imported late: an import that fails earlier does not load it

    body = yaml.safe_dump(_literal(_pruned(values)), sort_keys=False, allow_unicode=True, width=120)
    return "".join(f"# {line}\n" for line in head) + body


def _literal(value: object) -> object:
    """`value` with every `$` doubled, because a topology expands `${…}`."""
    if isinstance(value, dict):
        return {name: _literal(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_literal(inner) for inner in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def _pruned(value: Section) -> Section:
    found = {name: _pruned(inner) if isinstance(inner, dict) else inner for name, inner in value.items()}
    return {
        name: inner for name, inner in found.items() if inner not in (None, {}, []) or (name in KEPT and inner == {})
    }


def _label(name: str) -> str:
    return LABEL.sub("-", name.lower()).strip("-")[:63].strip("-") or "imported"


def _count(seats: Sequence[Seat], role: str) -> int:
    return min(sum(seat.instance.role == role for seat in seats), placement.MOST) or 1


def _router(found: Found, notes: Notes) -> FoundRouter | None:
    for other in found.routers[1:]:
        notes.left_out(other.place, f"a second router: the one at {found.routers[0].place} is taken")
    return found.routers[0] if found.routers else None


def _pools(found: Found, seats: Sequence[Seat], roles: dict[str, Section], notes: Notes) -> Section:
    """The pools that differ from the default of eight GPUs per host. Also set each role's pool in `roles`."""
    gpu, wide = found.sections.get("gpu"), numerals.whole(str(found.sections.get("gpus-per-host") or ""))
    if wide is not None or gpu:
        return {"default": {"gpus-per-host": min(max(wide or GPUS, 1), 64), "gpu": gpu}}
    if found.form == "kubernetes":
        widths = {role: max(_pod(seat) for seat in seats if seat.instance.role == role) for role in ROLES}
        used = (
            {role: {role: width} for role, width in widths.items()}
            if len(set(widths.values())) > 1
            else {"default": widths}
        )
    elif placement.spans_hosts(seats):
        used = {name: dict(each) for name, each in placement.pools(seats).items()}
    else:
        total = sum(placement.gpus(seat.instance) * seat.instance.nodes for seat in seats)
        embedded = any(seat.instance.leader.kind == EMBEDDED for seat in seats)
        width = max(placement.gpus(seat.instance) for seat in seats) if embedded else total
        nodes = any(seat.instance.nodes > 1 for seat in seats)
        used = {"default": {"": width}} if (width > GPUS or (embedded and nodes)) else {}
    made: Section = {}
    for name, widths in used.items():
        width = min(max(widths.values()), 64)
        if len(used) == 1 and width == GPUS and name in ("default", *ROLES):
            continue
        made[name] = {"gpus-per-host": width}
        if found.form != "kubernetes":
            gpus = "1 GPU" if width == 1 else f"{width} GPUs"
            notes.assumed("", f"hosts of pool {name} have {gpus}: what the instances on one of them take")
        for role in widths if len(used) > 1 else ():
            roles[role]["pool"] = name
    return made


def _pod(seat: Seat) -> int:
    """The GPUs of one pod: those that the instance uses, whatever its limit says."""
    return min(placement.gpus(seat.instance), 64)


def _ports(seats: Sequence[Seat]) -> Section:
    """The ports of the first prefill; those of the other instances count up from them."""
    leader = next(seat.instance.leader for seat in seats if seat.instance.role == ROLES[0])
    http, bootstrap = leader.number("port"), leader.number("disaggregation-bootstrap-port")
    found: Section = {}
    if http is not None and http != HTTP and 0 < http <= 65535:
        found["http"] = http
    if bootstrap is not None and bootstrap != BOOTSTRAP and 0 < bootstrap <= 65535:
        found["bootstrap"] = bootstrap
    dist = _dist(seats)
    if dist is not None and dist != 20000 and SMALLEST <= dist <= 65535:
        found["dist-init"] = dist
    return found


def _dist(seats: Sequence[Seat]) -> int | None:
    """The base of the dist-init ports, from the first --dist-init-addr or from the first NCCL port; None if unknown."""
    for index, seat in enumerate(seats):
        flag = seat.instance.leader.flags.find("dist-init-addr")
        port = placement.address(flag.values[0])[1] if flag is not None and flag.values else None
        if port is not None:
            return port - STRIDE * sum(other.host == seat.host for other in seats[:index])
    nccl = seats[0].instance.leader.number("nccl-port")
    return None if nccl is None else nccl - STRIDE + 1


def _targets(found: Found, seats: Sequence[Seat], router: FoundRouter | None, notes: Notes) -> Section:
    if found.form == "kubernetes":
        return {"kubernetes": _kubernetes(found, router, notes)}
    if found.form == "recipe":
        image = next((seat.instance.leader.image for seat in seats if seat.instance.leader.image), None)
        slurm = dict(found.sections.get("slurm") or {})  # type: ignore[call-overload]
        return {"slurm": slurm | ({"container": {"image": image}} if image else {})}
    images = {seat.instance.leader.image: seat.instance.leader.place for seat in seats if seat.instance.leader.image}
    for image, place in images.items():
        notes.left_out(place, f"image {image}: on this machine pdctl starts the SGLang that is installed")
    return {} if placement.spans_hosts(seats) else {"local": _local(seats, notes)}


def _local(seats: Sequence[Seat], notes: Notes) -> Section:
    """`targets.local`: the GPUs visible to all instances, as the one list of a topology."""
    if all(seat.instance.leader.flags.text("device") == "cpu" for seat in seats):
        kinds = {seat.instance.leader.kind for seat in seats}
        return {} if kinds == {EMBEDDED} else {"gpus": "none"}
    shown: list[int] = []
    for seat in seats:
        leader = seat.instance.leader
        variable = next((leader.env[name] for name in GPU_LISTS if name in leader.env), None)
        if variable is None or not variable.value:
            return {}
        numbers = [numerals.whole(each.strip()) for each in variable.value.split(",")]
        place = f"{leader.place.rpartition(':')[0]}:{variable.line}"
        wanted = placement.gpus(seat.instance)
        base = leader.number("base-gpu-id") or 0
        mine = [each for each in numbers[base : base + wanted] if each is not None]
        if len(mine) != wanted or set(mine) & set(shown):
            text = f"{variable.name}={variable.value}: pdctl gives each instance GPUs of its own, in order"
            notes.changed(place, text)
            return {}
        shown += mine
    return {"gpus": shown} if shown and shown != list(range(len(shown))) else {}


def _kubernetes(found: Found, router: FoundRouter | None, notes: Notes) -> dict[str, object]:
    """`targets.kubernetes`: what the manifests say besides the engines."""
    pods = [engine.pod for engine in found.engines if engine.pod is not None and engine.part != "worker"]
    made: dict[str, object] = {"flavour": _flavour(pods, notes)}
    if pods and DNS_NAME.fullmatch(pods[0].namespace) and pods[0].namespace != "default":
        made["namespace"] = pods[0].namespace
    images = list(dict.fromkeys(engine.image for engine in found.engines if engine.image and "$" not in engine.image))
    if images:
        made["image"] = images[0]
        if not pinned(images[0]):
            place = next(engine.place for engine in found.engines if engine.image == images[0])
            notes.suspect(place, f"image {images[0]} is not pinned: two pods may run two releases of it")
    for other in images[1:]:
        engine = next(each for each in found.engines if each.image == other)
        notes.suspect(engine.place, f"image {other} beside {images[0]}: all engines get the latter")
    if router is not None and router.image and router.image not in images and "$" not in router.image:
        made["router-image"] = router.image
    made |= _pod_settings(pods, notes)
    made |= _storage(found, notes)
    if router is not None and router.flags.has("service-discovery"):
        made["discovery"] = "pods"
    notes.left_out("", "probes, affinities and security settings of the pods: pdctl renders its own")
    return made


def _flavour(pods: Sequence[ManifestPod], notes: Notes) -> str:
    kinds = list(dict.fromkeys(pod.kind for pod in pods))
    known = [FLAVOURS[kind] for kind in kinds if kind in FLAVOURS]
    if known:
        return known[0]
    notes.changed(pods[0].at(0) if pods else "", f"{', '.join(kinds)}: rendered as a {USUAL}")
    return USUAL


def _pod_settings(pods: Sequence[ManifestPod], notes: Notes) -> dict[str, object]:
    made: dict[str, object] = {}
    if any(pod.host_network for pod in pods):
        made["host-network"] = True
    shm = next((pod.shm for pod in pods if pod.shm), "")
    if _is_size(shm):
        made["shm"] = shm
    selectors = {role: dict(pod.node_selector) for role, pod in _by_role(pods).items() if pod.node_selector}
    if selectors:
        some = next(iter(selectors.values()))
        if all(each == some for each in selectors.values()):
            notes.left_out(
                _by_role(pods)[next(iter(selectors))].at(0),
                f"nodeSelector {', '.join(f'{key}={value}' for key, value in some.items())}: "
                "write it under targets.kubernetes.node-selector, by pool",
            )
    tolerations = list(dict.fromkeys(key for pod in pods for key in pod.tolerations if "$" not in key))
    if tolerations:
        made["tolerations"] = tolerations
    devices: dict[str, object] = {}
    for pod in pods:
        for said in (each for container in pod.containers for each in container.resources):
            count = numerals.whole(said.value)
            if "/" in said.name and said.name != GPU and said.name not in PLAIN and count:
                devices[said.name] = count
    if devices:
        made["rdma-resource"] = devices
    return made


def _storage(found: Found, notes: Notes) -> dict[str, object]:
    """The volumes and Secrets of the engines. A volume whose name has two meanings is left out, with a note."""
    volumes: dict[str, dict[str, object]] = {}
    secrets: dict[str, str] = {}
    for engine in found.engines:
        for container in engine.pod.containers if engine.pod is not None and engine.part != "worker" else ():
            for mount in container.mounts:
                source = {"claim": mount.claim} if mount.claim else {"host-path": mount.host_path}
                told = {"mount": mount.path, **source, "read-only": mount.read_only}
                sound = (
                    DNS_NAME.fullmatch(mount.name) and mount.path.startswith("/") and not re.search(r"\s", mount.path)
                )
                if not sound or volumes.setdefault(mount.name, told) != told or not _is_source(mount):
                    volumes.pop(mount.name, None)
                    notes.left_out(engine.place, f"volume {mount.name} at {mount.path}")
            secrets |= {said.name: said.value or "" for said in container.secrets if SECRET.fullmatch(said.value or "")}
    made: dict[str, object] = {}
    if volumes:
        made["volumes"] = volumes
    if secrets:
        made["secrets"] = secrets
    return made


def _is_source(mount: Mount) -> bool:
    return bool(DNS_NAME.fullmatch(mount.claim)) if mount.claim else bool(re.fullmatch(r"/\S*", mount.host_path))


def _is_size(text: str) -> bool:
    """Whether a topology accepts the size: it has Kubernetes' notation, except sizes without a B or an i."""
    try:
        return parse_size(text) > 0
    except UnitError:
        return False


def _by_role(pods: Sequence[ManifestPod]) -> dict[str, ManifestPod]:
    return {
        role: pod for role in ROLES for pod in pods for container in pod.containers
        if any(word.text == role for word in container.argv)
    }  # fmt: skip
