"""Real bytes between two OS processes, byte for byte, over every transport this machine has."""

from __future__ import annotations

import numpy as np
import pytest

from pdctl.engine.kvcache.pool_geometry import Layout
from pdctl.engine.transfer import select
from pdctl.engine.transfer.fake import FakeTransport
from pdctl.engine.transfer.transport import Cut, OpState, TransferError
from tests.engine.transfer.backends import BACKENDS, expected_after
from tests.engine.transfer.far import FarPool, geometry, move, noise, open_pool, pair, wait_for

LAYER, PAGE = Layout.LAYER_MAJOR, Layout.PAGE_MAJOR


@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_arrive_and_nothing_else_changes(backend: str) -> None:
    """All four pairs of layouts, pools of different size, contiguous and scattered lists, chunk after chunk."""
    rng = np.random.default_rng(7)
    for near_layout, far_layout in ((LAYER, LAYER), (PAGE, PAGE), (LAYER, PAGE), (PAGE, LAYER)):
        near, far = geometry(near_layout, 24), geometry(far_layout, 37)
        with pair(backend, near, far) as (transport, pool, other, plan):
            wanted = noise(far.nbytes, 2)
            for count in (1, 5, 16):
                start = int(rng.integers(1, near.num_pages - count))
                contiguous = np.arange(start, start + count, dtype=np.int32)
                scattered = rng.permutation(np.arange(1, near.num_pages))[:count].astype(np.int32)
                for src in (contiguous, scattered):
                    dst = rng.permutation(np.arange(1, far.num_pages))[:count].astype(np.int32)
                    dst = np.sort(dst) if src is contiguous else dst
                    assert move(transport, plan, src, dst) == OpState.DONE
                    pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
                    wanted = expected_after(pool, wanted, (near, far), pairs, range(near.num_slabs))
            assert np.array_equal(other.content(), wanted), (near_layout, far_layout)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plan_for_some_slabs_moves_only_those(backend: str) -> None:
    near, far = geometry(LAYER), geometry(PAGE)
    src, dst = np.array([3, 4], dtype=np.int32), np.array([9, 1], dtype=np.int32)
    with pair(backend, near, far) as (transport, pool, other, _):
        plan = transport.plan("far", near, far, cut=Cut(slabs=2, heads=near.kv_heads, local_slab=2, remote_slab=2))
        assert plan.nbytes(2) == 4 * near.item_bytes
        assert move(transport, plan, src, dst) == OpState.DONE
        wanted = expected_after(pool, noise(far.nbytes, 2), (near, far), [(3, 9), (4, 1)], range(2, 4))
        assert np.array_equal(other.content(), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_thousands_of_pieces_arrive(backend: str) -> None:
    """More than one batch of a transport that takes so many at a time: no two pages are neighbours."""
    shape = geometry(num_pages=800, head_dim=2)
    src, dst = np.arange(1, 799, 2, dtype=np.int32), np.arange(798, 0, -2, dtype=np.int32)
    with pair(backend, shape, shape) as (transport, pool, other, plan):
        assert move(transport, plan, src, dst) == OpState.DONE
        pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
        wanted = expected_after(pool, noise(shape.nbytes, 2), (shape, shape), pairs, range(shape.num_slabs))
        assert np.array_equal(other.content(), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_list_is_done_at_once(backend: str) -> None:
    with pair(backend, geometry(), geometry()) as (transport, _, other, plan):
        none = np.empty(0, dtype=np.int32)
        assert move(transport, plan, none, none) == OpState.DONE
        assert np.array_equal(other.content(), noise(geometry().nbytes, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_peer_fails_the_next_post_and_a_new_one_works(backend: str) -> None:
    shape = geometry()
    src = np.array([1, 2, 3], dtype=np.int32)
    with pair(backend, shape, shape) as (transport, pool, other, plan):
        assert move(transport, plan, src, src) == OpState.DONE
        other.kill()
        assert move(transport, plan, src, src) == OpState.FAILED
        transport.drop_peer("far")
        successor = FarPool(backend, shape)
        try:
            transport.add_peer("next", successor.descriptor)
            assert move(transport, transport.plan("next", shape, shape), src, src) == OpState.DONE
            wanted = expected_after(pool, noise(shape.nbytes, 2), (shape, shape), [(i, i) for i in (1, 2, 3)], range(6))
            assert np.array_equal(successor.content(), wanted)
        finally:
            successor.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_peer_killed_while_bytes_move_ends_every_op(backend: str) -> None:
    """Posts go on until one fails: none may hang, and this process survives."""
    shape = geometry(num_pages=512, layers=8, head_dim=64)
    everything = np.arange(512, dtype=np.int32)
    with pair(backend, shape, shape) as (transport, _, other, plan):
        assert move(transport, plan, everything, everything) == OpState.DONE
        other.process.kill()
        wait_for("failed op", lambda: move(transport, plan, everything, everything) == OpState.FAILED)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_does_not_fit_is_refused_with_both_values(backend: str) -> None:
    shape = geometry()
    with pair(backend, shape, shape) as (transport, _, other, _):
        with pytest.raises(TransferError, match="layers is 3 here and 4 on the peer"):
            transport.plan("far", shape, geometry(layers=4))
        with pytest.raises(TransferError, match="head_dim is 8 here and 16 on the peer"):
            transport.plan("far", shape, geometry(head_dim=16))
        with pytest.raises(TransferError, match="smaller than its geometry says"):
            transport.plan("far", shape, geometry(num_pages=999))
        with pytest.raises(TransferError, match="was never added"):
            transport.plan("nobody", shape, shape)
        with pytest.raises(TransferError, match="peer odd"):
            transport.add_peer("odd", b"\x00garbage")
        with pytest.raises(TransferError, match="already has a pool"):
            transport.allocate(4096)
        assert np.array_equal(other.content(), noise(shape.nbytes, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_connections_of_one_process_are_independent(backend: str) -> None:
    """A connection that is given up must not take the process's other one with it."""
    shape = geometry()
    src = np.array([1, 5], dtype=np.int32)
    with pair(backend, shape, shape) as (transport, _, other, plan):
        transport.add_peer("again", other.descriptor)
        second = transport.plan("again", shape, shape)
        transport.drop_peer("far")
        assert move(transport, second, src, src) == OpState.DONE
        transport.drop_peer("again")
        transport.add_peer("third", other.descriptor)
        assert move(transport, transport.plan("third", shape, shape), src, src) == OpState.DONE
        assert plan.peer == "far"


def test_fake_checks_pages_and_moves_nothing() -> None:
    transport, shape = FakeTransport(), geometry()
    transport.register(transport.allocate(shape.nbytes))
    transport.add_peer("far", transport.descriptor())
    plan = transport.plan("far", shape, shape)
    assert move(transport, plan, np.array([1], dtype=np.int32), np.array([2], dtype=np.int32)) == OpState.DONE
    with pytest.raises(TransferError, match="outside the pool"):
        transport.post(plan, np.array([99], dtype=np.int32), np.array([1], dtype=np.int32))
    with pytest.raises(TransferError, match="does not use the fake transport"):
        transport.add_peer("other", b"nixl")
    transport.close()


def test_closing_twice_and_closing_unused_are_harmless() -> None:
    for backend in ("shm", "fake"):
        unused = select.create(backend, "127.0.0.1")
        unused.close()
        transport, _ = open_pool(backend, geometry(), 1)
        transport.close()
        transport.close()
