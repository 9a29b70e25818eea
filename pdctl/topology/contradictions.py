"""Contradictions between keys, each found by one rule, and ports that two servers want.

Only what the file alone decides is judged here; whether a release can run a shape is layout's question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.kinds import EMBEDDED, ENGINES, PREFILL_ONLY, ROUTERS
from pdctl.quick_definitions import NamedTuple
from pdctl.suggestions import hint, nearest
from pdctl.topology import owned_flags
from pdctl.topology.diagnostic import Code, Diagnostic, listing, places, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pdctl.topology.diagnostic import Mark
    from pdctl.topology.model import Flags, Role, SourceSpan, Topology

LAST_PORT = 65535


class WrittenTopology(NamedTuple):
    """`keys`: where each key path's key stands. `broken`: the paths already reported; their rules keep silent."""

    topology: Topology
    keys: Mapping[str, SourceSpan]
    broken: frozenset[str]

    @property
    def spans(self) -> Mapping[str, SourceSpan]:
        """Where each key path's value stands; defaulted ones are absent."""
        return self.topology.spans

    def sound(self, *paths: str) -> bool:
        """Neither the paths nor anything around them was reported."""
        return not any(path == bad or path.startswith(f"{bad}.") for path in paths for bad in self.broken)


class PortRange(NamedTuple):
    """`step` ports for each of `tenants`, counting up from the one that `path` gives."""

    path: str
    what: str
    first: int
    tenants: tuple[str, ...]
    step: int = 1

    @property
    def last(self) -> int:
        return self.first + self.step * len(self.tenants) - 1

    @property
    def numbers(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"

    def tenant(self, port: int) -> str:
        return self.tenants[(port - self.first) // self.step]

    def named(self, port: int) -> str:
        return self.tenant(port) if self.path == "router.port" else f"{self.tenant(port)} ({self.what})"

    def meets(self, other: PortRange) -> bool:
        return self.first <= other.last and other.first <= self.last


def check_ports(written: WrittenTopology) -> Iterator[Diagnostic]:
    """Ranges that go past the last port, and ranges that overlap."""
    if not written.sound("roles.prefill", "roles.decode", "roles.prefill.instances", "roles.decode.instances"):
        return
    ranges = [each for each in _ranges(written.topology) if written.sound(each.path)]
    for index, one in enumerate(ranges):
        if one.last > LAST_PORT:
            yield _overflow(written, one)
            continue
        for other in ranges[:index]:
            if other.last <= LAST_PORT and one.meets(other):
                yield _collision(written, one, other, ranges)


def _ranges(topology: Topology) -> list[PortRange]:
    """Every range whose host is certain: over several hosts only the first instance surely shares the router's, and
    in Kubernetes every pod has ports of its own."""
    together = _on_one_host(topology)
    prefills, decodes = _tenants(topology, topology.prefill), _tenants(topology, topology.decode)
    some = tuple(prefills + decodes) if together else tuple(prefills[:1])
    bootstrapped = prefills + (decodes if topology.decode.args.get("enable-pd-role-switch") is True else [])
    first = topology.ports
    found = [
        PortRange("ports.http", "HTTP", first.http, some),
        PortRange(
            "ports.bootstrap", "bootstrap", first.bootstrap, tuple(name for name in some if name in bootstrapped)
        ),
    ]
    if topology.engine.kind != EMBEDDED or any(_nodes(topology, role) > 1 for role in topology.roles):
        found.append(PortRange("ports.dist-init", "rendezvous", first.dist_init, some, first.stride))
    if together or not topology.targets.kubernetes:
        found.append(PortRange("router.port", "router", topology.router.port, ("the router",)))
    return found


def _tenants(topology: Topology, role: Role) -> list[str]:
    """Who takes one port each: every instance; of the embedded engine, which may span nodes of one host, every node."""
    return [f"{role.name}-{index}" for index in range(role.instances) for _ in range(_nodes(topology, role))]


def _nodes(topology: Topology, role: Role) -> int:
    pool = next((pool for pool in topology.pools if pool.name == role.pool), None)
    if topology.engine.kind != EMBEDDED or pool is None or role.replicas > 1:
        return 1
    return -(-role.tp * role.pp // pool.gpus_per_host)


def _on_one_host(topology: Topology) -> bool:
    if topology.engine.kind == EMBEDDED:
        return True
    if topology.targets.slurm or topology.targets.kubernetes or topology.prefill.pool != topology.decode.pool:
        return False
    pool = next((pool for pool in topology.pools if pool.name == topology.prefill.pool), None)
    return pool is not None and sum(role.instances * role.tp * role.pp for role in topology.roles) <= pool.gpus_per_host


def _overflow(written: WrittenTopology, one: PortRange) -> Diagnostic:
    role = one.tenants[-1].rpartition("-")[0]
    counted = (f"roles.{role}.instances", f"up to {one.tenants[-1]}")
    marks = places(written.spans, (one.path, f"counts up to {one.last}"), counted)
    message = f"{one.what} ports would be {one.numbers}; the last port is {LAST_PORT}"
    fix = f"lower {one.path} to at most {LAST_PORT - (one.last - one.first)}"
    return Diagnostic(Code.PORT_RANGE, message, marks, fix)


def _collision(written: WrittenTopology, one: PortRange, other: PortRange, ranges: Sequence[PortRange]) -> Diagnostic:
    port = max(one.first, other.first)
    both = " and ".join(each.named(port) for each in (other, one))
    marks = (*_place(written, one, port), *_place(written, other, port))
    fix = f"move one of them, such as {one.path}: {_free(one, ranges)}"
    return Diagnostic(Code.PORT_COLLISION, f"{both} both want port {port}", marks, fix)


def _place(written: WrittenTopology, each: PortRange, port: int) -> tuple[Mark, ...]:
    """Where the range is written, or else what makes its instance of that port exist."""
    if each.path in written.spans:
        label = f"{each.what} port{'s' if each.first != each.last else ''} {each.numbers}"
        return places(written.spans, (each.path, label))
    role = f"roles.{each.tenant(port).rpartition('-')[0]}"
    label = f"{each.tenant(port)} takes {port}: {each.path} is {each.first} by default"
    return places(written.spans, (f"{role}.instances", label)) or places(written.keys, (role, label))


def _free(one: PortRange, ranges: Sequence[PortRange]) -> int:
    """The lowest first port above at which the range overlaps no other."""
    candidate = one
    while meeting := [each for each in ranges if each is not one and candidate.meets(each)]:
        candidate = one._replace(first=max(each.last for each in meeting) + 1)
        if candidate.last > LAST_PORT:
            candidate = one._replace(first=1024)  # the ports below need privileges
    return candidate.first


def find_contradictions(written: WrittenTopology) -> Iterator[Diagnostic]:
    for rule in RULES:
        yield from rule(written)


def args(written: WrittenTopology) -> Iterator[Diagnostic]:
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


def _flag(written: WrittenTopology, path: str, flag: str) -> Iterator[Diagnostic]:
    place = written.keys[f"{path}.{flag}"]
    name = flag.lstrip("-").replace("_", "-").lower()
    owner = owned_flags.owner(name, path)
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


def pools(written: WrittenTopology) -> Iterator[Diagnostic]:
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


def _no_pool(written: WrittenTopology, path: str, name: str, place: SourceSpan, names: list[str]) -> Diagnostic:
    marks = ((place, ""), *places(written.keys, ("pools", "the pools are defined here")))
    near = nearest(name, names)
    marks = ((place, f"did you mean `{near}`?"), *marks[1:]) if near else marks
    fix = hint(name, names) if not near else f"allowed: {', '.join(names)}"
    return Diagnostic(Code.UNKNOWN_POOL, f"{path} names the pool {shown(name)}, which is not defined", marks, fix)


def shapes(written: WrittenTopology) -> Iterator[Diagnostic]:
    """What no release of the engine can run, whatever the model."""
    for role in written.topology.roles:
        path = f"roles.{role.name}"
        if written.sound(f"{path}.tp", f"{path}.dp") and role.tp % role.dp:
            marks = places(
                written.spans, (f"{path}.dp", "attention groups"), (f"{path}.tp", "GPUs to split among them")
            )
            message = f"{path}: tp {role.tp} cannot be split into dp {role.dp} attention groups"
            yield Diagnostic(Code.DP_SPLIT, message, marks, f"choose a dp that divides {role.tp}")


def choices(written: WrittenTopology) -> Iterator[Diagnostic]:
    """Values that exist, but not for the engine or router that was chosen."""
    topology = written.topology
    backend = topology.transfer.backend
    known = ENGINES[topology.engine.kind].backends
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
        only = () if key == "prefill-policy" else PREFILL_ONLY
        allowed = [name for name in ROUTERS[router.kind].policies if name not in only]
        if policy and policy not in allowed and written.sound(f"router.{key}", "router.kind"):
            marks = places(written.spans, (f"router.{key}", ""), ("router.kind", "the router is chosen here"))
            message = f"the router {router.kind} has no policy `{policy}`"
            yield Diagnostic(Code.WRONG_POLICY, message, marks, f"its policies are {listing(allowed, 'and')}")


def keys(written: WrittenTopology) -> Iterator[Diagnostic]:
    """SGLang and its routers take a key on the command line only."""
    topology, path = written.topology, "security.api-key-file"
    if not topology.security.api_key_file or not written.sound(path, "engine.kind", "router.kind"):
        return
    for kind, own, place, args in (
        (topology.engine.kind, EMBEDDED, "engine.kind", "engine.args.api-key"),
        (topology.router.kind, "pdctl", "router.kind", "router.args.api-key"),
    ):
        if kind != own:
            marks = places(written.spans, (path, ""), (place, "chosen here"))
            message = f"{kind} reads no API key from a file"
            yield Diagnostic(Code.BAD_CHOICE, message, marks, f"remove `api-key-file`, and write it as {args}")


def pace(written: WrittenTopology) -> Iterator[Diagnostic]:
    engine = written.topology.engine
    if engine.pace and engine.kind != EMBEDDED and written.sound("engine.pace", "engine.kind"):
        marks = places(written.spans, ("engine.pace", ""), ("engine.kind", "the engine is chosen here"))
        message = f"the {engine.kind} engine is as fast as its machine: it takes no pace"
        yield Diagnostic(Code.BAD_CHOICE, message, marks, "remove `pace`, or write `kind: embedded`")


def model(written: WrittenTopology) -> Iterator[Diagnostic]:
    if written.topology.model.path or not written.sound("model", "model.path", "engine", "engine.kind"):
        return
    marks = places(written.spans, ("engine.kind", "this engine"))
    if "model" in written.keys:
        marks = ((written.keys["model"], "`path` is missing"), *marks)
    message = "the sglang engine needs the key `model.path`"
    yield Diagnostic(Code.MISSING_KEY, message, marks, "write `model: {path: …}`, a Hugging Face id or a directory")


def nics(written: WrittenTopology) -> Iterator[Diagnostic]:
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


RULES: tuple[Callable[[WrittenTopology], Iterator[Diagnostic]], ...] = (
    args, pools, check_ports, shapes, choices, keys, pace, model, nics,
)  # fmt: skip
