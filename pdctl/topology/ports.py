"""Which ports a topology asks for, and where two servers of one host would want the same one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.topology.diagnostic import Code, Diagnostic, places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.topology.diagnostic import Mark
    from pdctl.topology.model import Role, Topology
    from pdctl.topology.written import Written

LAST_PORT = 65535


class Range(NamedTuple):
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

    def meets(self, other: Range) -> bool:
        return self.first <= other.last and other.first <= self.last


def check(written: Written) -> Iterator[Diagnostic]:
    """Ranges that leave the port numbers, and ranges that meet."""
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


def _ranges(topology: Topology) -> list[Range]:
    """Every range whose host is certain: over several hosts only the first instance surely shares the router's, and
    in Kubernetes every pod has ports of its own."""
    together = _on_one_host(topology)
    prefills, decodes = _tenants(topology, topology.prefill), _tenants(topology, topology.decode)
    some = tuple(prefills + decodes) if together else tuple(prefills[:1])
    bootstrapped = prefills + (decodes if topology.decode.args.get("enable-pd-role-switch") is True else [])
    first = topology.ports
    found = [
        Range("ports.http", "HTTP", first.http, some),
        Range("ports.bootstrap", "bootstrap", first.bootstrap, tuple(name for name in some if name in bootstrapped)),
    ]
    if topology.engine.kind == "sglang" or any(_nodes(topology, role) > 1 for role in topology.roles):
        found.append(Range("ports.dist-init", "rendezvous", first.dist_init, some, first.stride))
    if together or not topology.targets.kubernetes:
        found.append(Range("router.port", "router", topology.router.port, ("the router",)))
    return found


def _tenants(topology: Topology, role: Role) -> list[str]:
    """Who takes a number each: every instance; of the embedded engine, which may span nodes of one host, every node."""
    return [f"{role.name}-{index}" for index in range(role.instances) for _ in range(_nodes(topology, role))]


def _nodes(topology: Topology, role: Role) -> int:
    pool = next((pool for pool in topology.pools if pool.name == role.pool), None)
    if topology.engine.kind == "sglang" or pool is None or role.replicas > 1:
        return 1
    return -(-role.tp * role.pp // pool.gpus_per_host)


def _on_one_host(topology: Topology) -> bool:
    if topology.engine.kind == "embedded":
        return True
    if topology.targets.slurm or topology.targets.kubernetes or topology.prefill.pool != topology.decode.pool:
        return False
    pool = next((pool for pool in topology.pools if pool.name == topology.prefill.pool), None)
    return pool is not None and sum(role.instances * role.tp * role.pp for role in topology.roles) <= pool.gpus_per_host


def _overflow(written: Written, one: Range) -> Diagnostic:
    role = one.tenants[-1].rpartition("-")[0]
    counted = (f"roles.{role}.instances", f"up to {one.tenants[-1]}")
    marks = places(written.spans, (one.path, f"counts up to {one.last}"), counted)
    message = f"{one.what} ports would be {one.numbers}; the last port is {LAST_PORT}"
    fix = f"lower {one.path} to at most {LAST_PORT - (one.last - one.first)}"
    return Diagnostic(Code.PORT_RANGE, message, marks, fix)


def _collision(written: Written, one: Range, other: Range, ranges: Sequence[Range]) -> Diagnostic:
    port = max(one.first, other.first)
    both = " and ".join(each.named(port) for each in (other, one))
    marks = (*_place(written, one, port), *_place(written, other, port))
    fix = f"move one of them, such as {one.path}: {_free(one, ranges)}"
    return Diagnostic(Code.PORT_COLLISION, f"{both} both want port {port}", marks, fix)


def _place(written: Written, each: Range, port: int) -> tuple[Mark, ...]:
    """Where the range is written, or else what makes its instance of that port exist."""
    if each.path in written.spans:
        label = f"{each.what} port{'s' if each.first != each.last else ''} {each.numbers}"
        return places(written.spans, (each.path, label))
    role = f"roles.{each.tenant(port).rpartition('-')[0]}"
    label = f"{each.tenant(port)} takes {port}: {each.path} is {each.first} by default"
    return places(written.spans, (f"{role}.instances", label)) or places(written.keys, (role, label))


def _free(one: Range, ranges: Sequence[Range]) -> int:
    """The nearest first port above, at which the range meets no other."""
    candidate = one
    while meeting := [each for each in ranges if each is not one and candidate.meets(each)]:
        candidate = one._replace(first=max(each.last for each in meeting) + 1)
        if candidate.last > LAST_PORT:
            candidate = one._replace(first=1024)  # the ports below need privileges
    return candidate.first
