"""What a plan is made of: instances, their processes, the router, and what passes between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.kinds import EMBEDDED

if TYPE_CHECKING:
    from pdctl.layout.gpu_memory import GpuMemory
    from pdctl.layout.kv_links import KvLink
    from pdctl.layout.serving import BoundPort, NodeCommand, Numbers, Serving
    from pdctl.layout.shape import Caution, Problem, RankPlace, Shape
    from pdctl.layout.transfer_bill import TransferBill
    from pdctl.layout.workload import Ratio


class InstancePlan(NamedTuple):
    """One engine: `number` counts within the role, `host_names` go by node.

    `address` is where the router and the other nodes reach node 0. `memory` is None where no model config was at hand.
    """

    name: str
    role: str
    number: int
    host_names: tuple[str, ...]
    address: str
    shape: Shape
    ranks: tuple[RankPlace, ...]
    numbers: Numbers
    serving: Serving
    memory: GpuMemory | None = None
    addresses: tuple[str, ...] = ()  # of every node, where a target has given them

    @property
    def host_name(self) -> str:
        """The host of node 0."""
        return self.host_names[0]

    @property
    def nnodes(self) -> int:
        return self.shape.nodes

    @property
    def attn_tp_size(self) -> int:
        return self.shape.attn_tp_size

    @property
    def http_port(self) -> int:
        return self.numbers.http

    @property
    def bootstrap_port(self) -> int | None:
        """Only a prefill has one, or a decode that may become a prefill."""
        return self.numbers.bootstrap

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.http_port}"

    def node_address(self, node: int) -> str:
        return self.addresses[node] if self.addresses else self.address

    @property
    def ports(self) -> tuple[BoundPort, ...]:
        """The ports known before the instance starts."""
        from pdctl.layout.serving import embedded, occupied  # late: the rank table alone needs neither

        if self.serving.kind == EMBEDDED:
            return embedded(self.numbers, self.nnodes)
        return occupied(self.shape, self.numbers, self.serving.version)

    @property
    def commands(self) -> tuple[NodeCommand, ...]:
        """The commands to run, one per node."""
        from pdctl.layout.commands import instance  # late, as above

        return instance(self.serving, self.shape, self.numbers, self.address)


class RouterPlan(NamedTuple):
    """`host` is what it binds, `host_name` where it runs, `address` where clients of the same network reach it."""

    name: str
    host: str
    host_name: str
    address: str
    port: int
    command: NodeCommand
    metrics: int | None = None  # the port of its metrics, where they are not on `port`

    @property
    def ports(self) -> tuple[tuple[int, str], ...]:
        """(number, purpose)."""
        own = (self.port, "http")
        return (own,) if self.metrics is None else (own, (self.metrics, "metrics"))


class Plan(NamedTuple):
    """`engine` is embedded or sglang; `version` the SGLang release whose rules were applied, as it was asked for."""

    name: str
    engine: str
    version: str
    target: str
    instances: tuple[InstancePlan, ...] = ()
    router: RouterPlan | None = None
    links: tuple[KvLink, ...] = ()
    transfer: TransferBill | None = None
    ratio: Ratio | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Caution, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        return not self.problems

    @property
    def host_names(self) -> tuple[str, ...]:
        """Every host used, in the order they were filled."""
        return tuple(dict.fromkeys(host for instance in self.instances for host in instance.host_names))

    @property
    def gpus(self) -> int:
        return sum(instance.shape.gpus for instance in self.instances)
