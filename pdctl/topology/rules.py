"""What no single key can tell: contradictions between places, each found by one rule.

Only what the file alone decides is judged here; whether a release can run a shape is layout's question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.topology import flags, ports, schema
from pdctl.topology.diagnostic import Code, Diagnostic, listing, places, shown
from pdctl.topology.suggest import hint, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.topology.model import Flags, Span
    from pdctl.topology.written import Written


def check(written: Written) -> Iterator[Diagnostic]:
    for rule in RULES:
        yield from rule(written)


def args(written: Written) -> Iterator[Diagnostic]:
    """Flags spelt as SGLang would not read them, and flags that pdctl writes itself."""
    topology = written.topology
    sections: tuple[tuple[str, Flags], ...] = (
        ("engine.args", topology.engine.args),
        ("roles.prefill.args", topology.prefill.args),
        ("roles.decode.args", topology.decode.args),
        ("router.args", topology.router.args),
    )
    for path, given in sections:
        for flag in given:
            yield from _flag(written, path, flag)


def _flag(written: Written, path: str, flag: str) -> Iterator[Diagnostic]:
    place = written.keys[f"{path}.{flag}"]
    name = flag.lstrip("-").replace("_", "-").lower()
    owner = flags.owner(name, path)
    if owner:
        said = places(written.spans, *((key, "decided here") for key in owner.keys))
        names = listing(owner.keys, "and") or owner.words
        message = f"`{flag}` may not stand in {path}: it is decided by {names}"
        fix = (
            "remove it"
            if not owner.keys
            else f"remove it, or change {names}"
            if said
            else f"remove it, and set {names}"
        )
        yield Diagnostic(Code.OWNED_FLAG, message, ((place, ""), *said), fix)
    elif name != flag:
        message = f"{shown(flag)} is not how a flag is written in {path}"
        yield Diagnostic(Code.BAD_FLAG, message, ((place, ""),), f"write `{name}`")


def pools(written: Written) -> Iterator[Diagnostic]:
    topology = written.topology
    names = [pool.name for pool in topology.pools]
    if not written.sound("pools"):
        return
    for role in topology.roles:
        path = f"roles.{role.name}"
        if role.pool in names or not written.sound(f"{path}.pool"):
            continue
        if f"{path}.pool" in written.spans:
            yield _no_pool(written, f"{path}.pool", role.pool, written.spans[f"{path}.pool"], names)
        elif path in written.keys:
            message = f"{path} needs the key `pool`: several pools are defined and none is called `default`"
            place = ((written.keys[path], "`pool` is missing"),)
            yield Diagnostic(Code.MISSING_KEY, message, place, f"write `pool: …`, one of {listing(names)}")
    for path in ("targets.slurm.pools", "targets.kubernetes.node-selector"):
        _, target, key = path.split(".")
        chosen = getattr(topology.targets, target).get(key) or {}
        for name in chosen:
            if name not in names:
                yield _no_pool(written, path, name, written.keys[f"{path}.{name}"], names)


def _no_pool(written: Written, path: str, name: str, place: Span, names: list[str]) -> Diagnostic:
    marks = ((place, ""), *places(written.keys, ("pools", "the pools are defined here")))
    near = nearest(name, names)
    marks = ((place, f"did you mean `{near}`?"), *marks[1:]) if near else marks
    fix = hint(name, names) if not near else f"allowed: {', '.join(names)}"
    return Diagnostic(Code.UNKNOWN_POOL, f"{path} names the pool {shown(name)}, which is not defined", marks, fix)


def shapes(written: Written) -> Iterator[Diagnostic]:
    """What no release of the engine can run, whatever the model."""
    for role in written.topology.roles:
        path = f"roles.{role.name}"
        if written.sound(f"{path}.tp", f"{path}.dp") and role.tp % role.dp:
            marks = places(
                written.spans, (f"{path}.dp", "attention groups"), (f"{path}.tp", "GPUs to split among them")
            )
            message = f"{path}: tp {role.tp} cannot be split into dp {role.dp} attention groups"
            yield Diagnostic(Code.DP_SPLIT, message, marks, f"choose a dp that divides {role.tp}")


def choices(written: Written) -> Iterator[Diagnostic]:
    """Values that exist, but not for the engine or router that was chosen."""
    topology = written.topology
    backend = topology.transfer.backend
    known = schema.BACKENDS[topology.engine.kind]
    if backend and backend not in known and written.sound("transfer.backend", "engine.kind"):
        marks = places(written.spans, ("transfer.backend", ""), ("engine.kind", "the engine is chosen here"))
        message = f"the {topology.engine.kind} engine has no transfer backend `{backend}`"
        yield Diagnostic(Code.WRONG_BACKEND, message, marks, f"its backends are {listing(known, 'and')}")
    router = topology.router
    for key, policy in (
        ("policy", router.policy),
        ("prefill-policy", router.prefill_policy),
        ("decode-policy", router.decode_policy),
    ):
        only = () if key == "prefill-policy" else schema.PREFILL_ONLY
        allowed = [name for name in schema.POLICIES[router.kind] if name not in only]
        if policy and policy not in allowed and written.sound(f"router.{key}", "router.kind"):
            marks = places(written.spans, (f"router.{key}", ""), ("router.kind", "the router is chosen here"))
            message = f"the router {router.kind} has no policy `{policy}`"
            yield Diagnostic(Code.WRONG_POLICY, message, marks, f"its policies are {listing(allowed, 'and')}")


def keys(written: Written) -> Iterator[Diagnostic]:
    """SGLang and its routers take a key on the command line only."""
    topology, path = written.topology, "security.api-key-file"
    if not topology.security.api_key_file or not written.sound(path, "engine.kind", "router.kind"):
        return
    for kind, own, place, args in (
        (topology.engine.kind, "embedded", "engine.kind", "engine.args.api-key"),
        (topology.router.kind, "pdctl", "router.kind", "router.args.api-key"),
    ):
        if kind != own:
            marks = places(written.spans, (path, ""), (place, "chosen here"))
            message = f"{kind} reads no API key from a file"
            yield Diagnostic(Code.BAD_CHOICE, message, marks, f"remove `api-key-file`, and write it as {args}")


def model(written: Written) -> Iterator[Diagnostic]:
    if written.topology.model.path or not written.sound("model", "model.path", "engine", "engine.kind"):
        return
    marks = places(written.spans, ("engine.kind", "this engine"))
    if "model" in written.keys:
        marks = ((written.keys["model"], "`path` is missing"), *marks)
    message = "the sglang engine needs the key `model.path`"
    yield Diagnostic(Code.MISSING_KEY, message, marks, "write `model: {path: …}`, a Hugging Face id or a directory")


def nics(written: Written) -> Iterator[Diagnostic]:
    for pool in written.topology.pools:
        path = f"pools.{pool.name}.nic"
        if not pool.nic_devices or pool.nic_count == len(pool.nic_devices):
            continue
        if written.sound(f"{path}.count", f"{path}.devices"):
            told = (
                (f"{path}.count", f"{pool.nic_count} NICs"),
                (f"{path}.devices", f"{len(pool.nic_devices)} devices"),
            )
            message = f"{path}: count {pool.nic_count} contradicts {len(pool.nic_devices)} devices"
            yield Diagnostic(Code.NIC_COUNT, message, places(written.spans, *told), "remove `count`")


RULES: tuple[Callable[[Written], Iterator[Diagnostic]], ...] = (
    args, pools, ports.check, shapes, choices, keys, model, nics,
)  # fmt: skip
