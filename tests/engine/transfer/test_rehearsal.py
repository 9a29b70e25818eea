"""The transport that is slow on purpose, and the one its process does not survive: real bytes, real processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from pdctl.engine.transfer.base import OpState, TransferPlan
from pdctl.engine.transfer.rehearsal import RehearsedTransport
from tests.engine.transfer.far import PATIENCE, FarPool, geometry, item, move, open_pool, pair
from tests.engine.transfer.test_transports import BACKENDS

NEVER = 1e-6  # bytes a second: nothing arrives within anybody's patience
SRC, DST = np.array([1, 2, 3, 4], dtype=np.int32), np.array([9, 8, 7, 6], dtype=np.int32)


def survive() -> None:
    raise AssertionError("nobody was to end here")


@contextlib.contextmanager
def slow(backend: str, rate: float) -> Iterator[tuple[RehearsedTransport, np.ndarray, FarPool, TransferPlan]]:
    shape = geometry()
    with pair(backend, shape, shape) as (inner, pool, other, plan):
        yield RehearsedTransport(inner, rate, survive), pool, other, plan


def arrived(pool: np.ndarray, other: FarPool, count: int = 4) -> list[bool]:
    """Page by page, whether all of its slabs are on the far side."""
    shape, far = geometry(), other.content()
    return [
        all(
            np.array_equal(item(far, shape, slab, dst), item(pool, shape, slab, src)) for slab in range(shape.num_slabs)
        )
        for src, dst in zip(SRC[:count], DST[:count], strict=True)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rate", [0.0, 1e9])
def test_what_is_sent_arrives(backend: str, rate: float) -> None:
    with slow(backend, rate) as (transport, pool, other, plan):
        assert move(transport, plan, SRC, DST) == OpState.DONE
        assert all(arrived(pool, other))


def test_nothing_arrives_before_its_time() -> None:
    with slow("shm", NEVER) as (transport, pool, other, plan):
        op = transport.post(plan, SRC, DST)
        assert transport.poll(op) == op.state == OpState.RUNNING
        assert op.nbytes == plan.nbytes(4)
        assert not any(arrived(pool, other))
        assert transport.release(op)
        assert transport.poll(op) == OpState.FAILED


def test_a_peer_that_leaves_takes_what_was_on_the_wire_with_it() -> None:
    with slow("shm", NEVER) as (transport, _, _, plan):
        op = transport.post(plan, SRC, DST)
        transport.drop_peer("far")
        assert transport.poll(op) == OpState.FAILED
        assert op.error == "the peer is gone"


def test_it_passes_for_the_transport_it_slows_down() -> None:
    with slow("shm", NEVER) as (transport, _, _, plan):
        inner = transport.plan("far", geometry(), geometry())
        assert (transport.name, inner.cut) == ("shm", plan.cut)
        assert not transport.caps.sync_post
        assert transport.caps.same_host


def test_the_last_write_stops_half_way() -> None:
    shape = geometry()
    other = FarPool("shm", shape)
    try:
        _, pool = open_pool("shm", shape, seed=1)
        doomed = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(other.descriptor,))
        doomed.start()
        doomed.join(PATIENCE)
        assert doomed.exitcode == -signal.SIGKILL
        assert arrived(pool, other) == [True, True, False, False]
    finally:
        other.close()


def _write_and_die(descriptor: bytes) -> None:
    shape = geometry()
    inner, _ = open_pool("shm", shape, seed=1)
    transport = RehearsedTransport(inner, 0.0, lambda: os.kill(os.getpid(), signal.SIGKILL))
    transport.add_peer("far", descriptor)
    plan = transport.plan("far", shape, shape)
    transport.doomed = True
    transport.post(plan, SRC, DST)
