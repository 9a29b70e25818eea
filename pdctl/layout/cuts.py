"""What one prefill rank writes into one decode rank's pool: which layers, which heads, and where they lie there.

A pool is a row of slabs (a layer's K, a layer's V; one slab a layer with MLA), each of the rank's own KV heads.
Together the prefill ranks of a decode rank's `links.targets` fill its pool exactly once.
"""

from __future__ import annotations

from typing import NamedTuple

from pdctl.layout import links
from pdctl.layout.stages import stage_layers


class Seat(NamedTuple):
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

    def heads(self, seat: Seat) -> range:
        """The KV heads a rank holds. Raises ValueError where heads and attention TP do not divide."""
        return range(1) if self.mla else links.held_heads(self.kv_heads, seat.attn_tp, seat.attn_tp_rank)

    def slabs(self, seat: Seat) -> range:
        """The slabs a rank holds, counted over the whole model."""
        held = stage_layers(self.layers, seat.pp, seat.pp_rank)
        return range(held.start * self.slabs_per_layer, held.stop * self.slabs_per_layer)


class Piece(NamedTuple):
    """`slabs` slabs and of each `heads` heads; the other numbers are where they start in either pool."""

    slabs: int
    heads: int
    local_slab: int
    remote_slab: int
    local_head: int
    remote_head: int


def find_targets(model: KvModel, prefill: Seat, decode: Seat) -> links.Targets:
    """Whom `decode` asks in an instance shaped like `prefill`. Raises ValueError where the shapes do not pair."""
    return links.targets(
        decode.attn_tp,
        prefill.attn_tp,
        decode.attn_tp_rank,
        model.mla,
        prefill_pp=prefill.pp,
        decode_pp=decode.pp,
        decode_pp_rank=decode.pp_rank,
    )


def piece(model: KvModel, prefill: Seat, decode: Seat) -> Piece | None:
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
    return Piece(
        slabs=len(slabs),
        heads=len(heads),
        local_slab=slabs.start - ours.start,
        remote_slab=slabs.start - theirs.start,
        local_head=heads.start - held.start,
        remote_head=heads.start - wanted.start,
    )


def speaks(model: KvModel, prefill: Seat, decode: Seat) -> bool:
    """Whether this prefill rank, of all that write into `decode`, sends the first token: the last stage makes it."""
    found = find_targets(model, prefill, decode)
    return prefill.attn_tp_rank == found.real[0] and prefill.pp_rank == max(found.pp_ranks)


def _overlap(one: range, two: range) -> range:
    return range(max(one.start, two.start), min(one.stop, two.stop))


def _share(whole: range, parts: int, index: int) -> range:
    return range(whole.start + len(whole) * index // parts, whole.start + len(whole) * (index + 1) // parts)
