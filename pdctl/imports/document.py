"""The topology that says what the files say, as plain values and as YAML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pdctl.client_text import escaped
from pdctl.engines import numerals
from pdctl.errors import UsageError
from pdctl.imports import placement, sections
from pdctl.imports.found import GPU_LISTS, ROLES
from pdctl.imports.instances import instances
from pdctl.imports.placement import GPUS
from pdctl.imports.settings import settle
from pdctl.topology.model import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.imports.found import Found, Router
    from pdctl.imports.notes import Notes
    from pdctl.imports.placement import Seat
    from pdctl.imports.sections import Section
    from pdctl.imports.settings import Settings

STRIDE = 32
SMALLEST = 1024  # ports below need privileges
LABEL = re.compile(r"[^a-z0-9]+")


class Draft(NamedTuple):
    """`seats`: the instances it was made from, in the order a plan has them."""

    values: Section
    seats: tuple[Seat, ...]
    router: Router | None
    both: Mapping[str, Settings]


def draft(found: Found, name: str, notes: Notes) -> Draft:
    """UsageError where the files start no engine of one of the roles."""
    made = instances(found.engines, notes)
    missing = [role for role in ROLES if not any(one.role == role for one in made)]
    if missing:
        what = f"no {' and no '.join(missing)} engine is started in these files"
        fix = "name the files of both roles; what counts is --disaggregation-mode prefill and decode"
        nulls = [
            each for router in found.routers for each in router.listed["prefill"] if each.port is None and each.clear
        ]
        if nulls:
            what += "".join(f"\n  {escaped(placement.null(each, 'PD201 bootstrap-port-null: '))}" for each in nulls)
            given = " ".join(f"--prefill {escaped(each.url)} PORT" for each in nulls)
            fix = f"give the router the bootstrap port of every prefill: {given}; and to import them, {fix}"
        raise UsageError(what, fix)
    kinds = sorted({one.leader.kind for one in made})
    if "embedded" in kinds and len(kinds) > 1:
        raise UsageError(f"the engines are of two kinds: {' and '.join(kinds)}", "name the files of one deployment")
    both = {role: settle([one for one in made if one.role == role], notes) for role in ROLES}
    router = _router(found, notes)
    seats = placement.seats(made, found.routers, found.form, notes)
    kind = "embedded" if "embedded" in kinds else "sglang"
    if "dynamo" in kinds:
        notes.changed(both[ROLES[0]].engine.place, "dynamo.sglang: pdctl starts sglang.launch_server, without Dynamo")
    values: Section = {"version": VERSION, "name": _label(str(found.sections.get("name") or name))}
    values["model"] = sections.model(both, notes)
    flags = {role: sections.args(one, notes) for role, one in both.items()}
    engine: Section = {"kind": kind}
    if kind == "sglang":
        engine["version"] = sections.release(both)
        engine["traceable"] = None if sections.traceable(flags, notes) else False
    engine["command"] = list(both[ROLES[0]].engine.command) or None
    common, own = sections.shared(flags)
    env_common, env_own = sections.shared({role: one.env for role, one in both.items()})
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
    import yaml  # late: what fails before it pays for it too otherwise

    body = yaml.safe_dump(_literal(_pruned(values)), sort_keys=False, allow_unicode=True, width=120)
    return "".join(f"# {line}\n" for line in head) + body


def _literal(value: object) -> object:
    """A topology fills in `${…}`: a `$` that stays is written twice."""
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


KEPT = ("kubernetes", "slurm")  # a target that is there, with nothing to say


def _label(name: str) -> str:
    return LABEL.sub("-", name.lower()).strip("-")[:63].strip("-") or "imported"


def _count(seats: Sequence[Seat], role: str) -> int:
    return min(sum(seat.instance.role == role for seat in seats), placement.MOST) or 1


def _router(found: Found, notes: Notes) -> Router | None:
    for other in found.routers[1:]:
        notes.left_out(other.place, f"a second router: the one at {found.routers[0].place} is taken")
    return found.routers[0] if found.routers else None


def _pools(found: Found, seats: Sequence[Seat], roles: dict[str, Section], notes: Notes) -> Section:
    """Only what is not a pool of eight GPUs; and in `roles`, which pool is whose."""
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
    elif placement.elsewhere(seats):
        used = {name: dict(each) for name, each in placement.pools(seats).items()}
    else:
        total = sum(placement.gpus(seat.instance) * seat.instance.nodes for seat in seats)
        embedded = any(seat.instance.leader.kind == "embedded" for seat in seats)
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
    """GPUs of one pod: those the instance takes, whatever the limit says."""
    return min(placement.gpus(seat.instance), 64)


def _ports(seats: Sequence[Seat]) -> Section:
    """What the first prefill has; the others count up from there."""
    leader = next(seat.instance.leader for seat in seats if seat.instance.role == ROLES[0])
    http, bootstrap = leader.number("port"), leader.number("disaggregation-bootstrap-port")
    found: Section = {}
    if http is not None and http != placement.HTTP and 0 < http <= 65535:
        found["http"] = http
    if bootstrap is not None and bootstrap != placement.BOOTSTRAP and 0 < bootstrap <= 65535:
        found["bootstrap"] = bootstrap
    dist = _dist(seats)
    if dist is not None and dist != 20000 and SMALLEST <= dist <= 65535:
        found["dist-init"] = dist
    return found


def _dist(seats: Sequence[Seat]) -> int | None:
    """The port of the first address to meet at, or what the first NCCL port was counted from."""
    for index, seat in enumerate(seats):
        flag = seat.instance.leader.flags.find("dist-init-addr")
        port = placement.address(flag.values[0])[1] if flag is not None and flag.values else None
        if port is not None:
            return port - STRIDE * sum(other.host == seat.host for other in seats[:index])
    nccl = seats[0].instance.leader.number("nccl-port")
    return None if nccl is None else nccl - STRIDE + 1


def _targets(found: Found, seats: Sequence[Seat], router: Router | None, notes: Notes) -> Section:
    if found.form == "kubernetes":
        from pdctl.imports.cluster import kubernetes  # late: the other forms need none of it

        return {"kubernetes": kubernetes(found, router, notes)}
    if found.form == "recipe":
        image = next((seat.instance.leader.image for seat in seats if seat.instance.leader.image), None)
        slurm = dict(found.sections.get("slurm") or {})  # type: ignore[call-overload]
        return {"slurm": slurm | ({"container": {"image": image}} if image else {})}
    images = {seat.instance.leader.image: seat.instance.leader.place for seat in seats if seat.instance.leader.image}
    for image, place in images.items():
        notes.left_out(place, f"image {image}: on this machine pdctl starts the SGLang that is installed")
    return {} if placement.elsewhere(seats) else {"local": _local(seats, notes)}


def _local(seats: Sequence[Seat], notes: Notes) -> Section:
    """The GPUs that each instance is shown, as the list a topology has once."""
    if all(seat.instance.leader.flags.text("device") == "cpu" for seat in seats):
        kinds = {seat.instance.leader.kind for seat in seats}
        return {} if kinds == {"embedded"} else {"gpus": "none"}
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
