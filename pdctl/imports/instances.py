"""Engines put together to instances: the nodes that share one address to meet at, and what contradicts between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.imports.found import OF_NODE, PLACEMENT, ROLES, Engine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.imports.notes import Notes

NODES = 1024  # more are a slip


class Instance(NamedTuple):
    """`written`: the command lines there are, node 0 first. `nodes`: of one instance. `copies` None: nobody says."""

    written: tuple[Engine, ...]
    nodes: int
    copies: int | None

    @property
    def leader(self) -> Engine:
        return self.written[0]

    @property
    def role(self) -> str:
        return self.leader.role


def instances(engines: Sequence[Engine], notes: Notes) -> tuple[Instance, ...]:
    """In the order written, prefill before decode."""
    found: list[list[Engine]] = []
    for engine in engines:
        if not engine.role:
            notes.left_out(engine.place, "an engine without --disaggregation-mode: it is no part of a pair")
            continue
        open_ones = [each for each in found if _together(each, engine)]
        if open_ones:
            open_ones[0].append(engine)
        else:
            found.append([engine])
    made = [_instance(each, notes) for each in found]
    return tuple(sorted(made, key=lambda one: ROLES.index(one.role)))


def _together(group: list[Engine], engine: Engine) -> bool:
    """Leader and worker of one object; or further nodes that meet at the same address."""
    first = group[0]
    if first.role != engine.role or (first.pod is None) != (engine.pod is None):
        return False
    if engine.part or first.part:
        return first.group == engine.group and engine.part not in [each.part for each in group]
    if (engine.number("nnodes") or 1) < 2 or engine.node is None or engine.copies is not None:
        return False
    here, there = engine.flags.find("dist-init-addr"), first.flags.find("dist-init-addr")
    same = (here.values if here is not None else None) == (there.values if there is not None else None)
    return same and engine.node not in [each.node for each in group]


def _instance(group: list[Engine], notes: Notes) -> Instance:
    ordered = sorted(group, key=lambda each: (each.part == "worker", each.node or 0))
    leader = ordered[0]
    nodes = leader.nodes or leader.number("nnodes") or 1
    if not 1 <= nodes <= NODES:
        notes.suspect(leader.said("nnodes"), f"--nnodes {nodes}: taken as 1")
        nodes = 1
    unwritten = nodes - len(ordered)
    if unwritten > 0 and len(ordered) > 1 and not leader.part:
        notes.assumed(leader.place, f"{unwritten} more of its {nodes} nodes, which nobody starts here, are like node 0")
    unclear = leader.flags.unclear("nnodes") and leader.nodes is None
    if unclear:
        notes.assumed(leader.said("nnodes"), "one node: nobody says how many --nnodes are; give --var")
    for other in ordered[1:] if nodes > 1 else ():
        _compare(leader, other, notes)
    return Instance(tuple(ordered), nodes, leader.copies)


def _compare(leader: Engine, other: Engine, notes: Notes) -> None:
    """One instance starts with one set of flags: whatever differs, two ranks read differently."""
    which = f"node {other.node}" if other.node is not None else "the workers"
    for name, one, two in differences(leader, other, {*PLACEMENT} - {"nnodes", "disaggregation-bootstrap-port"}):
        if one and two:
            text = f"--{name} is {two} on {which} of a {leader.role} and {one} on node 0, whose value is taken"
        elif two:
            text = f"--{name} {two} stands on {which} of a {leader.role} alone: left out, as on node 0"
        else:
            text = f"--{name} {one} is missing on {which} of a {leader.role}: given to all its nodes, as on node 0"
        notes.suspect(other.said(name) if two else leader.said(name), text)
    for name in sorted(leader.env.keys() | other.env.keys()):
        first, second = leader.env.get(name), other.env.get(name)
        values = [said.value if said is not None else None for said in (first, second)]
        if values[0] == values[1] or name in OF_NODE or any("$" in (value or "") for value in values):
            continue
        said = [f"{value}" if value is not None else "not set" for value in values]
        line = second or first
        assert line is not None
        file = (other if second is not None else leader).place.rpartition(":")[0]
        text = f"{name} is {said[1]} on {which} of a {leader.role}, {said[0]} on node 0, whose value is taken"
        notes.suspect(f"{file}:{line.line}", text)


def differences(one: Engine, two: Engine, besides: Iterable[str]) -> list[tuple[str, str, str]]:
    """(flag, value of one, value of two) where they differ; "" where a flag is not given, "given" without a value."""
    names = dict.fromkeys(flag.name for engine in (one, two) for flag in engine.flags.given)
    found = []
    for name in names:
        if name in besides:
            continue
        first, second = said(one, name), said(two, name)
        if first != second:
            found.append((name, first, second))
    return found


def said(engine: Engine, name: str) -> str:
    flag = engine.flags.find(name)
    return "" if flag is None else " ".join(flag.values) or "given"
