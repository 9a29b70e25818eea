"""Which prefill ranks every decode rank pulls KV from, and which heads each of them holds for it.

Source: `_resolve_rank_mapping` of sglang 0.5.13, 0.5.18 and 0.5.23; their executed answers are this module's tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.sglang.behaviour import DECODE_PULLS_FROM_EVERY_STAGE
from pdctl.engines.versions import NEWEST, Version

if TYPE_CHECKING:
    from pdctl.layout.shape import Shape


class Targets(NamedTuple):
    """The prefill ranks one decode rank registers with, within the DP group of its request.

    `tp_ranks` are attention TP ranks: the `real` ones send KV, the `dummy` ones only mark the room done.
    `pp_ranks` stand in the order they are contacted. A prefill rank sends when `required_dst_info_num` decode ranks
    have announced themselves; a decode rank is done after `required_prefill_response_num` answers.
    """

    tp_ranks: tuple[int, ...]
    real: tuple[int, ...]
    dummy: tuple[int, ...]
    required_dst_info_num: int
    required_prefill_response_num: int
    pp_ranks: tuple[int, ...] = (0,)
    cp_ranks: tuple[int, ...] = (0,)


def targets(
    decode_attn_tp: int,
    prefill_attn_tp: int,
    decode_rank: int,
    mla: bool,
    *,
    prefill_pp: int = 1,
    decode_pp: int = 1,
    decode_pp_rank: int = 0,
    prefill_cp: int = 1,
    all_cp_ranks: bool = False,
    version: Version = NEWEST,
) -> Targets:
    """Where the decode rank of attention TP rank `decode_rank` finds its KV; ValueError where SGLang pairs wrongly.

    `all_cp_ranks`: SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER is set on both sides.
    """
    wide, narrow = max(decode_attn_tp, prefill_attn_tp), min(decode_attn_tp, prefill_attn_tp)
    if wide % narrow:
        raise ValueError(
            f"attention TP {prefill_attn_tp} (prefill) and {decode_attn_tp} (decode): {wide} % {narrow} != 0"
        )
    if decode_pp not in (1, prefill_pp):
        raise ValueError(f"decode pp_size {decode_pp} is neither 1 nor the prefill's {prefill_pp}")
    rank = decode_rank % decode_attn_tp
    ratio = wide // narrow
    if decode_attn_tp >= prefill_attn_tp:
        ranks: tuple[int, ...] = (rank // ratio,)
        waits = ratio
    else:
        ranks = tuple(range(rank * ratio, (rank + 1) * ratio))
        waits = 1
    real = ranks[:1] if mla else ranks  # every rank of an MLA prefill holds the whole latent: one of them is enough
    cp_ranks = tuple(range(prefill_cp)) if all_cp_ranks else (0,)
    if DECODE_PULLS_FROM_EVERY_STAGE.holds(version):
        pp_ranks = tuple(range(prefill_pp))
    else:  # equal pipelines: stage to stage; one decode stage: every prefill stage, the last first
        pp_ranks = (decode_pp_rank,) if decode_pp == prefill_pp else tuple(reversed(range(prefill_pp)))
    return Targets(
        tp_ranks=ranks,
        real=real,
        dummy=tuple(other for other in ranks if other not in real),
        required_dst_info_num=waits,
        required_prefill_response_num=len(real) * (prefill_pp // decode_pp) * len(cp_ranks),
        pp_ranks=pp_ranks,
        cp_ranks=cp_ranks,
    )


class HeadSlice(NamedTuple):
    """`heads` consecutive KV heads from `source` in the prefill rank's own pool to `target` in the decode rank's."""

    prefill_rank: int
    source: int
    target: int
    heads: int


def held_heads(kv_heads: int, attn_tp: int, rank: int) -> range:
    """The KV heads one attention TP rank holds: its share, or one head several ranks hold alike."""
    if kv_heads % attn_tp and attn_tp % kv_heads:
        raise ValueError(f"{kv_heads} KV heads over attention TP {attn_tp}: neither divides the other")
    if attn_tp >= kv_heads:
        first = rank * kv_heads // attn_tp
        return range(first, first + 1)
    share = kv_heads // attn_tp
    return range(rank * share, (rank + 1) * share)


def head_slices(kv_heads: int, decode_attn_tp: int, prefill_attn_tp: int, decode_rank: int) -> tuple[HeadSlice, ...]:
    """What each real target of a GQA decode rank sends it. MLA has no heads to slice."""
    wanted = held_heads(kv_heads, decode_attn_tp, decode_rank % decode_attn_tp)
    slices: list[HeadSlice] = []
    for rank in targets(decode_attn_tp, prefill_attn_tp, decode_rank, mla=False).real:
        held = held_heads(kv_heads, prefill_attn_tp, rank)
        first, last = max(held.start, wanted.start), min(held.stop, wanted.stop)
        slices.append(HeadSlice(rank, first - held.start, first - wanted.start, last - first))
    return tuple(slices)


class Link(NamedTuple):
    """One decode rank's pull from one prefill instance; `prefill_ranks` includes the dummies.

    Ranks are attention TP ranks of the DP group serving the request, except `decode_rank`: the decode's tp_rank.
    """

    prefill: str
    decode: str
    decode_rank: int
    decode_attn_dp_rank: int
    decode_attn_tp_rank: int
    decode_pp_rank: int
    prefill_ranks: tuple[int, ...]
    dummy_ranks: tuple[int, ...]
    prefill_pp_ranks: tuple[int, ...]
    prefill_cp_ranks: tuple[int, ...]
    required_dst_info_num: int
    required_prefill_response_num: int
    slices: tuple[HeadSlice, ...] = ()  # of a GQA model that is known


def pull(
    prefill: str,
    decode: str,
    prefill_shape: Shape,
    decode_shape: Shape,
    *,
    mla: bool,
    kv_heads: int | None = None,
    all_cp_ranks: bool = False,
    version: Version = NEWEST,
) -> tuple[Link, ...]:
    """The links of one prefill × decode pair: one per rank of a decode replica (its replicas pull alike).

    `kv_heads` None: not known, so no head slices.
    """
    attn_tp = decode_shape.attn_tp_size
    links: list[Link] = []
    for pp_rank in range(decode_shape.pp):
        for tp_rank in range(decode_shape.tp):
            found = targets(
                attn_tp,
                prefill_shape.attn_tp_size,
                tp_rank % attn_tp,
                mla,
                prefill_pp=prefill_shape.pp,
                decode_pp=decode_shape.pp,
                decode_pp_rank=pp_rank,
                prefill_cp=prefill_shape.cp,
                all_cp_ranks=all_cp_ranks,
                version=version,
            )
            links.append(
                Link(
                    prefill,
                    decode,
                    tp_rank,
                    tp_rank // attn_tp,
                    tp_rank % attn_tp,
                    pp_rank,
                    found.tp_ranks,
                    found.dummy,
                    found.pp_ranks,
                    found.cp_ranks,
                    found.required_dst_info_num,
                    found.required_prefill_response_num,
                    head_slices(kv_heads, attn_tp, prefill_shape.attn_tp_size, tp_rank) if kv_heads and not mla else (),
                )
            )
    return tuple(links)
