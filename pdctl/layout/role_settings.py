"""What a topology says about one role: shape, weight placement, command line, and flags the release does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.kinds import EMBEDDED
from pdctl.engines.routers import router_flags as routers
from pdctl.engines.sglang.arguments import argument, choices, gap
from pdctl.engines.sglang.behaviour import MOE_DENSE_TP_MAY_BE_TP
from pdctl.engines.sglang.endpoints import DEFAULT_BOOTSTRAP_PORT as BOOTSTRAP
from pdctl.engines.sglang.refusals import rule
from pdctl.engines.versions import spell
from pdctl.errors import UsageError
from pdctl.layout.feasibility import explain
from pdctl.layout.serving import Serving
from pdctl.layout.shape import Caution, Placement, Problem, Shape
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.engines.versions import Release, Version
    from pdctl.topology.model import FlagValue, Role, Topology


CP = ("attn-cp-size", "attention-context-parallel-size")
MOE_DP = ("moe-dp-size", "moe-data-parallel-size")
# Where `pdctl plan --set` moves each size of a shape.
SETTINGS = {
    "tp": "tp",
    "dp": "dp",
    "replicas": "replicas",
    "pp": "pp",
    "ep": "ep",
    "cp": "args.attn-cp-size",
    "moe_dp": "args.moe-dp-size",
}
FALLBACK = "null-port-fallback"  # of `--rehearse` (pdctl/engine/drill/rehearsed_mistakes.py)
TAKES = {"": "no value", "=": "one value", "=*": "a value", "=?": "at most one value"}
WRITTEN = {"": "true", "=": "VALUE", "=*": "[VALUE, …]", "=?": "VALUE"}
BACKEND = "disaggregation-transfer-backend"


class RoleReading(NamedTuple):
    """One role, read. `gpus` is False where ranks run on the CPU."""

    shape: Shape
    placement: Placement
    args: Mapping[str, FlagValue]
    env: Mapping[str, str]
    on_cpu: bool


def read(topology: Topology, role: Role) -> RoleReading:
    """The engine's flags overlaid by the role's; UsageError for a flag that must be a number and is not."""
    args = {**topology.engine.args, **role.args}
    env = {**topology.engine.env, **topology.transfer.env, **role.env}
    pool = topology.pool(role.pool)
    if topology.engine.kind == EMBEDDED:
        on_cpu = args.get("device", "auto") != "cuda"
        # All replicas are on one node; a CPU takes any number of them.
        crowd = role.tp * role.pp * role.replicas if on_cpu and role.replicas > 1 else 1
        shape = Shape(
            tp=role.tp,
            dp=role.dp,
            pp=role.pp,
            ep=role.ep,
            replicas=role.replicas,
            gpus_per_host=max(pool.gpus_per_host, crowd),
        )
        return RoleReading(shape, Placement(), args, env, on_cpu)
    where = f"roles.{role.name}.args"
    shape = Shape(
        tp=role.tp,
        dp=role.dp,
        pp=role.pp,
        ep=role.ep,
        replicas=role.replicas,
        cp=_number(args, CP, where) or 1,
        moe_dp=_number(args, MOE_DP, where) or 1,
        gpus_per_host=pool.gpus_per_host,
        deepep=args.get("moe-a2a-backend") == "deepep" or args.get("enable-deepep-moe") is True,
    )
    placement = Placement(
        redundant_experts=_number(args, ("ep-num-redundant-experts",), where) or 0,
        moe_dense_tp=_number(args, ("moe-dense-tp-size",), where),
        dp_lm_head=args.get("enable-dp-lm-head") is True,
    )
    return RoleReading(shape, placement, args, env, topology.targets.local.gpus == "none")


def serving(
    topology: Topology, role: Role, reading: RoleReading, peer: Shape, version: Version, target: str
) -> Serving:
    nics = topology.transfer.ib_devices
    chosen = devices(topology, reading, target)
    env = dict(reading.env)
    if chosen:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, chosen))
    return Serving(
        kind=topology.engine.kind,
        role=role.name,
        model_path=topology.model.path,
        version=version,
        command=topology.engine.command,
        served_name=topology.model.served_name,
        bind=topology.engine.host or ("127.0.0.1" if target == "local" else "0.0.0.0"),
        dtype=topology.model.dtype,
        kv_dtype=topology.model.kv_dtype,
        context_length=topology.model.context_length,
        page_size=role.page_size,
        mem_fraction=role.mem_fraction,
        backend=topology.transfer.backend,
        ib_devices=nics if isinstance(nics, tuple) else (),
        args=(
            *((name, _rehearsed(topology, role, name, value)) for name, value in reading.args.items()),
            *api_key(topology, target),
        ),
        env=tuple(env.items()),
        peer=peer,
        gpu_flags=not reading.on_cpu,
        pace=topology.engine.pace,
        traceable=topology.engine.traceable,
    )


def api_key(topology: Topology, target: str) -> tuple[tuple[str, str], ...]:
    """The flag for the file with the clients' key. Pods, which cannot read a local file, get a Secret's variable."""
    file = topology.security.api_key_file
    return (("api-key-file", file),) if file and target != "kubernetes" else ()


def _rehearsed(topology: Topology, role: Role, name: str, value: FlagValue) -> FlagValue:
    """A decode that rehearses null ports falls back to the first prefill's: the default, unless that was changed."""
    if role.name != "decode" or name != "rehearse" or topology.ports.bootstrap == BOOTSTRAP:
        return value
    moved = f"{FALLBACK}={topology.ports.bootstrap}"
    if isinstance(value, tuple):
        return tuple(moved if word == FALLBACK else word for word in value)
    return moved if value == FALLBACK else value


def devices(topology: Topology, reading: RoleReading, target: str) -> tuple[int, ...]:
    """The GPUs `targets.local.gpus` lists, where they matter."""
    gpus = topology.targets.local.gpus
    return gpus if target == "local" and isinstance(gpus, tuple) and not reading.on_cpu else ()


def settings(role: str, wanted: Shape, given: Shape) -> str:
    """The `--set` words that turn `given` into `wanted`."""
    changed = [
        (key, getattr(wanted, field))
        for field, key in SETTINGS.items()
        if getattr(wanted, field) != getattr(given, field)
    ]
    if wanted.deepep and not given.deepep:
        changed.append(("args.moe-a2a-backend", "deepep"))
    return " ".join(f"--set roles.{role}.{key}={value}" for key, value in changed)


def flag_problems(role: Role, reading: RoleReading, release: Release) -> Iterator[Problem | Caution]:
    """Flags this release's argparse does not take, and values its start-up checks refuse."""
    where, version = f"roles.{role.name}.args", release.known
    yield from refused_flags(reading.args, where, release)
    shape, dense = reading.shape, reading.placement.moe_dense_tp
    allowed = (None, 1, shape.tp) if MOE_DENSE_TP_MAY_BE_TP.holds(version) else (None, 1)
    if dense not in allowed:
        what = f"{where}.moe-dense-tp-size {dense}"
        fix = f"--set {where}.moe-dense-tp-size=1"
        yield Problem("moe-dense-tp", explain("moe-dense-tp", what, version), (fix,))
    chunk = _number(reading.args, ("chunked-prefill-size",), where)
    if role.name == "prefill" and chunk is not None and chunk > 0:
        yield from _chunk(where, chunk, shape.dp, role.page_size or 1, version)


def _chunk(where: str, chunk: int, dp: int, page: int, version: Version) -> Iterator[Problem]:
    """sglang divides the chunk by the attention DP width, and each rank's share must be whole pages."""
    share = chunk // dp
    if share % page:
        each = f" (each of the {dp} DP ranks gets {share})" if dp > 1 else ""
        what = f"{where}.chunked-prefill-size {chunk}{each} with page_size {page}"
        fix = f"--set {where}.chunked-prefill-size={max(1, share // page) * page * dp}"
        yield Problem("chunk-is-pages", explain("chunk-is-pages", what, version), (fix,))


def _number(args: Mapping[str, FlagValue], names: tuple[str, ...], where: str) -> int | None:
    for name in names:
        value = args.get(name)
        if value is None:
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise UsageError(f"{where}.{name}: {value!r} is not a whole number", f"write {name}: 1, or leave it out")
    return None


def refused_flags(args: Mapping[str, FlagValue], where: str, release: Release) -> Iterator[Problem | Caution]:
    """What argparse refuses; only a warning where the release itself was not read, but one near it."""
    for name, value in args.items():
        if value is False:
            continue  # the flag is not written
        missing = gap(name, release)
        if missing is not None:
            message = f"{where}.{name}: sglang {release.asked} has no --{name} ({missing.why})"
            message += f"; {missing.instead}" if missing.instead else ""
            yield Problem("flag-not-in-release", message) if missing.sure else Caution("flag-in-doubt", message)
        else:
            yield from _value(name, value, where, release.known)


def served_name(name: str, release: Release) -> Iterator[Problem]:
    """SGLang reserves the colon for `model:adapter`."""
    row = rule("served-name", release.known)
    if row is not None and ":" in name:
        way = f"--set model.served-name={name.replace(':', '-')}"
        yield Problem("served-name", explain("served-name", f"model.served-name {name}", release.known), (way,))


def backend(name: str | None, release: Release) -> Iterator[Problem | Caution]:
    """A transfer backend some releases do not have; None: the release's own."""
    allowed = choices(BACKEND, release.known)
    if name is not None and name not in allowed:
        message = f"transfer.backend: sglang {release.asked} has no backend {name}, but {', '.join(allowed)}"
        yield Caution("flag-in-doubt", message) if release.note else Problem("backend-not-in-release", message)


def router(args: Mapping[str, FlagValue], kind: str) -> Iterator[Problem | Caution]:
    """Of pdctl's own router what it refuses; of another, whose release nobody gave, what the one pdctl knows would."""
    known = routers.arguments(kind)
    for name, value in args.items():
        if value is False:
            continue
        takes = known.get(name)
        if takes is None:
            near, last = routers.similar_flag(name, kind), routers.last_release_with(name, kind)
            message = f"router.args.{name}: {routers.release(kind)} has no --{name}"
            message += f" (the last release with it was {last})" if last else ""
            message += f"; did you mean --{near}?" if near else ""
        elif not _fits(takes, value):
            message = f"router.args.{name}: --{name} takes {TAKES[takes]} ({routers.release(kind)})"
        elif allowed := _not_among(value, routers.choices(name, kind)):
            message = f"router.args.{name}: {value} is none of {', '.join(allowed)} ({routers.release(kind)})"
        else:
            continue
        yield Problem("router-flag", message) if kind == "pdctl" else Caution("router-flag", message)


def _value(name: str, value: FlagValue, where: str, version: Version) -> Iterator[Problem]:
    row = argument(name, version)
    if row is None:
        return
    if not _fits(row.takes, value):
        message = f"{where}.{name}: --{name} takes {TAKES[row.takes]} (sglang {spell(version)})"
        yield Problem("flag-value", message, (f"--set {where}.{name}={WRITTEN[row.takes]}",))
        return
    allowed = choices(name, version)
    if allowed and str(value) not in allowed:
        message = f"{where}.{name}: {value} is none of {', '.join(allowed)} (sglang {spell(version)})"
        yield Problem("flag-value", message, (f"--set {where}.{name}={allowed[0]}",))


def _not_among(value: FlagValue, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """The allowed values if `value` is not one of them, else nothing."""
    return allowed if allowed and str(value) not in allowed else ()


def _fits(takes: str, value: FlagValue) -> bool:
    several = isinstance(value, tuple)
    return {"": value is True, "=": value is not True and not several, "=*": value is not True}.get(takes, not several)
