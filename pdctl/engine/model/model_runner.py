"""One rank's model over its KV pool: the call the scheduler makes each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from pdctl.engine.config.checkpoint_config import CheckpointError, ModelConfig
from pdctl.engine.model.attention import Step
from pdctl.engine.model.attention_layer import rotation_table
from pdctl.engine.model.decoder import Decoder, load
from pdctl.engine.model.forward_batch import ForwardBatch, SeqSlice
from pdctl.engine.model.linear import one_thread
from pdctl.engine.model.weights import Checkpoint, Shard
from pdctl.layout.shape import stage_layers

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.engine.kvcache.kv_pool import KVPool
    from pdctl.engine.model.parallel import Groups

__all__ = ["ForwardBatch", "ModelRunner", "SeqSlice", "resolve_dtype"]


def resolve_dtype(name: str, config: ModelConfig, device: torch.device | str) -> torch.dtype:
    """--dtype as torch's. `auto` is float32 on a CPU, where bfloat16 is slower; elsewhere the checkpoint's."""
    if name == "auto":
        name = "float32" if torch.device(device).type == "cpu" else config.dtype
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise CheckpointError(f"dtype {name!r} is not one the engine computes in", "use float32 or bfloat16")
    return dtype


class ModelRunner:
    """Loads this rank's slice of a checkpoint; `forward` writes K/V into `pool` and returns logits."""

    def __init__(
        self,
        config: ModelConfig,
        path: str | Path,
        pool: KVPool,
        groups: Groups,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.pool = pool
        self.groups = groups
        self.dtype = dtype
        self.device = torch.device(device)
        geometry = pool.geometry
        layers = stage_layers(config.layers, groups.pp.size, groups.pp.rank)
        if geometry.layers != len(layers):
            raise ValueError(f"a pool of {geometry.layers} layers for a stage that holds layers {list(layers)}")
        self._windows = [config.windows[layer] for layer in layers]
        positions = min(config.max_position, geometry.num_pages * geometry.page_size)
        with Checkpoint(path) as checkpoint, torch.inference_mode():
            weights = load(Shard(checkpoint, config, groups, dtype, self.device))
            rotations = rotation_table(config.rope, config.head_dim, positions, self.device)
        self.max_positions = positions
        self._decoder = Decoder(config, weights, rotations, groups, dtype)

    def forward(self, batch: ForwardBatch) -> torch.Tensor | None:
        """Logits after the last new token of each sequence: float32 [seqs, vocab]; None but on the last stage."""
        batch.check(self.pool.geometry.page_size)
        self._check_share(batch)
        if not batch.seqs:
            with torch.inference_mode(), one_thread():
                return self._decoder.idle(batch.shares)
        longest = max(seq.total_len for seq in batch.seqs)
        if longest > self.max_positions:
            raise ValueError(f"a sequence of {longest} tokens; this model and pool hold {self.max_positions}")
        with torch.inference_mode(), one_thread():
            token_ids = torch.from_numpy(np.asarray(batch.input_ids, dtype=np.int64)).to(self.device)
            step = Step(self.pool, batch.seqs, self.dtype, self._windows)
            return self._decoder.forward(token_ids, step, batch.shares)

    def _check_share(self, batch: ForwardBatch) -> None:
        """Groups that count differently would wait for each other for ever."""
        groups = self.groups.attn_dp
        if len(batch.shares) != (groups.size if groups.size > 1 else 0):
            raise ValueError(f"{len(batch.shares)} shares for {groups.size} attention DP groups")
        if batch.shares:
            tokens, seqs, _ = batch.shares[groups.rank]
            if (tokens, seqs) != (len(batch.input_ids), len(batch.seqs)):
                raise ValueError(
                    f"{len(batch.input_ids)} tokens of {len(batch.seqs)} sequences; the share of this attention DP "
                    f"group says {tokens} of {seqs}"
                )
