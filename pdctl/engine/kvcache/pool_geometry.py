"""The shape of one rank's KV pool: where each page of each layer's K and V lies in one flat buffer.

Plain arithmetic, no torch: the pool, the transports and the handshake frames all use the same value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

SLABS_PER_LAYER = 2  # K and V; MLA has one


class Layout(str, Enum):
    """What is contiguous. Layer-major is SGLang's; page-major keeps one page of all layers together.

    Head-major is layer-major with the heads of an item one after the other instead of token by token, so that some of
    the heads are one contiguous piece (vLLM calls it HND, and the others NHD).
    """

    LAYER_MAJOR = "layer-major"
    PAGE_MAJOR = "page-major"
    HEAD_MAJOR = "head-major"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGeometry:
    """A pool of `num_pages` pages. Sizes in bytes unless named otherwise.

    A *slab* is one layer's K or V: slab = 2 * layer + (0 for K, 1 for V). With MLA a layer has one slab, its latents,
    of one KV head; a pipeline stage counts its own layers only. An *item* is one page of one slab. Page 0
    exists in memory but is never handed out: it is the target of writes that must land somewhere harmless.
    """

    layers: int
    slabs_per_layer: int = SLABS_PER_LAYER
    num_pages: int
    page_size: int  # tokens
    kv_heads: int  # this rank's share
    head_dim: int
    itemsize: int  # bytes of one number
    layout: Layout = Layout.LAYER_MAJOR

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", Layout(self.layout))
        for name in ("layers", "slabs_per_layer", "num_pages", "page_size", "kv_heads", "head_dim", "itemsize"):
            if getattr(self, name) < 1:
                raise ValueError(f"pool geometry: {name}={getattr(self, name)} must be at least 1")

    @property
    def num_slabs(self) -> int:
        return self.layers * self.slabs_per_layer

    @property
    def head_bytes(self) -> int:
        """One head of one token of one slab."""
        return self.head_dim * self.itemsize

    @property
    def token_bytes(self) -> int:
        """One token of one slab."""
        return self.kv_heads * self.head_bytes

    @property
    def item_bytes(self) -> int:
        return self.page_size * self.token_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers: the unit in which transfers are counted."""
        return self.num_slabs * self.item_bytes

    @property
    def slab_stride(self) -> int:
        if self.layout == Layout.PAGE_MAJOR:
            return self.item_bytes
        return self.num_pages * self.item_bytes

    @property
    def page_stride(self) -> int:
        if self.layout == Layout.PAGE_MAJOR:
            return self.page_bytes
        return self.item_bytes

    @property
    def token_stride(self) -> int:
        return self.head_bytes if self.layout == Layout.HEAD_MAJOR else self.token_bytes

    @property
    def head_stride(self) -> int:
        return self.page_size * self.head_bytes if self.layout == Layout.HEAD_MAJOR else self.head_bytes

    @property
    def nbytes(self) -> int:
        return self.num_pages * self.page_bytes

    def address(self, slab: int, page: int) -> int:
        """Offset of one item from the start of the pool."""
        return slab * self.slab_stride + page * self.page_stride
