"""Which prefill ranks every decode rank pulls KV from, and what one of them writes into its pool: layers and heads."""

from __future__ import annotations

from pdctl.engines.sglang.behaviour import DECODE_PULLS_FROM_EVERY_STAGE
from pdctl.engines.versions import NEWEST, Version
from pdctl.layout.shape import Shape, stage_layers
from pdctl.quick_definitions import NamedTuple


class PullTargets(NamedTuple):
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
) -> PullTargets:
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
    return PullTargets(
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


class KvLink(NamedTuple):
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
) -> tuple[KvLink, ...]:
    """The links of one prefill × decode pair: one per rank of a decode replica (its replicas pull alike).

    `kv_heads` None: not known, so no head slices.
    """
    attn_tp = decode_shape.attn_tp_size
    links: list[KvLink] = []
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
                KvLink(
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


class PoolSeat(NamedTuple):
    """Where a rank stands within its DP group."""

    attn_tp: int = 1
    attn_tp_rank: int = 0
    pp: int = 1
    pp_rank: int = 0


class KvModel(NamedTuple):
    """A model's whole KV cache. With MLA every rank of a stage holds the same latent: one head, one slab a layer."""

    layers: int
    kv_heads: int
    mla: bool = False

    @property
    def slabs_per_layer(self) -> int:
        return 1 if self.mla else 2

    def written(self, decode_attn_tp: int) -> int:
        """Slabs times heads that one token costs over all ranks of a decode group: each fills a pool of its own."""
        copies = decode_attn_tp if self.mla else max(self.kv_heads, decode_attn_tp)
        return self.layers * self.slabs_per_layer * copies

    def heads(self, seat: PoolSeat) -> range:
        """The KV heads a rank holds. Raises ValueError where heads and attention TP do not divide."""
        return range(1) if self.mla else held_heads(self.kv_heads, seat.attn_tp, seat.attn_tp_rank)

    def slabs(self, seat: PoolSeat) -> range:
        """The slabs a rank holds, counted over the whole model."""
        held = stage_layers(self.layers, seat.pp, seat.pp_rank)
        return range(held.start * self.slabs_per_layer, held.stop * self.slabs_per_layer)


class KvPiece(NamedTuple):
    """`slabs` slabs and of each `heads` heads; the other numbers are where they start in either pool."""

    slabs: int
    heads: int
    local_slab: int
    remote_slab: int
    local_head: int
    remote_head: int


def find_targets(model: KvModel, prefill: PoolSeat, decode: PoolSeat) -> PullTargets:
    """Whom `decode` asks in an instance shaped like `prefill`. Raises ValueError where the shapes do not pair."""
    return targets(
        decode.attn_tp,
        prefill.attn_tp,
        decode.attn_tp_rank,
        model.mla,
        prefill_pp=prefill.pp,
        decode_pp=decode.pp,
        decode_pp_rank=decode.pp_rank,
    )


def piece(model: KvModel, prefill: PoolSeat, decode: PoolSeat) -> KvPiece | None:
    """What `prefill` writes into `decode`; None for a dummy, and for a rank whose share others already write.

    Prefill ranks that hold the same head share its slabs evenly: each byte travels once, over every rank's wire.
    """
    found = find_targets(model, prefill, decode)
    if prefill.attn_tp_rank not in found.real or prefill.pp_rank not in found.pp_ranks:
        return None
    held, wanted = model.heads(prefill), model.heads(decode)
    heads = _overlap(held, wanted)
    alike = [rank for rank in found.real if model.heads(prefill._replace(attn_tp_rank=rank)) == held]
    ours, theirs = model.slabs(prefill), model.slabs(decode)
    slabs = _share(_overlap(ours, theirs), len(alike), alike.index(prefill.attn_tp_rank))
    if not slabs or not heads:
        return None
    return KvPiece(
        slabs=len(slabs),
        heads=len(heads),
        local_slab=slabs.start - ours.start,
        remote_slab=slabs.start - theirs.start,
        local_head=heads.start - held.start,
        remote_head=heads.start - wanted.start,
    )


def speaks(model: KvModel, prefill: PoolSeat, decode: PoolSeat) -> bool:
    """Whether this prefill rank, of all that write into `decode`, sends the first token: the last stage makes it."""
    found = find_targets(model, prefill, decode)
    return prefill.attn_tp_rank == found.real[0] and prefill.pp_rank == max(found.pp_ranks)


def _overlap(one: range, two: range) -> range:
    return range(max(one.start, two.start), min(one.stop, two.stop))


def _share(whole: range, parts: int, index: int) -> range:
    return range(whole.start + len(whole) * index // parts, whole.start + len(whole) * (index + 1) // parts)
