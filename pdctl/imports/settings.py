"""A role's flags and variables as one setting for all its instances: most of them decide, the others are told."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines import numerals
from pdctl.imports.found import OF_NODE, PLACEMENT
from pdctl.imports.instances import said

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.imports.found import Engine
    from pdctl.imports.instances import Instance
    from pdctl.imports.notes import Notes
    from pdctl.manifests.command_lines import Flag
    from pdctl.topology.model import FlagValue

# What a pod is told about itself, which only flags of a node refer to.
FIELDS = re.compile(r"(POD|NODE|HOST)_(IP|NAME)|(LWS|RBG_LWP)_(WORKER_INDEX|GROUP_SIZE|LEADER_ADDRESS)")
FIELD = re.compile(rf"\$\(({FIELDS.pattern})\)")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLE = "give it with --var NAME=VALUE"


class Settings(NamedTuple):
    """`flags` without those of a node; `engine` is the one whose values are taken where the others differ."""

    engine: Engine
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


def settle(found: Sequence[Instance], notes: Notes) -> Settings:
    """Of one role; `found` is not empty."""
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


def _env(found: Sequence[Instance], engine: Engine, notes: Notes) -> dict[str, str]:
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
    """It differs by node; an empty list of GPUs hides them all, from everybody."""
    return name in OF_NODE and value != ""


def values(flag: Flag) -> FlagValue | None:
    """As a topology has it; None where it hangs on a variable that nobody has filled in."""
    if any("$" in each for each in flag.values if not each.startswith(("{", "["))):
        return None
    if not flag.values:
        return True
    found = tuple(scalar(each) for each in flag.values)
    return found[0] if len(found) == 1 else found


def scalar(text: str) -> str | int | float:
    """A number where it would be written back letter by letter."""
    whole = numerals.signed(text, 10**15)
    if whole is not None and str(whole) == text:
        return whole
    real = numerals.real(text)
    return real if real is not None and str(real) == text else text
