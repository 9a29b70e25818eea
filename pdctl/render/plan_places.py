"""Where a plan's processes listen, and the commands that start them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from pdctl.engines.sglang.ports import EPHEMERAL
from pdctl.render.columns import table
from pdctl.render.plan_document import shell_line, shell_words

if TYPE_CHECKING:
    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.layout.serving import NodeCommand
    from pdctl.render.term import Term

ROOM_FOR_VALUE = 16  # columns kept for what follows a flag before the line is broken
NO_REPEAT = 2  # nodes of an instance whose commands are all printed on a terminal


def port_lines(term: Term, plan: Plan, full: bool) -> list[str]:
    """By host; a terminal gets one row per instance and host, a pipe one per port."""
    rows: list[list[object]] = []
    for instance in plan.instances:
        for node, host in enumerate(instance.host_names):
            ports = sorted((port.port, port.purpose, port.protocol) for port in instance.ports if port.node == node)
            if full:
                rows += [[host, instance.name, number, purpose, protocol] for number, purpose, protocol in ports]
            else:
                rows.append([host, instance.name, _runs([(number, purpose) for number, purpose, _ in ports])])
    if plan.router is not None:
        router = plan.router
        if full:
            rows += [[router.host_name, router.name, number, purpose, "http"] for number, purpose in router.ports]
        else:
            rows.append([router.host_name, router.name, _runs(list(router.ports))])
    header = ["HOST", "INSTANCE", "PORT", "PURPOSE", "PROTOCOL"] if full else ["HOST", "INSTANCE", "PORTS"]
    taken = [problem for problem in plan.problems if problem.code in ("port-collision", "port-range")]
    verdict = term.style(f"{len(taken)} collide, see below", "red") if taken else "no two collide"
    more = f"; every rank also picks its own at random: {', '.join(EPHEMERAL)}" if plan.engine == "sglang" else ""
    return [f"{term.style('ports:', 'bold')} {verdict}{more}", *table(term, header, rows)]


def command_lines(term: Term, plan: Plan, full: bool) -> list[str]:
    """One line per node, ready to paste. A terminal is told how further nodes differ instead of shown them."""
    lines = [term.style("commands", "bold")]
    for instance in plan.instances:
        lines += _instance(term, instance, full)
    if plan.router is not None:
        lines += [_comment(term, f"router on {plan.router.host_name}"), *_folded(term, plan.router.command)]
    return lines


def shell_script(plan: Plan) -> list[str]:
    """Every command with a comment that says where it runs; comments only where the plan is infeasible."""
    lines = [f"# infeasible: {problem.code}: {problem.message}" for problem in plan.problems]
    lines += [f"#   nearest: {way}" for problem in plan.problems for way in problem.nearest]
    lines += [f"# warning: {warning.code}: {warning.message}" for warning in plan.warnings]
    if not plan.feasible:
        return lines
    for instance in plan.instances:
        for command in instance.commands:
            lines.append(f"# {instance.name} node {command.node} on {instance.host_names[command.node]}")
            lines.append(shell_line(command))
    if plan.router is not None:
        lines += [f"# router on {plan.router.host_name}", shell_line(plan.router.command)]
    return lines


def _instance(term: Term, instance: InstancePlan, full: bool) -> list[str]:
    shown = instance.commands if full or len(instance.commands) < NO_REPEAT else instance.commands[:1]
    lines: list[str] = []
    for command in shown:
        node = f" node {command.node}" if instance.nnodes > 1 else ""
        lines.append(_comment(term, f"{instance.name}{node} on {instance.host_names[command.node]}"))
        lines += _folded(term, command)
    if len(shown) < len(instance.commands):
        last = len(instance.commands) - 1
        others = "node 1" if last == 1 else f"nodes 1 to {last}"
        hosts = ", ".join(instance.host_names[1:])
        lines.append(_comment(term, f"{instance.name} {others} on {hosts}: the same but for --node-rank"))
    return lines


def _folded(term: Term, command: NodeCommand) -> list[str]:
    """One line in a pipe; on a terminal broken before flags, with the backslashes a shell needs."""
    if not term.tty:
        return [shell_line(command)]
    lines = [""]
    for part in shell_words(command):
        flag = part.startswith("--")
        if flag and lines[-1] and len(lines[-1]) + len(part) + ROOM_FOR_VALUE > term.width:
            lines[-1] += " \\"
            lines.append(f"  {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return lines


def _comment(term: Term, text: str) -> str:
    return term.style(f"# {text}", "dim")


def _runs(ports: list[tuple[int, str]]) -> str:
    """`http 30000, tokenizer..rpc 20001-20003`: neighbouring numbers as one."""
    parts: list[str] = []
    for _, run in groupby(enumerate(ports), key=lambda at: at[1][0] - at[0]):
        numbers = [port for _, port in run]
        first, last = numbers[0], numbers[-1]
        parts.append(f"{first[1]} {first[0]}" if first == last else f"{first[1]}..{last[1]} {first[0]}-{last[0]}")
    return ", ".join(parts)
