"""A topology as it was written: what the rules look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.topology.model import Span, Topology


class Written(NamedTuple):
    """`keys`: where each key path's key stands. `broken`: the paths already reported; their rules keep silent."""

    topology: Topology
    keys: Mapping[str, Span]
    broken: frozenset[str]

    @property
    def spans(self) -> Mapping[str, Span]:
        """Where each key path's value stands; defaulted ones are absent."""
        return self.topology.spans

    def sound(self, *paths: str) -> bool:
        """Neither the paths nor anything around them was reported."""
        return not any(path == bad or path.startswith(f"{bad}.") for path in paths for bad in self.broken)
