"""JSON bodies of the bootstrap server's routes, as sglang 0.5.23 speaks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

FOLLOW_ROOM = "follow_bootstrap_room"
EARLY = "early"  # sglang 0.5.23's only allocation policy we implement: decode reserves pages before the prefill runs

Size = Annotated[int, Meta(ge=1, le=1 << 20)]
Index = Annotated[int, Meta(ge=0, le=1 << 20)]
Port = Annotated[int, Meta(ge=1, le=65535)]
# sglang casts these two with int(): numbers written as strings are taken.
Word = Annotated[str, Meta(max_length=256)]
Numeric = int | Annotated[str, Meta(pattern=r"^\s*[0-9]{1,9}\s*$")]


class RankRow(msgspec.Struct, frozen=True):
    """PUT /route: one prefill rank. Unknown keys are ignored, as there."""

    attn_tp_size: Size
    attn_tp_rank: Index
    attn_cp_size: Size
    attn_cp_rank: Index
    attn_dp_size: Size
    attn_dp_rank: Index
    pp_size: Size
    pp_rank: Index
    system_dp_size: Size
    system_dp_rank: Index
    rank_ip: Word
    rank_port: Numeric
    page_size: Numeric
    kv_cache_dtype: Word | None
    load_balance_method: Word | None = FOLLOW_ROOM
    prefill_http_port: Numeric | None = None
    decode_allocation_policy: Word = EARLY
    enable_dsa_cache_layer_split: bool = False
    enable_kv_cache_sharding: bool = False
    kv_layout: Word | None = None
    dsv41_spec_layout: dict[str, Any] | None = None
    instance_id: Word | None = None  # this engine's: one life of one rank process

    @property
    def follows_room(self) -> bool:
        return self.load_balance_method == FOLLOW_ROOM

    @property
    def dp_size(self) -> int:
        return self.attn_dp_size if self.system_dp_size == 1 else self.system_dp_size

    @property
    def dp_group(self) -> int:
        return self.attn_dp_rank if self.system_dp_size == 1 else self.system_dp_rank

    @property
    def slot(self) -> tuple[int, int, int, int]:
        """The row's place in the table: DP group, attention CP rank, attention TP rank, PP rank."""
        return self.dp_group, self.attn_cp_rank, self.attn_tp_rank, self.pp_rank


class ParallelInfo(msgspec.Struct, frozen=True):
    """A prefill instance's shape: what a decode needs of the answer to the all -1 query. Newer keys are ignored."""

    attn_tp_size: Size
    attn_cp_size: Size
    dp_size: Size
    pp_size: Size
    page_size: Size | None = None
    kv_cache_dtype: Word | None = None
    follow_bootstrap_room: bool = True
    prefill_http_port: int | None = None


class RankEndpoint(msgspec.Struct, frozen=True):
    """`instance_id` is empty where the rank gave none (SGLang's)."""

    rank_ip: Word
    rank_port: Port
    instance_id: Word = ""


class RoomRank(msgspec.Struct, frozen=True):
    """POST /register_dp_rank. sglang casts both with int()."""

    bootstrap_room: int | Annotated[str, Meta(pattern=r"^\s*-?[0-9]{1,19}\s*$")]
    dp_rank: Numeric


class RoomQuery(msgspec.Struct, frozen=True):
    """POST /query_dp_ranks."""

    bootstrap_rooms: list[int | Annotated[str, Meta(pattern=r"^\s*-?[0-9]{1,19}\s*$")]]


@dataclass(frozen=True, slots=True)
class RankKey:
    """Which rank of a prefill instance; -1 everywhere asks for the instance's shape."""

    dp: int
    cp: int
    tp: int
    pp: int

    @property
    def query(self) -> str:
        return f"prefill_dp_rank={self.dp}&prefill_cp_rank={self.cp}&target_tp_rank={self.tp}&target_pp_rank={self.pp}"


SHAPE = RankKey(-1, -1, -1, -1)
