"""The targets to launch to. Each is one file here that implements `Target` (target.py), and an entry below."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.launch.targets.target import LaunchOrder, Target


class LaunchPlace(str, Enum):
    LOCAL = "local"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


def prepare(place: LaunchPlace, order: LaunchOrder) -> Target:
    """The topology as `place` would run it; nothing is started. Raise InfeasibleError with every problem."""
    if place is LaunchPlace.SLURM:  # imported late: only a launch on a cluster needs it
        from pdctl.launch.targets.slurm import SlurmTarget

        return SlurmTarget(order)
    if place is LaunchPlace.KUBERNETES:
        from pdctl.launch.targets.kubernetes import KubernetesTarget

        return KubernetesTarget(order)
    from pdctl.launch.targets.local import LocalTarget

    return LocalTarget(order)
