"""The transports a test runs with, as far as they are installed, and what a pool holds after a transfer."""

from __future__ import annotations

import numpy as np
import pytest

from pdctl.engine.kvcache.pool_geometry import PoolGeometry
from pdctl.engine.transfer import mooncake, nixl
from tests.engine.transfer.far import item


def has_nixl() -> bool:
    try:
        nixl.load(cma_only=True)
    except ImportError:
        return False
    return True


def without_mooncake() -> str:
    """Why mooncake cannot be tested here; empty where it can."""
    try:
        mooncake.load()
    except ImportError as error:
        return str(error)
    return ""


BACKENDS = [
    "shm",
    pytest.param("mooncake", marks=pytest.mark.skipif(bool(without_mooncake()), reason=without_mooncake())),
    pytest.param("nixl", marks=pytest.mark.skipif(not has_nixl(), reason="no NIXL wheel for this platform")),
]


def expected_after(
    near: np.ndarray, far: np.ndarray, shapes: tuple[PoolGeometry, PoolGeometry], pairs: list[tuple[int, int]],
    slabs: range,
) -> np.ndarray:  # fmt: skip
    wanted = far.copy()
    for slab in slabs:
        for src, dst in pairs:
            item(wanted, shapes[1], slab, dst)[:] = item(near, shapes[0], slab, src)
    return wanted
