"""Gloo with one network thread for all groups of a process, and one worker for each.

torch gives every group a device of its own, whose thread wakes up a hundred times a second whether there is work or
not: sixteen idle ranks of four groups each would cost as much as a busy core's twentieth.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch.distributed as dist

SHARED = "gloo_shared"
PLAIN = "gloo"


@lru_cache(maxsize=1)
def backend() -> str:
    """The name to give torch.distributed; plain gloo where this torch does not let its options be set."""
    kind: Any = getattr(dist, "ProcessGroupGloo", None)
    options: Any = getattr(kind, "_Options", None)
    if not all(hasattr(options, name) for name in ("_devices", "_threads", "_timeout")):
        return PLAIN
    devices: list[Any] = []

    def create(given: Any, _: object = None) -> object:  # noqa: ANN401  # torch names no type for it
        if not devices:
            devices.append(kind.create_default_device())
        chosen = options()
        chosen._devices, chosen._threads, chosen._timeout = devices, 1, given.timeout
        return kind(given.store, given.group_rank, given.group_size, chosen)

    dist.Backend.register_backend(SHARED, create, extended_api=True, devices=["cpu"])
    return SHARED
