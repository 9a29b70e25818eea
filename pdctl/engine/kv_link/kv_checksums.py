"""Whether a room's pages arrived as they were sent (--disaggregation-enable-kv-checksum on both sides)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.kv_link.kv_frames import MAX_FRAME, Checksums, pack_pages, unpack_pages
from pdctl.engine.transfer.checksum import ChecksumTransport, Region
from pdctl.engine.transfer.transport import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Op, Pages, TransferPlan, Transport

MOST_PAGES = MAX_FRAME // 16  # a frame has room for these with 8 bytes each; a longer room goes unchecked


def checker(transport: Transport) -> ChecksumTransport | None:
    return find(transport, ChecksumTransport)


def checksums(plan: TransferPlan, posted: Sequence[tuple[Pages, Op]]) -> Checksums | None:
    """What the decode is told of the pages written into it, in its order; None where nobody took checksums."""
    sums = b"".join(op.sums for _, op in posted)
    if not sums or len(sums) // 4 > MOST_PAGES:
        return None
    pages = b"".join(pack_pages(pages) for pages, _ in posted)
    region = Region.theirs(plan.cut)
    return Checksums(region.first_slab, region.slabs, region.first_head, region.heads, pages, sums)


def wrong(checker: ChecksumTransport, geometry: PoolGeometry, pages: Pages, sent: Checksums) -> str:
    """What is wrong with our `pages`, naming the first bad one on both sides; empty when nothing is."""
    region = Region(sent.first_slab, sent.slabs, sent.first_head, sent.heads)
    if not region.inside(geometry) or len(sent.sums) != 4 * len(pages) or len(sent.pages) != len(sent.sums):
        return f"KV checksums do not fit: {len(sent.sums) // 4} of them for {len(pages)} pages, {region}"
    found = checker.compare(geometry, region, pages, sent.sums)
    if found is None:
        return ""
    theirs, ours = int(unpack_pages(sent.pages)[found.place]), int(pages[found.place])
    return (
        f"KV checksum mismatch on page {found.place + 1} of {len(pages)}: prefill page {theirs} was sent with "
        f"{found.sent:#010x}, decode page {ours} holds {found.found:#010x}"
    )
