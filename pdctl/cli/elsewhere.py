"""status, logs and down of a deployment that a Kubernetes cluster runs: asked for first, loaded only where one is."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from pdctl.launch import clusters
from pdctl.launch.state import home, load_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.launch.clusters import Cluster


INSTANCE = re.compile(r"(prefill|decode)(-\d+)?|router")


def find(name: str | None) -> Cluster | None:
    """The deployment called `name`; without a name the only one, where no run of this machine could be meant."""
    root = home(os.environ)
    if not (root / "clusters").is_dir():
        return None
    if name is not None:
        return clusters.find(root, name)
    known = clusters.load_all(root)
    alive = any(run.alive for run in load_all(root)[0]) if known else True
    return known[0] if len(known) == 1 and not alive else None


def meant(words: Sequence[str]) -> tuple[Cluster | None, Sequence[str]]:
    """The deployment and its instances; the first word may be an instance of the only one."""
    named = find(words[0]) if words else None
    if named is not None:
        return named, words[1:]
    return (find(None), words) if all(INSTANCE.fullmatch(word) for word in words) else (None, words)


def status(of: Cluster, as_json: bool, wait: bool, limit: float) -> None:
    from pdctl.cli import in_cluster

    in_cluster.status(of, as_json, wait, limit)


def logs(
    of: Cluster,
    instances: Sequence[str],
    follow: bool,
    tail: int | None,
    since: float | None,
    grep: str | None,
    raw: bool,
) -> None:
    from pdctl.cli import in_cluster

    in_cluster.logs(of, instances, follow, tail, since, grep, raw)


def down(of: Cluster, force: bool, limit: float) -> None:
    from pdctl.cli import in_cluster

    in_cluster.down(of, force, limit)


def fetched(of: Cluster) -> dict[str, str]:
    """The logs of its pods, copied here: path → instance."""
    from pdctl.launch.targets import kubernetes

    directory = home(os.environ) / "clusters" / f"{of.name}.logs"
    found = kubernetes.fetch_logs(kubernetes.open_kubectl(of, os.environ), of, directory)
    return {str(path): lane for path, lane in found.items()}
