"""A plan as the document `pdctl.plan/1`, which `-o json` and `-o yaml` print: fields are added, never renamed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdctl.layout.gpu_memory import GpuMemory
    from pdctl.layout.instance_plan import InstancePlan, Plan, RouterPlan
    from pdctl.layout.kv_links import KvLink
    from pdctl.layout.serving import NodeCommand
    from pdctl.layout.workload import Ratio

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
        "url": f"http://{router.address}:{router.port}",
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
