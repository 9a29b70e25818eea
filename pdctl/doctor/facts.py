"""Everything one doctor run looked at, side by side. A check reads what it declares and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.catalogue.entry import Needs
    from pdctl.fleet.observations import (
        Bootstrap,
        Canary,
        Ended,
        Endpoint,
        Engine,
        HeldRequests,
        Host,
        Router,
        SignatureLine,
    )
    from pdctl.layout.instance_plan import Plan
    from pdctl.manifests.manifest import Manifest
    from pdctl.topology.model import Topology


class Depth(str, Enum):
    """How far doctor goes; each includes the ones before it."""

    STATIC = "static"
    LIVE = "live"
    CANARY = "canary"


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """Every field may be missing. None and () are told apart by `asked`: () of something asked for means there is none.

    asked: what this run was meant to look at; a check that needs anything else is skipped, not failed.
    queues, logs: read after the canaries, and from the logs of a run. logged: the instances whose logs were read.
    ended: processes of the run that are over, as its supervisor recorded it.
    Equal only to itself: what is read out of a Facts is remembered by its identity.
    """

    topology: Topology | None = None
    plan: Plan | None = None
    manifest: Manifest | None = None
    endpoints: tuple[Endpoint, ...] = ()
    engines: tuple[Engine, ...] = ()
    ended: tuple[Ended, ...] = ()
    bootstraps: tuple[Bootstrap, ...] = ()
    router: Router | None = None
    host: Host | None = None
    canaries: tuple[Canary, ...] = ()
    queues: tuple[HeldRequests, ...] = ()
    logs: tuple[SignatureLine, ...] = ()
    logged: tuple[str, ...] = ()
    depth: Depth = Depth.STATIC
    asked: tuple[Needs, ...] = ()
