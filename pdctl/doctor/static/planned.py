"""A plan's instances and router as Servers: the commands it would run, each flag with its place in the topology."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pdctl.doctor.static.servers import RouterLine, Server, Servers, Setting
from pdctl.engines import numerals
from pdctl.engines.versions import resolve
from pdctl.manifests.command_lines import Flags, Listed, parse, program, worker
from pdctl.manifests.manifest import PlacedWord
from pdctl.topology import owned_flags as owned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdctl.layout.instance_plan import InstancePlan, Plan, RouterPlan
    from pdctl.topology.model import Topology


def servers(topology: Topology, plan: Plan) -> Servers:
    engines = tuple(_server(topology, one) for one in plan.instances)
    sides = tuple(side for role in ("prefill", "decode") for side in _side(engines, role))
    routers = (_router(topology, plan.router),) if plan.router is not None else ()
    return Servers(engines, sides, routers, topology=topology, plan=plan)


def _side(engines: tuple[Server, ...], role: str) -> tuple[Server, ...]:
    """A plan's instances of one role differ in addresses only: the first speaks for all, under the role's name."""
    found = [one for one in engines if one.role == role]
    if len(found) < 2:
        return tuple(found)
    return (dataclasses.replace(found[0], name=role, count=len(found)),)


def _server(topology: Topology, one: InstancePlan) -> Server:
    command = one.commands[0]
    embedded = one.serving.kind == "embedded"
    release = topology.engine.version or ""
    return Server(
        name=one.name,
        role=one.role,
        engine=one.serving.kind,
        release="" if embedded else release,
        version=resolve(release).known if release and not embedded else None,
        flags=_flags(command.argv, _places(topology, one.role)),
        env=_env(topology, one.role, dict(command.env)),
        network=one.host_name,
        count=1,
        url=one.url,
        instance=one,
    )


def _flags(argv: tuple[str, ...], place: Callable[[str], str]) -> Flags:
    started = program(tuple(PlacedWord(word, 0) for word in argv))
    words = [word.text for word in started.flags] if started is not None else list(argv)
    return parse(((word, "") for word in words), place)


def _places(topology: Topology, role: str) -> Callable[[str], str]:
    """Where a flag of the command comes from: the role's args, the engine's, or the key that decides it."""

    def place(flag: str) -> str:
        owner = owned.owner(flag, f"roles.{role}.args")
        paths = (f"roles.{role}.args.{flag}", f"engine.args.{flag}", *(owner.keys if owner else ()))
        return _place(topology, *paths)

    return place


def _place(topology: Topology, *paths: str) -> str:
    span = next((topology.spans[path] for path in paths if path in topology.spans), None)
    return f"{span.file}:{span.line}" if span is not None else ""


def _env(topology: Topology, role: str, env: Mapping[str, str]) -> dict[str, Setting]:
    """The later layers overrule the earlier ones, as in the layout: role, transfer, engine."""
    found = {}
    for name, value in env.items():
        paths = (f"roles.{role}.env.{name}", f"transfer.env.{name}", f"engine.env.{name}")
        found[name] = Setting(name, value, _place(topology, *paths))
    return found


def _router(topology: Topology, planned: RouterPlan) -> RouterLine:
    flags = _flags(planned.command.argv, lambda flag: _place(topology, f"router.args.{flag}", f"router.{flag}"))
    prefills = tuple(worker(flag) for flag in flags.all("prefill"))
    return RouterLine(
        name=planned.name,
        kind=topology.router.kind,
        flags=flags,
        prefills=_rehearsed(flags, prefills),
        decodes=tuple(worker(flag) for flag in flags.all("decode")),
        network=planned.host_name,
    )


def _rehearsed(flags: Flags, prefills: tuple[Listed, ...]) -> tuple[Listed, ...]:
    """The ports pdctl's router sends when it is told to make a real router's mistake (`--rehearse`)."""
    said = flags.find("rehearse")
    incident, _, wrong = (flags.text("rehearse") or "").partition("=")
    if said is None or not prefills:
        return prefills
    ports = [each.port for each in prefills]
    if incident == "missing-bootstrap-port":
        ports = [None] * len(ports)
    elif incident == "wrong-bootstrap-port" and (port := numerals.port(wrong)) is not None:
        ports = [port, *ports[1:]]
    elif incident == "swapped-bootstrap-ports":
        ports = [*ports[1:], ports[0]]
    return tuple(
        each._replace(port=port, evidence=f"{said.evidence} (a rehearsal)")
        for each, port in zip(prefills, ports, strict=True)
    )
