"""Records of the deployments that run on a Kubernetes cluster: where to ask about each. Pod state stays in the cluster.

$PDCTL_HOME/clusters/NAME.json, schema pdctl.cluster/1
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pdctl import user_files
from pdctl.errors import PdctlError
from pdctl.launch.run_choice import KNOWN
from pdctl.launch.run_choice import load_all as load_runs
from pdctl.launch.run_directory import check_name
from pdctl.launch.run_record import LARGEST
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pdctl.launch.kubectl import ClusterPod

SCHEMA = "pdctl.cluster/1"
INSTANCE = re.compile(r"(prefill|decode)(-\d+)?|router")


class Cluster(NamedTuple):
    """A deployment. `pods`: how many pods each part should have; `kinds`: its resource kinds, as kubectl names them."""

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
        """The router's URL inside the cluster."""
        return f"http://{self.name}-router.{self.namespace}:{self.port}"

    @property
    def place(self) -> str:
        return f"{self.context}/{self.namespace}" if self.context else self.namespace


class ClusterHealth(NamedTuple):
    """A deployment's pods. `missing`: one sentence for each thing that is missing; empty when everything is ready."""

    of: Cluster
    pods: tuple[ClusterPod, ...]
    missing: tuple[str, ...]

    @property
    def ready(self) -> bool:
        return not self.missing


def meant(root: Path, name: str | None) -> Cluster | None:
    """The deployment called `name`. Without a name: the only one, unless a live run on this machine could be meant."""
    if not (root / "clusters").is_dir():
        return None
    if name is not None:
        return find_cluster(root, name)
    known = load_all(root)
    alive = any(run.alive for run in load_runs(root)[0]) if known else True
    return known[0] if len(known) == 1 and not alive else None


def meant_by(root: Path, words: Sequence[str]) -> tuple[Cluster | None, Sequence[str]]:
    """The deployment and the instances named in `words`. The first word may be an instance of the only deployment."""
    named = meant(root, words[0]) if words else None
    if named is not None:
        return named, words[1:]
    return (meant(root, None), words) if all(INSTANCE.fullmatch(word) for word in words) else (None, words)


def save(root: Path, cluster: Cluster) -> None:
    file = _file(root, cluster.name)
    user_files.make_directories(file.parent, 0o700)
    user_files.write_whole(file, json.dumps({"schema": SCHEMA, **cluster._asdict()}, indent=1) + "\n")


def forget(root: Path, name: str) -> None:
    _file(root, name).unlink(missing_ok=True)


def find_cluster(root: Path, name: str) -> Cluster | None:
    if name.rpartition(".")[2].isdecimal():  # the name of an earlier run on this machine
        return None
    file = _file(root, name)
    return _load(file) if file.exists() else None


def load_all(root: Path) -> tuple[Cluster, ...]:
    return tuple(_load(file) for file in sorted((root / "clusters").glob("*.json")))


def _file(root: Path, name: str) -> Path:
    return root / "clusters" / f"{check_name(name, KNOWN)}.json"


def _load(file: Path) -> Cluster:
    try:
        value: dict[str, Any] = json.loads(user_files.read_regular(file, LARGEST))
        return Cluster(**{**{key: value[key] for key in Cluster._fields}, "kinds": tuple(value["kinds"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PdctlError(f"{file} cannot be read: {error}", f"rm {file}") from None
