"""One schedule of forward passes, for every parallel shape: what each attention DP group computes in each of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pdctl.engine.config.checkpoint_config import ModelConfig
from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.model.forward_pass import ForwardBatch, SeqSlice, Share
from pdctl.engine.model.model_runner import ModelRunner
from pdctl.engine.model.parallel import Groups
from pdctl.layout.shape import Shape
from tests.engine.checkpoints import VOCAB

PAGE = 8
LONGEST = 64  # tokens of one sequence
SEQUENCES = 4
FEWEST_PAGES = 40  # of the pools that the ranks have room for


class Piece(NamedTuple):
    """Tokens [start, stop) of sequence `seq`."""

    seq: int
    start: int
    stop: int


Work = tuple[Piece, ...]
# What two groups do in each pass: alone, together, prefill beside decode, chunks, nothing.
PASSES: tuple[tuple[Work, Work], ...] = (
    ((Piece(0, 0, 21),), ()),
    ((Piece(0, 21, 33),), (Piece(1, 0, 9), Piece(2, 0, 5))),
    ((Piece(0, 33, 34),), (Piece(1, 9, 10), Piece(2, 5, 6))),
    ((), (Piece(1, 10, 11), Piece(2, 6, 7))),
    ((Piece(0, 34, 35), Piece(3, 0, 7)), (Piece(1, 11, 12),)),
    ((Piece(0, 35, 52), Piece(3, 7, 8)), (Piece(1, 12, 40), Piece(2, 7, 8))),
)


def make_runner(directory: Path, groups: Groups, layout: str = "layer-major") -> ModelRunner:
    config = ModelConfig.from_dir(directory)
    pages = 1 + SEQUENCES * LONGEST // PAGE
    geometry = KVPool.geometry_for(
        config, groups.attn_tp.size, PAGE, pages, torch.float32, layout, groups.pp.rank, groups.pp.size
    )
    pool = KVPool(geometry)
    torch.nn.init.uniform_(pool.rows, -50, 50)  # what is not written must not be read
    return ModelRunner(config, directory, pool, groups)


def run(runner: ModelRunner, groups: Groups) -> dict[Piece, torch.Tensor]:
    """The whole schedule; logits after each piece that this rank computes and knows the logits of."""
    found: dict[Piece, torch.Tensor] = {}
    for works in PASSES:
        for batch, work in _batches(works, groups):
            logits = runner.forward(batch)
            assert (logits is None) == (not groups.last_stage)
            if logits is not None:
                assert logits.shape == (len(work), VOCAB)
                found.update(zip(work, logits, strict=True))
    return found


def _batches(works: tuple[Work, Work], groups: Groups) -> list[tuple[ForwardBatch, Work]]:
    """Without attention DP one rank does what every group would, one after the other."""
    if groups.attn_dp.size == 1:
        return [(_batch(work), work) for work in works if work]
    shares = tuple(
        Share(sum(stop - start for _, start, stop in work), len(work), any(stop > start + 1 for _, start, stop in work))
        for work in (works[group % len(works)] if group < len(works) else () for group in range(groups.attn_dp.size))
    )
    own = works[groups.attn_dp.rank] if groups.attn_dp.rank < len(works) else ()
    return [(_batch(own, shares), own)]


def _batch(work: Work, shares: tuple[Share, ...] = ()) -> ForwardBatch:
    each = LONGEST // PAGE
    ids = [token for seq, start, stop in work for token in tokens(seq)[start:stop]]
    slices = [
        SeqSlice(np.arange(1 + seq * each, 1 + (seq + 1) * each, dtype=np.int32), start, stop - start)
        for seq, start, stop in work
    ]
    return ForwardBatch(ids, slices, shares)


def tokens(seq: int) -> list[int]:
    return np.random.default_rng(seq).integers(0, VOCAB, LONGEST).tolist()


class World(NamedTuple):
    """A shape of four ranks, and the kinds of checkpoint (tests/engine/checkpoints.py) it is tried on."""

    name: str
    shape: Shape
    kinds: tuple[str, ...]


RANKS = 4
WORLDS = (
    World("tp4 dp2", Shape(tp=4, dp=2, nnodes=1), ("gqa", "mla", "moe")),
    World("tp4 ep2", Shape(tp=4, ep=2, nnodes=1), ("mla", "moe")),
    World("tp2 pp2", Shape(tp=2, pp=2, nnodes=1), ("gqa", "mla", "moe")),
    World("tp2 dp2 ep2 pp2", Shape(tp=2, dp=2, ep=2, pp=2, nnodes=1), ("moe",)),
)
