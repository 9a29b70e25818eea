"""The sections of a topology, each derived from the engines of both roles and the router."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.kinds import EMBEDDED, ENGINES, RELEASED, RELEASED_ROUTER, ROUTERS
from pdctl.engines.routers import router_flags as routers
from pdctl.engines.sglang.arguments import arguments
from pdctl.imports.found import bare
from pdctl.imports.instances import VARIABLE, scalar, values
from pdctl.topology.build import SHIPPED
from pdctl.topology.owned_flags import ENGINE_OWNED, ROUTER_OWNED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.imports.found import FoundRouter, Notes
    from pdctl.imports.instances import Settings
    from pdctl.topology.model import FlagValue

Section = dict[str, object]
Both = "Mapping[str, Settings]"  # by role
# The flags that `engine.traceable` stands for.
TRACEABLE: dict[str, FlagValue] = {
    "enable-request-time-stats-logging": True,
    "log-requests": True,
    "log-requests-level": 0,
    "enable-metrics": True,
}
# Flags that dynamo.sglang has and SGLang does not, and those that SGLang must not have behind a router.
DYNAMO = re.compile(r"dyn-.*|endpoint|migration-limit|store-kv|request-plane|event-plane|use-sglang-tokenizer|"
                    r"custom-jinja-template|dump-config-to|discovery-backend|skip-tokenizer-init")  # fmt: skip
TAG = re.compile(r":v?([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4})[^/@:]*(?:@|$)")
PLACEHOLDER = "MODEL"
NUMBERS = {"mem-fraction-static": "mem-fraction", "page-size": "page-size"}
FLAG = re.compile(r"[a-z0-9][a-z0-9-]*")
DISCOVERY = re.compile(r"service-discovery.*|(prefill|decode)-selector|selector|bootstrap-port-annotation")


def model(both: Mapping[str, Settings], notes: Notes) -> Section:
    """The model of both roles; if they differ, the prefill's."""
    found: Section = {}
    said = {
        key: _agreed(both, flag, notes)
        for key, flag in (
            ("path", "model-path"),
            ("served-name", "served-model-name"),
            ("dtype", "dtype"),
            ("kv-dtype", "kv-cache-dtype"),
            ("context-length", "context-length"),
        )
    }
    path, engine = said["path"], next(iter(both.values())).engine
    if engine.kind == EMBEDDED and PurePath(path or SHIPPED[0]).name in SHIPPED:
        path = PurePath(path or SHIPPED[0]).name
    if path is None:
        path = PLACEHOLDER
        notes.assumed(engine.said("model-path"), f"model.path {PLACEHOLDER}: nobody says what it is; {VARIABLE}")
    found["path"] = path
    name = said["served-name"]
    if name is None and path.startswith("/") and engine.kind != EMBEDDED:
        name = path  # SGLang's name for a directory if no name is given
    if name is not None and name != (PurePath(path).name if path.startswith("/") else path):
        found["served-name"] = name
    for key in ("dtype", "kv-dtype"):
        if said[key] not in (None, "auto"):
            found[key] = said[key]
    length = numerals.whole(said["context-length"])
    if length:
        found["context-length"] = length
    return found


def _agreed(both: Mapping[str, Settings], flag: str, notes: Notes) -> str | None:
    """The value of a flag that a topology has once. If only one role has the flag, both get it, with a note."""
    said = {role: one.text(flag) for role, one in both.items()}
    given = {role: value for role, value in said.items() if value is not None}
    if len(set(given.values())) > 1:
        role, other = tuple(given)[:2]
        text = f"--{flag} {given[other]} on {other} and {given[role]} on {role}: both get the latter"
        notes.suspect(both[other].place(flag), text)
    elif len(given) == 1 and len(both) == 2 and flag not in ("model-path", "served-model-name"):
        role, value = next(iter(given.items()))
        other = next(each for each in both if each != role)
        notes.changed(both[role].place(flag), f"--{flag} {value} is given to {other} too: it has one place for both")
    for one in both.values():
        if one.engine.flags.unclear(flag) and flag != "model-path":
            notes.left_out(one.place(flag), f"{one.flags[flag]}: nobody says what that is; {VARIABLE}")
    return next(iter(given.values()), None)


def role(one: Settings, instances: int, notes: Notes) -> Section:
    """A role's sizes and other keys; `args` and `env` come from `split_common`."""
    found: Section = {"instances": instances}
    attention = one.has("enable-dp-attention") or (one.number("attn-dp-size") or 1) > 1
    sizes = {
        "tp": _size(one, "tp-size", notes),
        "dp": max(_size(one, "attn-dp-size", notes), _size(one, "dp-size", notes) if attention else 1),
        "replicas": 1 if attention else _size(one, "dp-size", notes),
        "ep": _size(one, "ep-size", notes),
        "pp": _size(one, "pp-size", notes),
    }
    if sizes["dp"] > 1 and sizes["tp"] % sizes["dp"]:
        text = f"--tp-size {sizes['tp']} cannot be split into {sizes['dp']} attention groups: left at one group"
        notes.suspect(one.place("dp-size" if one.has("dp-size") else "attn-dp-size"), text)
        sizes["dp"] = 1
    found |= {key: size for key, size in sizes.items() if size > 1 or key == "tp"}
    for flag, key in NUMBERS.items():
        number = numerals.real(one.text(flag)) if one.has(flag) else None
        fits = number is not None and (0 < number <= 1 if key == "mem-fraction" else 1 <= number <= 4096)
        if fits and number is not None:
            found[key] = number if key == "mem-fraction" else int(number)
        elif one.has(flag):
            notes.left_out(one.place(flag), f"{one.flags[flag]}: no {key} of a role")
    return found


def _size(one: Settings, flag: str, notes: Notes) -> int:
    if not one.has(flag):
        return 1
    number = one.number(flag)
    most = 256 if flag == "pp-size" else 4096
    if number is not None and 1 <= number <= most:
        return number
    hint = f"; {VARIABLE}" if one.engine.flags.unclear(flag) else ""
    notes.assumed(one.place(flag), f"{one.flags[flag]}: taken as 1{hint}")
    return 1


def args(one: Settings, notes: Notes) -> dict[str, FlagValue]:
    """Name → value of the flags that no key of the topology stands for."""
    found: dict[str, FlagValue] = {}
    for given, flag in one.flags.items():
        name = _whole_name(one, given, notes)
        if name in ENGINE_OWNED or name == "enable-dp-attention":
            continue
        if one.engine.kind == "dynamo" and DYNAMO.fullmatch(name):
            why = "a router needs tokens from SGLang" if name == "skip-tokenizer-init" else "Dynamo's, not SGLang's"
            notes.left_out(one.place(given), f"{flag}: {why}")
            continue
        value = values(flag)
        known = arguments().get(name)
        if not known and one.engine.kind != EMBEDDED:
            notes.suspect(one.place(given), f"{flag}: no release of SGLang has this flag; left out")
        elif value is None:
            notes.left_out(one.place(given), f"{flag}: nobody says what that is; {VARIABLE}")
        elif known and {each.takes for each in known} == {""} and value is not True:
            notes.suspect(one.place(given), f"{flag}: the flag stands alone, SGLang refuses a value")
            found[name] = True
        elif FLAG.fullmatch(name):
            found[name] = value
    return found


def _whole_name(one: Settings, name: str, notes: Notes) -> str:
    """The full name of a flag: SGLang's argparse accepts abbreviations, a topology does not."""
    if one.engine.kind == EMBEDDED or name in arguments() or name in ENGINE_OWNED:
        return name
    meant = [each for each in arguments() if each.startswith(name)]
    if len(meant) != 1:
        return name
    notes.changed(one.place(name), f"--{name} is short for --{meant[0]}, and written so")
    return meant[0]


def split_common(both: Mapping[str, Mapping[str, object]]) -> tuple[Section, dict[str, Section]]:
    """The values that both roles share, and the rest by role."""
    first, *others = both.values()
    common = {name: value for name, value in first.items() if all(_alike(each, name, value) for each in others)}
    return common, {
        role: {name: value for name, value in own.items() if name not in common} for role, own in both.items()
    }


def _alike(other: Mapping[str, object], name: str, value: object) -> bool:
    return name in other and other[name] == value and type(other[name]) is type(value)


def traceable(both: Mapping[str, dict[str, FlagValue]], notes: Notes) -> bool:
    """Whether all engines log what trace-room reads; if so, remove the flags for it from `both`."""
    whole = all(TRACEABLE.items() <= own.items() for own in both.values())
    if whole:
        for own in both.values():
            for name in TRACEABLE:
                del own[name]
    else:
        text = "engine.traceable false, as here: with true, trace-room and doctor can follow every request"
        notes.assumed("", text)
    return whole


def transfer(both: Mapping[str, Settings], kind: str, notes: Notes) -> Section:
    found: Section = {}
    backend = _agreed(both, "disaggregation-transfer-backend", notes)
    known = ENGINES[EMBEDDED if kind == EMBEDDED else RELEASED].backends
    if backend is not None and backend in known:
        found["backend"] = backend
    elif backend is not None:
        place = next(iter(both.values())).place("disaggregation-transfer-backend")
        notes.left_out(place, f"transfer backend {backend}: SGLang's releases have {', '.join(known[1:])}")
    devices = _agreed(both, "disaggregation-ib-device", notes)
    if devices:
        found["ib-devices"] = [devices] if devices.startswith("{") else [each for each in devices.split(",") if each]
    return found


def release(both: Mapping[str, Settings]) -> str | None:
    """The SGLang release from the tags of the images; None if they do not tell."""
    for one in both.values():
        image = one.engine.image
        match = TAG.search(image) if "dynamo" not in image else None
        if match is not None:
            return match[1]
    return None


def router(one: FoundRouter | None, notes: Notes) -> Section:
    if one is None:
        notes.assumed("", "router: none is started here, so pdctl's own on port 8000")
        return {}
    kind = one.kind if one.kind in ROUTERS else RELEASED_ROUTER
    if kind != one.kind:
        what = "Dynamo's frontend" if one.kind == "dynamo" else f"frontend {one.kind}"
        notes.changed(one.place, f"{what}: SGLang's router takes its place, for pdctl starts SGLang by itself")
    found: Section = {"kind": kind}
    if one.command and kind == one.kind:
        found["command"] = list(one.command)
    _where(one, found, notes)
    _policies(one, kind, found, notes)
    rest = _router_args(one, kind, notes)
    if rest:
        found["args"] = rest
    return found


def _router_args(one: FoundRouter, kind: str, notes: Notes) -> dict[str, FlagValue]:
    """The flags that no key of `router` stands for, without discovery flags: a topology lists its servers itself."""
    known = routers.arguments(kind)
    found: dict[str, FlagValue] = {}
    for flag in one.flags.given:
        if flag.name in ROUTER_OWNED or flag.name == "prefill-bootstrap-ports" or DISCOVERY.fullmatch(flag.name):
            continue
        value = True if known.get(flag.name) == "" and bare(flag) else values(flag)
        if flag.name not in known:
            notes.suspect(flag.place or one.place, f"{flag}: {kind} has no such flag; left out")
        elif value is None:
            notes.left_out(flag.place or one.place, f"{flag}: nobody says what that is; {VARIABLE}")
        else:
            found[flag.name] = value
    return found


def _where(one: FoundRouter, found: Section, notes: Notes) -> None:
    host, port = one.flags.find("host"), one.flags.find("port")
    said = one.flags.text("host")
    if said:
        found["host"] = said
    elif host is not None:
        notes.left_out(host.place or one.place, f"{host}: nobody says what that is; {VARIABLE}")
    number = numerals.port(one.flags.text("port"))
    if number and number <= 65535:
        found["port"] = number
    elif port is not None:
        notes.left_out(port.place or one.place, f"{port}: port 8000 instead; {VARIABLE}")
    elif one.kind in ROUTERS and (usual := ROUTERS[one.kind].port):
        found["port"] = usual


def _policies(one: FoundRouter, kind: str, found: Section, notes: Notes) -> None:
    for name in ("policy", "prefill-policy", "decode-policy"):
        flag = one.flags.find(name)
        said = str(scalar(one.flags.text(name) or "")) or (ROUTERS[kind].default_policy if name == "policy" else "")
        if said and said in ROUTERS[kind].policies:
            found[name] = said
        elif flag is not None:
            notes.left_out(flag.place or one.place, f"{flag}: {kind} has no such policy")
