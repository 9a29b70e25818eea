"""The write its process does not survive: real bytes, a real process, a real SIGKILL."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from pdctl.engine.drill.fault_points import Armed, kill, read
from pdctl.engine.drill.kv_faults import FaultyTransport
from pdctl.engine.transfer.fake import FakeTransport
from pdctl.engine.transfer.transport import OpState, Transport, TransportWrapper, find_layer
from tests.engine.processes import started
from tests.engine.transfer.backends import BACKENDS
from tests.engine.transfer.far import PATIENCE, FarPool, geometry, item, move, open_pool, pair

SRC, DST = np.array([1, 2, 3, 4], dtype=np.int32), np.array([9, 8, 7, 6], dtype=np.int32)


def doom(inner: Transport) -> FaultyTransport:
    return FaultyTransport(inner, Armed(read("end:prefill.write@after=0"), 0))


def arrived(pool: np.ndarray, other: FarPool) -> list[bool]:
    """Page by page, whether all of its slabs are on the far side."""
    shape, far = geometry(), other.content()
    return [
        all(
            np.array_equal(item(far, shape, slab, dst), item(pool, shape, slab, src)) for slab in range(shape.num_slabs)
        )
        for src, dst in zip(SRC, DST, strict=True)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_until_then_what_is_sent_arrives(backend: str) -> None:
    with pair(backend, geometry(), geometry()) as (inner, pool, other, plan):
        assert move(doom(inner), plan, SRC, DST) == OpState.DONE
        assert all(arrived(pool, other))


def test_the_last_write_stops_half_way() -> None:
    shape = geometry()
    other = FarPool("shm", shape)
    try:
        _, pool = open_pool("shm", shape, seed=1)
        doomed = started(_write_and_die, other.descriptor)
        doomed.join(PATIENCE)
        assert doomed.exitcode == -signal.SIGKILL
        assert arrived(pool, other) == [True, True, False, False]
    finally:
        other.close()


def _write_and_die(descriptor: bytes) -> None:
    shape = geometry()
    inner, _ = open_pool("shm", shape, seed=1)
    transport = doom(inner)
    transport.add_peer("far", descriptor)
    plan = transport.plan("far", shape, shape)
    transport.breaks_off = kill
    transport.post(plan, SRC, DST)


def test_it_is_found_whatever_is_around_it() -> None:
    inner = FakeTransport()
    doomed = doom(inner)
    assert find_layer(TransportWrapper(TransportWrapper(doomed)), FaultyTransport) is doomed
    assert find_layer(doomed, FaultyTransport) is doomed
    assert find_layer(TransportWrapper(inner), FaultyTransport) is None
