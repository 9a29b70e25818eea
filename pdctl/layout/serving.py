"""What the instances of a role are started with beyond shape, place and ports, and the command line of each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.versions import NEWEST, Version
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from pdctl.layout.shape import Shape
    from pdctl.topology.model import FlagValue


ROLE_SWITCH = "enable-pd-role-switch"

Pairs = tuple[tuple[str, str], ...]
Flags = tuple[tuple[str, "FlagValue"], ...]


class NodeCommand(NamedTuple):
    node: int
    argv: tuple[str, ...]
    env: Pairs = ()


class Serving(NamedTuple):
    """What every instance of a role is started with, beyond its shape and its place."""

    kind: str  # embedded | sglang
    role: str  # prefill | decode
    model_path: str
    version: Version = NEWEST
    command: tuple[str, ...] = ()  # empty: the engine's own
    served_name: str | None = None
    bind: str = "127.0.0.1"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    context_length: int | None = None
    page_size: int | None = None
    mem_fraction: float | None = None
    backend: str | None = None
    ib_devices: tuple[str, ...] = ()
    args: Flags = ()
    env: Pairs = ()
    peer: Shape | None = None  # the other role's shape: until sglang 0.5.13 each side is told the other's widths
    gpu_flags: bool = True  # False: no GPUs to choose from
    pace: str | None = None  # embedded: name or file of a cost profile
    traceable: bool = True  # sglang: log what trace-room reads, publish metrics

    @property
    def may_switch(self) -> bool:
        """Whether its role may change while it runs: a decode then has a bootstrap server too."""
        return dict(self.args).get(ROLE_SWITCH) is True
