"""Where a topology is launched to. A target is one file here behind one `Target` (target.py), and a row below."""

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
    """The topology as `place` would run it. Raises InfeasibleError with every problem; nothing is started."""
    if place is LaunchPlace.SLURM:  # late: a launch on this machine asks no cluster
        from pdctl.launch.targets.slurm import SlurmTarget

        return SlurmTarget(order)
    if place is LaunchPlace.KUBERNETES:
        from pdctl.launch.targets.kubernetes import KubernetesTarget

        return KubernetesTarget(order)
    from pdctl.launch.targets.local import LocalTarget

    return LocalTarget(order)
