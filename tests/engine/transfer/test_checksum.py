"""Checksums of what moves: the same on both sides of every cut, and different wherever a byte is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry
from pdctl.engine.transfer.checksum import ChecksumTransport, Difference, Region
from pdctl.engine.transfer.fake import FakeTransport
from pdctl.engine.transfer.shm import ShmTransport
from pdctl.engine.transfer.transport import Cut, TransferError
from tests.engine.transfer.cuts import DST, PAGES, SRC, cells, shape
from tests.engine.transfer.far import noise


def opened(geometry: PoolGeometry, seed: int) -> tuple[ChecksumTransport, np.ndarray]:
    transport = ChecksumTransport(ShmTransport())
    memory = transport.allocate(geometry.nbytes)
    transport.register(memory)
    pool = np.frombuffer(memory, dtype=np.uint8)
    pool[:] = noise(geometry.nbytes, seed)
    return transport, pool


CUTS = [
    (1, 1, Cut(slabs=8, heads=4)),
    (2, 1, Cut(slabs=8, heads=2, remote_head=2)),
    (1, 4, Cut(slabs=4, heads=1, local_slab=2, remote_slab=4, local_head=3)),
]


@pytest.mark.parametrize(("near_tp", "far_tp", "cut"), CUTS)
def test_both_sides_agree_on_what_moved_whatever_their_layouts(near_tp: int, far_tp: int, cut: Cut) -> None:
    for near_layout, far_layout in itertools.product(Layout, Layout):
        near, far = shape(near_tp, near_layout, PAGES[0]), shape(far_tp, far_layout, PAGES[1])
        ours, _ = opened(near, 1)
        theirs, pool = opened(far, 2)
        ours.add_peer("far", theirs.descriptor())
        op = ours.post(ours.plan("far", near, far, cut), SRC, DST)
        region = Region.theirs(cut)
        assert len(op.sums) == 4 * len(SRC)
        assert theirs.compare(far, region, DST, op.sums) is None
        _assert_every_byte_counts(theirs, pool, far, region, op.sums)
        for transport in (ours, theirs):
            transport.close()


def _assert_every_byte_counts(
    transport: ChecksumTransport, pool: np.ndarray, geometry: PoolGeometry, region: Region, sums: bytes
) -> None:
    """One changed byte inside the region is found on its page, one outside is nobody's business."""
    every = cells(pool, geometry)
    slab, head = region.first_slab + region.slabs - 1, region.first_head + region.heads - 1
    for place, page in enumerate(DST.tolist()):
        every[slab, page, 1, head, 2] ^= 0x10
        found = transport.compare(geometry, region, DST, sums)
        assert found is not None
        assert found.place == place
        assert found.sent != found.found
        every[slab, page, 1, head, 2] ^= 0x10
    outside = sorted(set(range(geometry.num_pages)) - set(DST.tolist()))
    every[:, outside] ^= 0xFF
    if region.heads < geometry.kv_heads:
        every[:, :, :, (head + 1) % geometry.kv_heads] ^= 0xFF
    assert transport.compare(geometry, region, DST, sums) is None


def test_the_first_difference_is_told() -> None:
    geometry = shape(1, Layout.LAYER_MAJOR, PAGES[1])
    transport, pool = opened(geometry, 1)
    region, sums = Region(0, 8, 0, 4), transport.sums(geometry, Region(0, 8, 0, 4), DST)
    cells(pool, geometry)[0, DST[[1, 3]]] ^= 1
    now = transport.sums(geometry, region, DST)
    assert transport.compare(geometry, region, DST, sums.tobytes()) == Difference(1, int(sums[1]), int(now[1]))
    transport.close()


@pytest.mark.parametrize(
    "region", [Region(-1, 2, 0, 4), Region(0, 9, 0, 4), Region(0, 8, 1, 4), Region(0, 0, 0, 4), Region(0, 8, 0, 0)]
)
def test_a_part_that_is_not_in_the_pool_is_not_read(region: Region) -> None:
    geometry = shape(1, Layout.LAYER_MAJOR, PAGES[0])
    assert not region.inside(geometry)
    assert Region(0, 8, 0, 4).inside(geometry)


def test_a_pool_on_a_gpu_cannot_be_checked() -> None:
    class OnGpu:
        nbytes = 4096

        def data_ptr(self) -> int:
            return 1 << 40

        def get_device(self) -> int:
            return 0

    with pytest.raises(TransferError, match="needs a KV pool in host memory"):
        ChecksumTransport(FakeTransport()).register(OnGpu())
