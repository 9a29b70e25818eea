"""Pools of unequal shape: every pair of attention TP sizes, layouts and pipeline stages, byte for byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry
from pdctl.engine.transfer.transport import Cut, OpState, TransferError, Transport, pieces
from tests.engine.transfer.backends import BACKENDS
from tests.engine.transfer.cuts import DST, HEAD_DIM, HEADS, ITEMSIZE, PAGE_SIZE, PAGES, SRC, cells, shape
from tests.engine.transfer.far import FarPool, move, noise, open_pool

SIZES = (1, 2, 4)


def overlap(near_rank: int, near_tp: int, far_rank: int, far_tp: int) -> tuple[int, int, int] | None:
    """Heads both ranks hold, and where they begin in each; None where they share none."""
    near, far = HEADS // near_tp, HEADS // far_tp
    first, last = max(near_rank * near, far_rank * far), min((near_rank + 1) * near, (far_rank + 1) * far)
    return (last - first, first - near_rank * near, first - far_rank * far) if first < last else None


@dataclass(frozen=True)
class Rig:
    """One pair of processes for all shapes: each is a way to read the same bytes."""

    transport: Transport
    pool: np.ndarray
    far: FarPool

    def check(self, near: PoolGeometry, far: PoolGeometry, cut: Cut | None) -> None:
        before = self.far.content().copy()
        plan = self.transport.plan("far", near, far, cut)
        assert move(self.transport, plan, SRC, DST) == OpState.DONE
        part, source, wanted = plan.cut, cells(self.pool, near), cells(before, far)
        ours = source[part.local_slab :, :, :, part.local_head :][: part.slabs, SRC, :, : part.heads]
        wanted[part.remote_slab :, :, :, part.remote_head :][: part.slabs, DST, :, : part.heads] = ours
        assert np.array_equal(self.far.content(), before), (near, far, cut)
        assert plan.nbytes(len(SRC)) == ours.size


@pytest.fixture(scope="module", params=BACKENDS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    near, far = (shape(1, Layout.LAYER_MAJOR, count) for count in PAGES)
    other = FarPool(request.param, far)
    transport, pool = open_pool(request.param, near, seed=1)
    transport.add_peer("far", other.descriptor)
    yield Rig(transport, pool, other)
    transport.close()
    other.close()


@pytest.mark.parametrize(("near_tp", "far_tp"), list(itertools.product(SIZES, SIZES)))
def test_every_pair_of_attention_tp_sizes(rig: Rig, near_tp: int, far_tp: int) -> None:
    """Every prefill rank writes its share of the heads into every decode rank that holds some of them."""
    rng = np.random.default_rng(near_tp * 10 + far_tp)
    for near_layout, far_layout in itertools.product(Layout, Layout):
        near, far = shape(near_tp, near_layout, PAGES[0]), shape(far_tp, far_layout, PAGES[1])
        for near_rank, far_rank in itertools.product(range(near_tp), range(far_tp)):
            shared = overlap(near_rank, near_tp, far_rank, far_tp)
            if shared is not None:
                heads, here, there = shared
                rig.pool[:] = rng.integers(0, 256, rig.pool.size, dtype=np.uint8)
                slabs = near.num_slabs
                rig.check(near, far, Cut(slabs=slabs, heads=heads, local_head=here, remote_head=there))


@pytest.mark.parametrize("stages", [(1, 2), (2, 1), (4, 1), (4, 2)])
@pytest.mark.parametrize("tp", [(1, 1), (2, 1), (1, 2)])
def test_pipeline_stages_write_the_layers_both_hold(rig: Rig, stages: tuple[int, int], tp: tuple[int, int]) -> None:
    for near_layout, far_layout in itertools.product(Layout, Layout):
        near = shape(tp[0], near_layout, PAGES[0], pp=stages[0])
        far = shape(tp[1], far_layout, PAGES[1], pp=stages[1])
        heads = min(near.kv_heads, far.kv_heads)
        for here, there in itertools.product(range(stages[0]), range(stages[1])):
            first = max(here * near.num_slabs, there * far.num_slabs)
            last = min((here + 1) * near.num_slabs, (there + 1) * far.num_slabs)
            if first < last:
                rig.check(
                    near,
                    far,
                    Cut(
                        slabs=last - first,
                        heads=heads,
                        local_slab=first - here * near.num_slabs,
                        remote_slab=first - there * far.num_slabs,
                        local_head=near.kv_heads - heads,
                        remote_head=far.kv_heads - heads,
                    ),
                )


def test_mla_has_one_slab_per_layer(rig: Rig) -> None:
    for near_layout, far_layout in itertools.product(Layout, Layout):
        near, far = (shape(1, near_layout, PAGES[0], mla=True), shape(1, far_layout, PAGES[1], mla=True))
        rig.check(near, far, None)
        rig.check(near, far, Cut(slabs=2, heads=1, local_slab=2, remote_slab=1))


def test_a_cut_that_is_not_in_both_pools_is_refused(rig: Rig) -> None:
    near, far = shape(2, Layout.LAYER_MAJOR, PAGES[0]), shape(1, Layout.LAYER_MAJOR, PAGES[1])
    refused = (
        (Cut(slabs=8, heads=3), r"heads 0\.\.2 are not in the pool here \(2\)"),
        (Cut(slabs=8, heads=2, remote_head=3), r"heads 3\.\.4 are not in the pool on the peer \(4\)"),
        (Cut(slabs=8, heads=2, local_slab=1), r"slabs 1\.\.8 are not in the pool here \(8\)"),
        (Cut(slabs=8, heads=0), r"heads 0\.\.-1 are not in the pool here \(2\)"),
    )
    for cut, text in refused:
        with pytest.raises(TransferError, match=text):
            rig.transport.plan("far", near, far, cut)
    with pytest.raises(TransferError, match="kv_heads is 2 here and 4 on the peer"):
        rig.transport.plan("far", near, far)


def test_what_was_posted_is_counted(rig: Rig) -> None:
    """Descriptors: one per item where all heads move, or some in head-major; one per token, or one per page."""
    cases = (
        (Layout.LAYER_MAJOR, 4, 8),
        (Layout.LAYER_MAJOR, 2, 24),
        (Layout.PAGE_MAJOR, 4, 1),
        (Layout.HEAD_MAJOR, 4, 8),
        (Layout.HEAD_MAJOR, 2, 8),
    )
    for layout, heads, each in cases:
        near, far = shape(1, layout, PAGES[0]), shape(1, layout, PAGES[1])
        plan = rig.transport.plan("far", near, far, Cut(slabs=8, heads=heads))
        op = rig.transport.post(plan, SRC, DST)
        assert plan.per_page == each
        joined = pieces(near, far, plan.cut, SRC, DST)
        assert op.descriptors == (joined if rig.transport.name == "mooncake" else each * len(SRC))
        assert op.nbytes == len(SRC) * 8 * PAGE_SIZE * heads * HEAD_DIM * ITEMSIZE
        assert rig.transport.release(op) or rig.transport.poll(op) == OpState.RUNNING


def test_the_rig_can_tell_a_wrong_head(rig: Rig) -> None:
    near = shape(1, Layout.LAYER_MAJOR, PAGES[0])
    assert not np.array_equal(cells(rig.pool, near)[:, :, :, 0], cells(rig.pool, near)[:, :, :, 1])
    assert noise(64, 1).any()
