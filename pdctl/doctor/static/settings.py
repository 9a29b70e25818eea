"""Environment variables that their reader ignores, refuses or never sees, and such that undo each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.doctor.check import finding
from pdctl.doctor.static.question import written
from pdctl.engines.environment import lint
from pdctl.engines.versions import NEWEST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.finding import Finding
    from pdctl.doctor.static.servers import Servers


def wrong(servers: Servers) -> Iterator[Finding]:
    for side in servers.sides:
        if side.engine == "embedded":
            continue
        env = {name: said.value for name, said in side.env.items() if said.value is not None and "$" not in said.value}
        for remark in lint(env, side.version or NEWEST):
            names = remark.names or (remark.name,)
            evidence = [side.env[name].evidence for name in names if name in side.env]
            yield finding("PD416", side.name, remark.message, remark.expected, evidence, fix=remark.fix)


CHECKS = (written("PD416", wrong, embedded=False),)
