"""A rank's shape; which prefill ranks write into one decode rank, and whether the two sides fit.

A decode first checks what the bootstrap server says (`check`); the prefill rank it registers with compares the rest
(`mismatch`). Both messages name both shapes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from pdctl.layout.kv_links import KvModel, PoolSeat, find_targets

if TYPE_CHECKING:
    from pdctl.engine.kv_link.bootstrap_client import ParallelInfo
    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.layout.kv_links import PullTargets

log = logging.getLogger("pdctl.engine")

Size = Annotated[int, Meta(ge=1, le=1 << 20)]
Index = Annotated[int, Meta(ge=0, lt=1 << 20)]
Name = Annotated[str, Meta(max_length=256)]
MAX_GROUP = 1024  # ranks of one DP group: a decode asks for, dials and registers with as many as an answer names
SGLANG_SENTENCES = ("Page size mismatch: ", "KV cache dtype mismatch: ")


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

    @property
    def seat(self) -> PoolSeat:
        return PoolSeat(self.attn_tp_size, self.attn_tp_rank, self.pp_size, self.pp_rank)

    @property
    def kv_model(self) -> KvModel:
        return KvModel(self.num_layers, self.num_kv_heads, self.mla)

    @property
    def words(self) -> str:
        """Everything both sides must agree on, or be able to convert."""
        attention = "MLA" if self.mla else f"{self.num_kv_heads} KV heads"
        return (
            f"{self.model or 'model ?'}: {self.num_layers} layers, {attention}, head_dim={self.head_dim}, "
            f"{served(self.attn_tp_size, self.pp_size, self.dp_groups, self.page_size, self.kv_dtype)}"
        )


def room_page_bytes(decode: RankShape, geometry: PoolGeometry) -> int:
    """Return the bytes of one page of a room over all ranks of the decode's group; `geometry` is any of theirs."""
    return decode.kv_model.written(decode.attn_tp_size) * geometry.page_size * geometry.head_dim * geometry.itemsize


def served(attn_tp: int, pp: int, dp: int, page_size: int | None, kv_dtype: str | None) -> str:
    """Return the part of a shape that a bootstrap server knows."""
    return f"attn_tp_size={attn_tp} pp_size={pp} dp_size={dp} page_size={page_size} kv_cache_dtype={kv_dtype}"


class MismatchError(ValueError):
    """A prefill and a decode that cannot work together."""


def log_mismatch(address: str, text: str) -> None:
    """Log a decode's line: sglang's own wording if there is one, so that log readers recognise it."""
    if text.startswith(SGLANG_SENTENCES):
        log.error("%s", text)
    else:
        log.error("Prefill %s cannot serve this decode: %s", address, text)


def find_writers(decode: RankShape, info: ParallelInfo) -> PullTargets:
    """Return the prefill ranks that write into this decode rank. Raise MismatchError with both shapes."""
    reason = _terms(info.page_size, decode.page_size, info.kv_cache_dtype, decode.kv_dtype)
    if not reason and info.attn_cp_size != 1:
        reason = f"Context parallelism: prefill has attn_cp_size={info.attn_cp_size}, this engine moves KV from 1 only"
    if not reason and info.attn_tp_size * info.pp_size > MAX_GROUP:
        reason = f"attn_tp_size={info.attn_tp_size} and pp_size={info.pp_size} are more than {MAX_GROUP} ranks"
    if not reason:
        try:
            return find_targets(decode.kv_model, PoolSeat(info.attn_tp_size, 0, info.pp_size, 0), decode.seat)
        except ValueError as error:
            reason = _describe_unpaired(info.attn_tp_size, info.pp_size, decode, error)
    theirs = served(info.attn_tp_size, info.pp_size, info.dp_size, info.page_size, info.kv_cache_dtype)
    raise MismatchError(both(reason, theirs, decode))


def mismatch(prefill: RankShape, decode: RankShape) -> str:
    """Return why this pair cannot work, with both shapes; empty if it can."""
    reason = _terms(prefill.page_size, decode.page_size, prefill.kv_dtype, decode.kv_dtype) or _models(prefill, decode)
    if not reason:
        try:
            find_targets(prefill.kv_model, prefill.seat, decode.seat)
        except ValueError as error:
            reason = _describe_unpaired(prefill.attn_tp_size, prefill.pp_size, decode, error)
    return both(reason, prefill.words, decode) if reason else ""


def _terms(page: int | None, our_page: int, dtype: str | None, our_dtype: str) -> str:
    """sglang 0.5.23's sentences, word for word."""
    if page is not None and page != our_page:
        return (
            f"Page size mismatch: prefill server has page_size={page}, but decode server has "
            f"page_size={our_page}. Both servers must use the same --page-size value."
        )
    if dtype is not None and dtype != our_dtype:
        return (
            f"KV cache dtype mismatch: prefill server has kv_cache_dtype={dtype}, but decode server has "
            f"kv_cache_dtype={our_dtype}. Both servers must use the same --kv-cache-dtype value."
        )
    return ""


def _models(prefill: RankShape, decode: RankShape) -> str:
    ours, theirs = ("MLA" if shape.mla else "GQA" for shape in (prefill, decode))
    if ours != theirs:
        return f"Attention mismatch: prefill has {ours}, decode has {theirs}. Both servers must serve the same model."
    for name in ("num_layers", "num_kv_heads", "head_dim", "model"):
        one, two = getattr(prefill, name), getattr(decode, name)
        if one != two:
            return f"Model mismatch: prefill has {name}={one}, decode has {name}={two}. Both must serve the same model."
    return ""


def _describe_unpaired(attn_tp: int, pp: int, decode: RankShape, error: ValueError) -> str:
    if pp != decode.pp_size and decode.pp_size != 1:
        return (
            f"Pipeline mismatch: prefill has pp_size={pp}, decode has pp_size={decode.pp_size}. "
            "A decode's --pp-size must be 1 or equal to the prefill's."
        )
    return (
        f"Attention TP mismatch: prefill has attn_tp_size={attn_tp}, decode has attn_tp_size={decode.attn_tp_size}. "
        f"The larger must be a multiple of the smaller ({error})."
    )


def both(reason: str, prefill: str, decode: RankShape) -> str:
    return f"{reason} Prefill: {prefill}. Decode: {decode.words}."
