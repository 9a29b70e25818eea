"""Which ranks of a prefill instance write into one decode rank, and whether the two fit at all.

The arithmetic is the layout's (sglang 0.5.23 CommonKVManager._resolve_rank_mapping); what this engine cannot move yet
is refused here, with both values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.disaggregation.bootstrap_wire import RankKey
from pdctl.layout import links

if TYPE_CHECKING:
    from pdctl.engine.disaggregation.bootstrap_wire import ParallelInfo
    from pdctl.engine.disaggregation.config import DisaggConfig


class MismatchError(ValueError):
    """A prefill and a decode that cannot serve one another."""


def check(config: DisaggConfig, info: ParallelInfo) -> None:
    """Raises MismatchError, in sglang 0.5.23's words where it has any."""
    if info.page_size is not None and info.page_size != config.page_size:
        raise MismatchError(
            f"Page size mismatch: prefill server has page_size={info.page_size}, but decode server has "
            f"page_size={config.page_size}. Both servers must use the same --page-size value."
        )
    if info.kv_cache_dtype is not None and info.kv_cache_dtype != config.kv_dtype:
        raise MismatchError(
            f"KV cache dtype mismatch: prefill server has kv_cache_dtype={info.kv_cache_dtype}, but decode server has "
            f"kv_cache_dtype={config.kv_dtype}. Both servers must use the same --kv-cache-dtype value."
        )
    if info.attn_tp_size != config.tp_size:
        raise MismatchError(
            f"Attention TP mismatch: prefill={info.attn_tp_size}, decode={config.tp_size}. "
            "This engine moves KV between equal attention TP sizes only."
        )
    if info.attn_cp_size != 1 or info.pp_size != config.pp_size:
        raise MismatchError(
            f"prefill has attn_cp_size={info.attn_cp_size} pp_size={info.pp_size}, "
            f"decode has attn_cp_size=1 pp_size={config.pp_size}; both must be equal"
        )


def targets(config: DisaggConfig, info: ParallelInfo) -> links.Targets:
    """For an `info` that passed `check`."""
    return links.targets(
        config.tp_size,
        info.attn_tp_size,
        config.tp_rank,
        mla=False,
        prefill_pp=info.pp_size,
        decode_pp=config.pp_size,
        decode_pp_rank=config.pp_rank,
        prefill_cp=info.attn_cp_size,
    )


def rank_keys(dp: int, found: links.Targets) -> tuple[RankKey, ...]:
    """Every rank to register with, within DP group `dp`, in the order SGLang contacts them."""
    return tuple(RankKey(dp, cp, tp, pp) for cp in found.cp_ranks for tp in found.tp_ranks for pp in found.pp_ranks)
