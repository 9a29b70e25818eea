"""Which ranks of a prefill instance write into one decode rank, and whether the two fit at all.

A decode first sees what the bootstrap server tells (`check`); the rest is compared by the prefill rank it registers
with (`mismatch`). Either way both shapes are in the sentence.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pdctl.engine.disaggregation.bootstrap_wire import RankKey
from pdctl.engine.disaggregation.rank_shape import RankShape, served
from pdctl.layout.cuts import Seat, find_targets

if TYPE_CHECKING:
    from pdctl.engine.disaggregation.bootstrap_wire import ParallelInfo
    from pdctl.layout.links import Targets


log = logging.getLogger("pdctl.engine")

MAX_GROUP = 1024  # ranks of one DP group: a decode asks for, dials and registers with as many as an answer says
SGLANG_SENTENCES = ("Page size mismatch: ", "KV cache dtype mismatch: ")


class MismatchError(ValueError):
    """A prefill and a decode that cannot serve one another."""


def log_mismatch(address: str, text: str) -> None:
    """A decode's line: sglang's own where it has one, so that its readers know it."""
    if text.startswith(SGLANG_SENTENCES):
        log.error("%s", text)
    else:
        log.error("Prefill %s cannot serve this decode: %s", address, text)


def check(decode: RankShape, info: ParallelInfo) -> Targets:
    """The prefill ranks that write into this decode rank. Raises MismatchError with both shapes."""
    reason = _terms(info.page_size, decode.page_size, info.kv_cache_dtype, decode.kv_dtype)
    if not reason and info.attn_cp_size != 1:
        reason = f"Context parallelism: prefill has attn_cp_size={info.attn_cp_size}, this engine moves KV from 1 only"
    if not reason and info.attn_tp_size * info.pp_size > MAX_GROUP:
        reason = f"attn_tp_size={info.attn_tp_size} and pp_size={info.pp_size} are more than {MAX_GROUP} ranks"
    if not reason:
        try:
            return find_targets(decode.kv_model, Seat(info.attn_tp_size, 0, info.pp_size, 0), decode.seat)
        except ValueError as error:
            reason = _unpaired(info.attn_tp_size, info.pp_size, decode, error)
    theirs = served(info.attn_tp_size, info.pp_size, info.dp_size, info.page_size, info.kv_cache_dtype)
    raise MismatchError(both(reason, theirs, decode))


def mismatch(prefill: RankShape, decode: RankShape) -> str:
    """Why this pair cannot work, with both shapes; empty when it can."""
    reason = _terms(prefill.page_size, decode.page_size, prefill.kv_dtype, decode.kv_dtype) or _models(prefill, decode)
    if not reason:
        try:
            find_targets(prefill.kv_model, prefill.seat, decode.seat)
        except ValueError as error:
            reason = _unpaired(prefill.attn_tp_size, prefill.pp_size, decode, error)
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


def _unpaired(attn_tp: int, pp: int, decode: RankShape, error: ValueError) -> str:
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


def rank_keys(dp: int, found: Targets) -> tuple[RankKey, ...]:
    """Every rank to register with, within DP group `dp`, in the order SGLang contacts them."""
    return tuple(RankKey(dp, cp, tp, pp) for cp in found.cp_ranks for tp in found.tp_ranks for pp in found.pp_ranks)


def leader_key(dp: int) -> RankKey:
    """The rank of DP group `dp` whose word the prefill's client hears."""
    return RankKey(dp, 0, 0, 0)
