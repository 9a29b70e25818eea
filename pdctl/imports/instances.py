"""Combine engines into instances, and note contradictions: between nodes of one, and between instances of a role."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.imports.found import OF_NODE, PLACEMENT, ROLES, FoundEngine
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.imports.found import Notes
    from pdctl.manifests.command_lines import Flag
    from pdctl.topology.model import FlagValue

NODES = 1024  # more must be a mistake
# Variables that tell a pod about itself; only flags of a node refer to them.
FIELDS = re.compile(r"(POD|NODE|HOST)_(IP|NAME)|(LWS|RBG_LWP)_(WORKER_INDEX|GROUP_SIZE|LEADER_ADDRESS)")
FIELD = re.compile(rf"\$\(({FIELDS.pattern})\)")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLE = "give it with --var NAME=VALUE"


class Instance(NamedTuple):
    """`written`: its command lines in the files, node 0 first. `nodes`: per instance. `copies` None: unknown."""

    written: tuple[FoundEngine, ...]
    nodes: int
    copies: int | None

    @property
    def leader(self) -> FoundEngine:
        return self.written[0]

    @property
    def role(self) -> str:
        return self.leader.role


def instances(engines: Sequence[FoundEngine], notes: Notes) -> tuple[Instance, ...]:
    """The instances in the order of the files, prefill before decode."""
    found: list[list[FoundEngine]] = []
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


def _together(group: list[FoundEngine], engine: FoundEngine) -> bool:
    """Whether `engine` belongs to `group`: leader and worker of one object, or nodes with the same --dist-init-addr."""
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


def _instance(group: list[FoundEngine], notes: Notes) -> Instance:
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


def _compare(leader: FoundEngine, other: FoundEngine, notes: Notes) -> None:
    """Note differences between two nodes of an instance: all its ranks must start with the same flags."""
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


def differences(one: FoundEngine, two: FoundEngine, besides: Iterable[str]) -> list[tuple[str, str, str]]:
    """(flag, value of one, value of two) where they differ; "" if a flag is absent, "given" if it has no value."""
    names = dict.fromkeys(flag.name for engine in (one, two) for flag in engine.flags.given)
    found = []
    for name in names:
        if name in besides:
            continue
        first, second = said(one, name), said(two, name)
        if first != second:
            found.append((name, first, second))
    return found


def said(engine: FoundEngine, name: str) -> str:
    flag = engine.flags.find(name)
    return "" if flag is None else " ".join(flag.values) or "given"


class Settings(NamedTuple):
    """The settings of a role. `flags`: without those of a node; `engine`: the one whose values win over the others'."""

    engine: FoundEngine
    flags: Mapping[str, Flag]
    env: Mapping[str, str]

    def text(self, *names: str) -> str | None:
        return self.engine.flags.text(*names)

    def number(self, name: str) -> int | None:
        return self.engine.flags.number(name)

    def has(self, name: str) -> bool:
        return name in self.flags

    def place(self, name: str) -> str:
        return self.engine.said(name)


def one_setting(found: Sequence[Instance], notes: Notes) -> Settings:
    """The settings of one role from its instances, with a note for each difference. `found` must not be empty."""
    engine = found[0].leader
    for name in dict.fromkeys(flag.name for one in found for flag in one.leader.flags.given):
        if name in PLACEMENT:
            continue
        values = Counter(said(one.leader, name) for one in found)
        if len(values) > 1:
            taken = said(engine, name)
            for one in found:
                if said(one.leader, name) != taken:
                    other = said(one.leader, name)
                    text = f"--{name} {other or 'is not given'} here, and {taken or 'not given'} at {engine.place}"
                    notes.suspect(one.leader.said(name), f"{text}: a role has one setting, the latter is taken")
    flags = {flag.name: flag for flag in engine.flags.given if flag.name not in PLACEMENT}
    return Settings(engine, flags, _env(found, engine, notes))


def _env(found: Sequence[Instance], engine: FoundEngine, notes: Notes) -> dict[str, str]:
    file = engine.place.rpartition(":")[0]
    kept: dict[str, str] = {}
    secret = {said.name for each in (engine.pod.containers if engine.pod is not None else ()) for said in each.secrets}
    for name, variable in engine.env.items():
        place = f"{file}:{variable.line}" if variable.line else engine.place
        if of_node(name, variable.value) or (variable.value is None and FIELDS.fullmatch(name)):
            continue
        if variable.value is not None and FIELD.fullmatch(variable.value):
            continue
        if not NAME.fullmatch(name):
            notes.left_out(place, f"variable {name}: no name of a variable")
        elif variable.value is None and name in secret:
            continue
        elif variable.value is None:
            notes.left_out(place, f"variable {name}: its value stands elsewhere (a Secret, a field of the pod, a file)")
        elif "$" in variable.value:
            notes.left_out(place, f"variable {name}={variable.value}: nobody says what that is; {VARIABLE}")
        else:
            kept[name] = variable.value
    for one in found:
        for name, variable in one.leader.env.items():
            here = engine.env.get(name)
            if not of_node(name, variable.value) and variable.value != (here.value if here is not None else None):
                text = f"{name} differs from {engine.place}, whose value is taken"
                notes.suspect(f"{one.leader.place.rpartition(':')[0]}:{variable.line}", text)
    return kept


def of_node(name: str, value: str | None) -> bool:
    """Whether a variable differs by node. An empty list of GPUs does not: it hides all GPUs on every node."""
    return name in OF_NODE and value != ""


def values(flag: Flag) -> FlagValue | None:
    """A flag's value as in a topology; None if it contains an unresolved variable."""
    if any("$" in each for each in flag.values if not each.startswith(("{", "["))):
        return None
    if not flag.values:
        return True
    found = tuple(scalar(each) for each in flag.values)
    return found[0] if len(found) == 1 else found


def scalar(text: str) -> str | int | float:
    """`text` as a number if that would be written back exactly the same, else as it is."""
    whole = numerals.signed(text, 10**15)
    if whole is not None and str(whole) == text:
        return whole
    real = numerals.real(text)
    return real if real is not None and str(real) == text else text
