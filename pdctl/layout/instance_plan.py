"""What a plan is made of: instances, their processes, the router, and what passes between them; and the plan as JSON.

Its schema is `pdctl.plan/1`, which `-o json` and `-o yaml` print: fields are added, never renamed.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from pdctl.engines.kinds import EMBEDDED
from pdctl.loopback import bracketed
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from pdctl.layout.gpu_memory import GpuMemory
    from pdctl.layout.kv_links import KvLink
    from pdctl.layout.ports import BoundPort, Numbers
    from pdctl.layout.serving import NodeCommand, Serving
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
        return f"http://{bracketed(self.address)}:{self.http_port}"

    def node_address(self, node: int) -> str:
        return self.addresses[node] if self.addresses else self.address

    @property
    def ports(self) -> tuple[BoundPort, ...]:
        """The ports known before the instance starts."""
        from pdctl.layout.ports import embedded, occupied  # late: the rank table alone needs neither

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


SCHEMA = "pdctl.plan/1"

Document = dict[str, Any]


def document(plan: Plan) -> Document:
    return {
        "schema": SCHEMA,
        "name": plan.name,
        "engine": plan.engine,
        "version": plan.version,
        "target": plan.target,
        "feasible": plan.feasible,
        "problems": [
            {"code": problem.code, "message": problem.message, "nearest": list(problem.nearest)}
            for problem in plan.problems
        ],
        "warnings": [warning._asdict() for warning in plan.warnings],
        "hosts": list(plan.host_names),
        "gpus": plan.gpus,
        "instances": [_instance(instance) for instance in plan.instances],
        "router": _router(plan.router) if plan.router is not None else None,
        "links": [_link(link) for link in plan.links],
        "transfer": plan.transfer._asdict() if plan.transfer is not None else {},
        "ratio": _ratio(plan.ratio) if plan.ratio is not None else {},
        "assumptions": list(plan.assumptions),
    }


def to_json(plan: Plan) -> str:
    import json

    return json.dumps(document(plan), indent=2)


def to_yaml(plan: Plan) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document(plan), Dumper=dumper, sort_keys=False, width=1 << 20)).rstrip()


def _instance(instance: InstancePlan) -> Document:
    shape = instance.shape
    return {
        "name": instance.name,
        "role": instance.role,
        "index": instance.number,
        "hosts": list(instance.host_names),
        "url": instance.url,
        "http_port": instance.http_port,
        "bootstrap_port": instance.bootstrap_port,
        "nnodes": instance.nnodes,
        "gpus": shape.gpus,
        "tp_size": shape.tp,
        "pp_size": shape.pp,
        "replicas": shape.replicas,
        "attn_tp_size": shape.attn_tp_size,
        "attn_dp_size": shape.dp,
        "attn_cp_size": shape.cp,
        "ep_size": shape.ep_size,
        "moe_tp_size": shape.moe_tp_size,
        "moe_dp_size": shape.moe_dp,
        "ranks": [rank._asdict() for rank in instance.ranks],
        "ports": [port._asdict() for port in instance.ports],
        "commands": [_command(command, instance.host_names[command.node]) for command in instance.commands],
        "memory": _memory(instance.memory) if instance.memory is not None else {},
    }


def _router(router: RouterPlan) -> Document:
    return {
        "name": router.name,
        "host": router.host,
        "host_name": router.host_name,
        "url": f"http://{bracketed(router.address)}:{router.port}",
        "port": router.port,
        "metrics_port": router.metrics,
        "command": _command(router.command, router.host_name),
    }


def _command(command: NodeCommand, host: str) -> Document:
    return {
        "node": command.node,
        "host": host,
        "argv": list(command.argv),
        "env": dict(command.env),
        "shell": shell_line(command),
    }


def shell_line(command: NodeCommand) -> str:
    """One line for a POSIX shell."""
    return " ".join(shell_words(command))


def shell_words(command: NodeCommand) -> list[str]:
    """Environment and arguments, quoted."""
    env = [f"{name}={shlex.quote(value)}" for name, value in command.env]
    return [*env, *map(shlex.quote, command.argv)]


def _memory(memory: GpuMemory) -> Document:
    return {
        "verdict": memory.verdict.value,
        "reasons": list(memory.reasons),
        "parameters": memory.parameters,
        "copy_bytes": memory.copy_bytes,
        "weight_bytes": memory.weight_bytes,
        "weights": dict(memory.weights),
        "kv_bytes_per_token": memory.kv_bytes_per_token,
        "gpu_memory": memory.gpu_memory,
        "mem_fraction": memory.mem_fraction,
        "page_size": memory.page_size,
        "pool_bytes": memory.pool_bytes,
        "tokens": memory.tokens,
        "instance_tokens": memory.instance_tokens,
        "requests": memory.requests,
    }


def _ratio(ratio: Ratio) -> Document:
    prefill, decode = ratio.instances
    return {**ratio._asdict(), "prefill_instances": prefill, "decode_instances": decode}


def _link(link: KvLink) -> Document:
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in link._asdict().items()}
    return {**fields, "slices": [part._asdict() for part in link.slices]}
