"""Deployments that a Kubernetes cluster runs: where to ask about each. The cluster holds the truth about its pods.

$PDCTL_HOME/clusters/NAME.json, schema pdctl.cluster/1
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from pdctl.errors import PdctlError
from pdctl.launch.state import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "pdctl.cluster/1"


class Cluster(NamedTuple):
    """`pods`: how many each part has when all is well; `kinds`: the resources it is made of, as kubectl names them."""

    name: str
    namespace: str
    context: str | None
    flavour: str
    port: int
    created: float
    pods: Mapping[str, int]
    kinds: tuple[str, ...]

    @property
    def url(self) -> str:
        """Inside the cluster."""
        return f"http://{self.name}-router.{self.namespace}:{self.port}"

    @property
    def place(self) -> str:
        return f"{self.context}/{self.namespace}" if self.context else self.namespace


def save(root: Path, cluster: Cluster) -> None:
    file = _file(root, cluster.name)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"schema": SCHEMA, **cluster._asdict()}, indent=1) + "\n", encoding="utf-8")
    draft.replace(file)


def forget(root: Path, name: str) -> None:
    _file(root, name).unlink(missing_ok=True)


def find(root: Path, name: str) -> Cluster | None:
    file = _file(root, name)
    return _load(file) if file.exists() else None


def load_all(root: Path) -> tuple[Cluster, ...]:
    return tuple(_load(file) for file in sorted((root / "clusters").glob("*.json")))


def _file(root: Path, name: str) -> Path:
    return root / "clusters" / f"{check_name(name)}.json"


def _load(file: Path) -> Cluster:
    try:
        value: dict[str, Any] = json.loads(file.read_bytes())
        return Cluster(**{**{key: value[key] for key in Cluster._fields}, "kinds": tuple(value["kinds"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PdctlError(f"{file} cannot be read: {error}", f"rm {file}") from None
