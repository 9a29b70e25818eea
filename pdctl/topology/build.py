"""From checked values to the Topology: the defaults that depend on other keys, then the frozen classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdctl import package_data
from pdctl.engines.kinds import EMBEDDED, ROUTERS
from pdctl.topology.checked_values import Values, defaults
from pdctl.topology.model import (
    Engine,
    Ignore,
    Local,
    Model,
    Pool,
    Ports,
    Readiness,
    Role,
    Router,
    Security,
    Slo,
    SourceSpan,
    Targets,
    Topology,
    Transfer,
    Workload,
)
from pdctl.topology.schema import POOL, RESTART
from pdctl.topology.yaml_parser import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Mapping

SHIPPED = ("tiny", "tiny-moe")  # they come with pdctl and go by their bare names


def complete(values: Values, spans: Mapping[str, SourceSpan], source: str, environ: Mapping[str, str]) -> None:
    """Fill in the defaults that depend on other keys."""
    values["version"] = values["version"] or ""
    values["name"] = values["name"] or _label(Path(source).stem)
    values["pools"] = values["pools"] or {"default": defaults(POOL)}
    _model(values, spans, environ)
    engine = values["engine"]
    if engine["pace"]:
        is_file = engine["pace"].endswith(SUFFIXES)  # else a profile that ships
        engine["pace"] = _located(engine["pace"], spans.get("engine.pace"), environ, always=is_file)
    security = values["security"]
    if security["api-key-file"]:
        place = spans.get("security.api-key-file")
        security["api-key-file"] = _located(security["api-key-file"], place, environ, always=True)
    for pool in values["pools"].values():
        nic = pool["nic"]
        nic["count"] = nic["count"] or max(len(nic["devices"]), 1)
    only = next(iter(values["pools"])) if len(values["pools"]) == 1 else "default"
    for role in values["roles"].values():
        role["pool"] = role["pool"] or only
    readiness = values["readiness"]
    if not isinstance(readiness["restart"], dict):
        readiness["restart"] = {**defaults(RESTART), "policy": readiness["restart"] or "keep-serving"}
    targets = values["targets"]
    clustered = targets["slurm"] or targets["kubernetes"]
    router = values["router"]
    router["host"] = router["host"] or ("0.0.0.0" if clustered else "127.0.0.1")
    policies = ROUTERS[router["kind"]].policies
    if len(policies) == 1 and "router.policy" not in spans:
        router["policy"] = policies[0]


def build(values: Values, spans: Mapping[str, SourceSpan], source: str) -> Topology:
    readiness, targets = values["readiness"], values["targets"]
    transfer = {
        **values["transfer"],
        "backend": None if values["transfer"]["backend"] == "auto" else values["transfer"]["backend"],
    }
    restart = readiness["restart"]
    return Topology(
        version=values["version"],
        name=values["name"],
        source=source,
        model=Model(**_snake(values["model"])),
        engine=Engine(**values["engine"]),
        pools=tuple(_pool(name, pool) for name, pool in values["pools"].items()),
        prefill=Role(name="prefill", **_snake(values["roles"]["prefill"])),
        decode=Role(name="decode", **_snake(values["roles"]["decode"])),
        router=Router(**_snake(values["router"])),
        transfer=Transfer(**_snake(transfer)),
        ports=Ports(**_snake(values["ports"])),
        readiness=Readiness(
            timeout=readiness["timeout"],
            interval=readiness["interval"],
            path=readiness["path"],
            restart=restart["policy"],
            max_restarts=restart["max"],
            backoff=restart["backoff"],
            backoff_max=restart["backoff-max"],
            logs_dir=readiness["logs"]["dir"],
        ),
        security=Security(**_snake(values["security"])),
        workload=Workload(**values["workload"]) if values["workload"] and values["workload"]["isl"] else None,
        slo=Slo(**values["slo"]) if values["slo"] else None,
        ignored=tuple(Ignore(**entry) for entry in values["doctor"]["ignore"]),
        targets=Targets(Local(**targets["local"]), targets["slurm"] or {}, targets["kubernetes"] or {}),
        spans=spans,
    )


def _pool(name: str, values: Values) -> Pool:
    nic = {f"nic_{key}": value for key, value in values["nic"].items()}
    return Pool(name=name, **nic, **_snake({key: value for key, value in values.items() if key != "nic"}))


def _snake(values: Values) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in values.items()}


def _model(values: Values, spans: Mapping[str, SourceSpan], environ: Mapping[str, str]) -> None:
    model = values["model"]
    name = model["path"] or "tiny"
    if values["engine"]["kind"] == EMBEDDED and name in SHIPPED:
        # A plan reads only its config.json; whoever starts an engine unpacks the weights.
        model["path"] = str(package_data.unpack(package_data.location(f"checkpoints/{name}"), ".safetensors"))
    elif model["path"]:
        model["path"] = _located(model["path"], spans.get("model.path"), environ, always=False)
    model["path"] = model["path"] or ""
    if model["config"]:
        model["config"] = _located(model["config"], spans.get("model.config"), environ, always=True)
    directory = model["path"].startswith("/")
    model["served-name"] = model["served-name"] or (Path(model["path"]).name if directory else model["path"])


def _located(path: str, span: SourceSpan | None, environ: Mapping[str, str], always: bool) -> str:
    """A relative path starts from the file it is written in; `org/name` is a Hugging Face id unless `always` a file."""
    if path.startswith("~/") and environ.get("HOME"):
        return environ["HOME"] + path[1:]
    if not always and not path.startswith(("./", "../")) and path not in (".", ".."):
        return path
    written_in = Path(span.file).parent if span is not None else Path()
    return str((written_in / path).resolve())


def _label(stem: str) -> str:
    """A file's name as a DNS label, which the run's name must be."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in stem.lower())
    return kept.strip("-")[:63].strip("-") or "topology"
