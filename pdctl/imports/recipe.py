"""Read a recipe of srt-slurm (srtctl): SGLang's flags by role, nodes and workers, and the cluster's settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines.kinds import RELEASED, RELEASED_ROUTER
from pdctl.errors import UsageError
from pdctl.imports.found import ROLES, Found, FoundEngine, FoundRouter
from pdctl.manifests.command_lines import ALIASES, Flag, Flags
from pdctl.manifests.lenient_yaml import documents, get, items, line, number, pairs, text
from pdctl.manifests.manifest import SaidSetting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from yaml.nodes import Node

    from pdctl.imports.found import Notes

TRUE = ("true", "yes", "on")
SWEPT = re.compile(r"\{\w+\}")  # one of several values that a sweep fills in
# The ports that srtctl gives to workers, counting up from these, and to the router.
HTTP, BOOTSTRAP, ROUTER = 6100, 7200, 8000
READ = ("health_check", "name", "model", "resources", "backend", "frontend", "slurm", "benchmark")
RESOURCES = (
    "gpu_type", "gpus_per_node", "prefill_nodes", "decode_nodes", "prefill_workers", "decode_workers",
    "gpus_per_prefill", "gpus_per_decode",
)  # fmt: skip
CLOCK = re.compile(r"(?:(\d{1,4})-)?(\d{1,6})(?::(\d{1,4}))?(?::(\d{1,4}))?")


def read(body: str, name: str, known: Mapping[str, str], notes: Notes) -> Found:
    """Read a recipe. `known`: values for what a sweep fills in. Raise UsageError if it has no prefill and decode."""
    document = next(documents(body, name), None)
    config = get(document, "backend", "sglang_config")
    if config is None:
        kind = text(get(document, "backend", "type"))
        what = f"its backend is {kind}" if kind else "it has no backend.sglang_config"
        raise UsageError(f"{name}: {what}, and only SGLang can be imported", "name a recipe of SGLang")
    if get(config, "prefill") is None or get(config, "decode") is None:
        raise UsageError(
            f"{name}:{line(config)}: it serves without disaggregation", "name a recipe with prefill and decode"
        )
    engines = tuple(_engine(document, role, name, known, notes) for role in ROLES)
    _left_out(document, name, notes)
    for key in ("path", "container"):
        said = get(document, "model", key)
        if said is not None and "/" not in (text(said) or ""):
            what = f"model.{key} {text(said)}: an alias in the cluster's own file; write what it is"
            notes.assumed(f"{name}:{line(said)}", what)
    return Found(engines, (_router(document, name, notes),), _sections(document, name, notes), "recipe")


def _engine(document: Node | None, role: str, file: str, known: Mapping[str, str], notes: Notes) -> FoundEngine:
    config = get(document, "backend", "sglang_config", role)
    resources = get(document, "resources")
    place = f"{file}:{line(config)}"
    given = [flag for key, value in pairs(config) if (flag := _flag(key, value, file, known)) is not None]
    if not any(flag.name == "model-path" for flag in given):
        path = get(document, "model", "path")
        given.append(Flag("model-path", (text(path) or "",), f"{file}:{line(path)}"))
    if not any(flag.name == "disaggregation-mode" for flag in given):
        given.append(Flag("disaggregation-mode", (role,), place))
    workers, nodes = number(get(resources, f"{role}_workers")), number(get(resources, f"{role}_nodes"))
    per_node = number(get(resources, "gpus_per_node")) or 8
    each = number(get(resources, f"gpus_per_{role}")) or per_node * max(nodes or 1, 1) // max(workers or 1, 1)
    flags = Flags(tuple(given))
    if flags.find("tp-size") is None:
        notes.assumed(place, f"tp {each} of a {role}: the GPUs of one worker")
        flags = Flags((*flags.given, Flag("tp-size", (str(max(each, 1)),), place)))
    environment = get(document, "backend", f"{role}_environment")
    return FoundEngine(
        role=role,
        kind="dynamo" if _frontend(document) == "dynamo" else RELEASED,
        flags=flags,
        env={key: SaidSetting(key, text(value), line(value)) for key, value in pairs(environment)},
        place=place,
        group=role,
        copies=workers,
        gpus=min(per_node, max(each, 1)),
        nodes=max(1, -(-each // per_node)),
        image=text(get(document, "model", "container")) or "",
    )


def _frontend(document: Node | None) -> str:
    return text(get(document, "frontend", "type")) or "dynamo"


def _flag(key: str, value: Node, file: str, known: Mapping[str, str]) -> Flag | None:
    """A flag as srtctl writes it: `true` without a value, `false` and null not at all."""
    name = key.replace("_", "-")
    name = ALIASES.get(name, name)
    said = text(value)
    if value.tag == "tag:yaml.org,2002:bool":
        return Flag(name, (), f"{file}:{line(value)}") if (said or "").lower() in TRUE else None
    if said is None and not items(value):
        return None
    if SWEPT.fullmatch(said or ""):
        swept = (said or "")[1:-1]
        return Flag(name, (known.get(swept, f"${{{swept}}}"),), f"{file}:{line(value)}")
    values = tuple(text(each) or "" for each in items(value)) or ((said,) if said is not None else ())
    return Flag(name, values, f"{file}:{line(value)}")


def _router(document: Node | None, file: str, notes: Notes) -> FoundRouter:
    frontend = get(document, "frontend")
    kind = _frontend(document)
    place = f"{file}:{line(frontend) or 1}"
    given = [_flag(key, value, file, {}) for key, value in pairs(get(frontend, "args"))]
    flags = tuple(flag for flag in given if flag is not None and kind != "dynamo")
    for key, value in pairs(get(frontend, "env")):
        notes.left_out(f"{file}:{line(value)}", f"variable {key} of the frontend: pdctl gives its router none")
    for key in ("enable_multiple_frontends", "num_additional_frontends", "nginx_container"):
        said = get(frontend, key)
        if said is not None and text(said) not in ("false", "0"):
            notes.left_out(f"{file}:{line(said)}", f"{key}: pdctl starts one router")
    return FoundRouter(
        RELEASED_ROUTER if kind == RELEASED else kind, Flags((*flags, Flag("port", (str(ROUTER),), place))), {}, place
    )


def _sections(document: Node | None, file: str, notes: Notes) -> dict[str, object]:
    slurm: dict[str, object] = {}
    for key, value in pairs(get(document, "slurm")):
        said = text(value) or ""
        if key == "time_limit" and (seconds := duration(said)) is not None:
            slurm["time"] = f"{seconds}s" if seconds % 60 else f"{seconds // 60}m"
        elif key in ("partition", "account") and said:
            slurm[key] = said
        else:
            notes.left_out(f"{file}:{line(value)}", f"slurm.{key}")
    found: dict[str, object] = {"name": text(get(document, "name")), "slurm": slurm}
    found["gpu"] = text(get(document, "resources", "gpu_type"))
    found["gpus-per-host"] = number(get(document, "resources", "gpus_per_node"))
    benchmark = get(document, "benchmark")
    isl, osl = number(get(benchmark, "isl")), number(get(benchmark, "osl"))
    if isl and osl:
        found["workload"] = {"isl": isl, "osl": osl}
    health = get(document, "health_check")
    tries, pause = number(get(health, "max_attempts")), number(get(health, "interval_seconds"))
    if tries and pause:
        found["readiness"] = {"timeout": f"{min(tries * pause, 10**6)}s"}
    return found


def duration(said: str) -> int | None:
    """Slurm's duration in seconds, from M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for any other text."""
    found = CLOCK.fullmatch(said)
    if found is None:
        return None
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[1] is not None or found[4] is not None:
        return ((days * 24 + first) * 60 + second) * 60 + third
    return first * 60 + second


def _left_out(document: Node | None, file: str, notes: Notes) -> None:
    for key, value in _unread(document):
        notes.left_out(f"{file}:{line(value)}", f"`{key}`: pdctl has no such setting")


def _unread(document: Node | None) -> Iterator[tuple[str, Node]]:
    for key, value in pairs(document):
        if key not in READ:
            yield key, value
    for key, value in pairs(get(document, "resources")):
        if key not in RESOURCES:
            yield f"resources.{key}", value
    for key, value in pairs(get(document, "backend")):
        if key not in ("type", "sglang_config", *(f"{role}_environment" for role in ROLES)):
            yield f"backend.{key}", value
