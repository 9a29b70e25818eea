"""Which single change of the port settings ends every collision of a deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.layout.assembly import Bases, lay_out
from pdctl.layout.collisions import Claim, claims, collisions
from pdctl.layout.hosts import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.layout.assembly import Side
    from pdctl.layout.hosts import Site
    from pdctl.layout.instance import RouterPlan

SHOWN = 3


def moves(
    sides: Sequence[Side], bases: Bases, target: str, router: RouterPlan, sites: Mapping[str, Site] = NOWHERE
) -> tuple[str, ...]:
    """Up to three, as `--set` words; none where two changes would be needed."""
    found: list[str] = []
    for words, moved, port in _candidates(bases, router.port):
        wanted = claims(lay_out(sides, moved, target, sites))
        own = router._replace(port=port).ports
        wanted += [Claim(router.host_name, number, router.name, purpose) for number, purpose in own]
        if not collisions(wanted):
            found.append(words)
    return tuple(found[:SHOWN])


def _candidates(bases: Bases, port: int) -> Iterator[tuple[str, Bases, int]]:
    """The block's length first: that is what a short stride needs; then each base somewhere else."""
    if bases.stride < Bases().stride:
        yield f"--set ports.stride={Bases().stride}", bases._replace(stride=Bases().stride), port
    for step in (100, 1000, -1000, 10000, -10000):
        yield f"--set router.port={port + step}", bases, port + step
        yield f"--set ports.http={bases.http + step}", bases._replace(http=bases.http + step), port
        yield f"--set ports.bootstrap={bases.bootstrap + step}", bases._replace(bootstrap=bases.bootstrap + step), port
        yield f"--set ports.dist-init={bases.dist + step}", bases._replace(dist=bases.dist + step), port
