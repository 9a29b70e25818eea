"""A rank's shape as it travels to the other side, which has to know whether the two fit and what goes where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from pdctl.layout.cuts import KvModel, Seat

if TYPE_CHECKING:
    from pdctl.engine.cache.geometry import PoolGeometry
    from pdctl.engine.disaggregation.config import DisaggConfig

Size = Annotated[int, Meta(ge=1, le=1 << 20)]
Index = Annotated[int, Meta(ge=0, lt=1 << 20)]
Name = Annotated[str, Meta(max_length=256)]


class RankShape(msgspec.Struct, frozen=True):
    """`num_layers` and `num_kv_heads` are the whole model's; MLA has one head. `dp_groups` counts either kind of DP."""

    model: Name
    num_layers: Size
    num_kv_heads: Size
    head_dim: Size
    mla: bool
    page_size: Size
    kv_dtype: Name
    attn_tp_size: Size
    attn_tp_rank: Index
    pp_size: Size
    pp_rank: Index
    dp_groups: Size

    @classmethod
    def of(cls, config: DisaggConfig, geometry: PoolGeometry) -> RankShape:
        mla = geometry.slabs_per_layer == 1
        heads = config.kv_heads or (1 if mla else geometry.kv_heads * config.attn_tp_size)
        return cls(
            model=config.model,
            num_layers=config.layers or geometry.layers * config.pp_size,
            num_kv_heads=1 if mla else heads,
            head_dim=geometry.head_dim,
            mla=mla,
            page_size=config.page_size,
            kv_dtype=config.kv_dtype,
            attn_tp_size=config.attn_tp_size,
            attn_tp_rank=config.attn_tp_rank,
            pp_size=config.pp_size,
            pp_rank=config.pp_rank,
            dp_groups=config.dp_groups,
        )

    @property
    def seat(self) -> Seat:
        return Seat(self.attn_tp_size, self.attn_tp_rank, self.pp_size, self.pp_rank)

    @property
    def kv_model(self) -> KvModel:
        return KvModel(self.num_layers, self.num_kv_heads, self.mla)

    @property
    def words(self) -> str:
        """Everything both sides must agree on, or must be able to bridge."""
        attention = "MLA" if self.mla else f"{self.num_kv_heads} KV heads"
        return (
            f"{self.model or 'model ?'}: {self.num_layers} layers, {attention}, head_dim={self.head_dim}, "
            f"{served(self.attn_tp_size, self.pp_size, self.dp_groups, self.page_size, self.kv_dtype)}"
        )


def room_page_bytes(decode: RankShape, geometry: PoolGeometry) -> int:
    """One page of a room over all ranks of the decode's group; `geometry` is any of theirs."""
    return decode.kv_model.written(decode.attn_tp_size) * geometry.page_size * geometry.head_dim * geometry.itemsize


def served(attn_tp: int, pp: int, dp: int, page_size: int | None, kv_dtype: str | None) -> str:
    """The part of a shape that a bootstrap server knows."""
    return f"attn_tp_size={attn_tp} pp_size={pp} dp_size={dp} page_size={page_size} kv_cache_dtype={kv_dtype}"
