"""Which ranks of a prefill instance write into one decode rank (sglang 0.5.23 CommonKVManager._resolve_rank_mapping).

Equal attention TP only: rank e is served by rank e. Other shapes are refused here, with both values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.engine.disaggregation.bootstrap_wire import ParallelInfo
    from pdctl.engine.disaggregation.config import DisaggConfig


class MismatchError(ValueError):
    """A prefill and a decode that cannot serve one another."""


@dataclass(frozen=True, slots=True)
class RankTargets:
    """`tp_ranks` of the prefill to contact, and how many decode ranks each of them must hear from."""

    tp_ranks: tuple[int, ...]
    required_dst_info_num: int


def targets(config: DisaggConfig, info: ParallelInfo) -> RankTargets:
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
    return RankTargets((config.tp_rank,), 1)


def check(config: DisaggConfig, info: ParallelInfo) -> None:
    """Raises MismatchError in sglang 0.5.23's words when page size or KV dtype differ."""
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
    targets(config, info)
