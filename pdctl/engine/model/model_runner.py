"""One rank's model over its KV pool: the call the scheduler makes each step, token ids in, logits out.

Each layer is an attention (attention_layer.py) and an MLP (mlp.py). Attention is split over attn_tp, the MLP over tp,
layers over pp; hidden states go from pipeline stage to pipeline stage within a forward pass.

From logits to tokens: greedy directly, sampling by inverse transform so that a seed and a position determine the token.
The random number of a seeded row depends on its seed and on how many tokens it has produced, never on its batch; and
every TP rank, given the same logits, picks the same token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from pdctl.engine.config.checkpoint_config import CheckpointError, ModelConfig
from pdctl.engine.model.attention_layer import GroupedQuery, LatentAttention, rotation_table
from pdctl.engine.model.forward_pass import AttentionStep
from pdctl.engine.model.linear import norm_floor, one_thread, padded, unit_rows
from pdctl.engine.model.mlp import Experts, GatedMlp
from pdctl.engine.model.parallel import Gathering
from pdctl.engine.model.weights import Checkpoint, Shard
from pdctl.layout.shape import stage_layers
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pdctl.engine.ipc.messages import Sampling
    from pdctl.engine.kvcache.kv_pool import KVPool
    from pdctl.engine.model.forward_pass import ForwardBatch, Share
    from pdctl.engine.model.linear import Linear
    from pdctl.engine.model.parallel import Group, Groups


EMBEDDING = "model.embed_tokens.weight"


def resolve_dtype(name: str, config: ModelConfig, device: torch.device | str) -> torch.dtype:
    """Return --dtype as torch's. `auto` is float32 on a CPU, where bfloat16 is slower; elsewhere the checkpoint's."""
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
        """Return logits after each sequence's last new token: float32 [seqs, vocab]; None except on the last stage."""
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
            step = AttentionStep(self.pool, batch.seqs, self.dtype, self._windows)
            return self._decoder.forward(token_ids, step, batch.shares)

    def _check_share(self, batch: ForwardBatch) -> None:
        """Check our group's share against the batch: groups that count differently would wait for ever."""
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


class Decoder:
    """Holds one rank's rearranged weights; keeps no state between steps."""

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, rotations: torch.Tensor, groups: Groups, dtype: torch.dtype
    ) -> None:
        """`rotations` is [positions, rotated numbers / 2], complex (attention_layer.py)."""
        self._vocab = config.vocab
        self._hidden = config.hidden
        self._weights = weights
        self._rotations = rotations
        self._groups = groups
        self._dtype = dtype
        self._floor = norm_floor(config.hidden, config.rms_eps, rotations.device)

    def forward(
        self, token_ids: torch.Tensor, step: AttentionStep, shares: Sequence[Share] = ()
    ) -> torch.Tensor | None:
        """Return logits after each sequence's last new token: float32 [seqs, vocab]; None except on the last stage."""
        groups, tokens = self._groups, len(token_ids)
        whole, short = self._gatherings(shares)
        # In the last layer, the other tokens only fill the cache: their part of its MLP is not computed.
        last = self._weights.layers[-1] if groups.last_stage else None
        x = self._enter(token_ids)
        rotation = self._rotations[step.positions].unsqueeze(1)
        for layer in self._weights.layers:
            attention = layer.attention
            query = attention.query(x, rotation, step)
            if layer is last and not step.decode_only:
                rows = step.last_tokens
                x, attended = padded(x[rows]), attention.attend_last(query[rows], step)
            else:
                attended = attention.attend(query, step)
            x = _add_product(x, padded(attended.flatten(1)), attention.out, groups.attn_tp)
            x = self._mlp(layer.mlp, x, len(attended), short if layer is last else whole)
        if self._weights.lm_head is None:
            groups.pp.send(x[:tokens], groups.pp.rank + 1)
            return None
        logits = self._weights.lm_head.product(unit_rows(x, self._floor))
        return groups.attn_tp.all_gather_last(logits)[: step.num_seqs, : self._vocab].float()

    def idle(self, shares: Sequence[Share]) -> torch.Tensor | None:
        """Do a pass in which this attention DP group has no tokens: its part of the other groups' MLPs."""
        whole, short = self._gatherings(shares)
        nothing = torch.zeros(0, self._hidden, dtype=self._dtype, device=self._rotations.device)
        last = self._weights.layers[-1] if self._groups.last_stage else None
        for layer in self._weights.layers:
            self._mlp(layer.mlp, nothing, 0, short if layer is last else whole)
        return nothing.new_zeros(0, self._vocab, dtype=torch.float32) if self._groups.last_stage else None

    def _enter(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the hidden states before this stage's first layer."""
        if self._weights.embedding is not None:
            return padded(F.embedding(token_ids, self._weights.embedding))
        pp = self._groups.pp
        x = torch.empty(len(token_ids), self._hidden, dtype=self._dtype, device=token_ids.device)
        return padded(pp.receive(x, pp.rank - 1))

    def _gatherings(self, shares: Sequence[Share]) -> tuple[Gathering | None, Gathering | None]:
        """Return what the MLPs gather: every token, but in the model's last layer only each sequence's last token."""
        if not shares:
            return None, None
        group, device = self._groups.attn_dp, self._rotations.device
        return (
            Gathering(group, [share.tokens for share in shares], device),
            Gathering(group, [share.seqs for share in shares], device),
        )

    def _mlp(self, mlp: GatedMlp | Experts, x: torch.Tensor, count: int, gathering: Gathering | None) -> torch.Tensor:
        """Return x + MLP; `count` rows of x are tokens."""
        tp = self._groups.tp
        unit = unit_rows(x, self._floor)
        if tp.size == 1:
            return mlp.add_to(x, unit, count)
        if gathering is None:
            return tp.all_reduce(mlp.partial(unit, count)).add_(x)
        partial = mlp.partial(gathering.collect(unit), gathering.total)
        x[:count] += gathering.own(tp.all_reduce(partial))
        return x


def _add_product(residual: torch.Tensor, rows: torch.Tensor, linear: Linear, group: Group) -> torch.Tensor:
    """Return residual + product, when each rank of `group` holds some of the columns that are summed over."""
    if group.size == 1:
        return linear.add_product(residual, rows)
    return group.all_reduce(linear.product(rows)).add_(residual)


class Layer(NamedTuple):
    attention: GroupedQuery | LatentAttention
    mlp: GatedMlp | Experts


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The weights of one pipeline stage. Only the first has the embedding, only the last the head."""

    embedding: torch.Tensor | None  # [vocab, hidden]: whole on every rank, because a lookup needs no sum over ranks
    layers: tuple[Layer, ...]
    lm_head: Linear | None  # [vocabulary rows of this rank, hidden]


def load(shard: Shard) -> ModelWeights:
    """Read the weights of the rank of `shard`; the checkpoint is not needed afterwards."""
    config, groups = shard.config, shard.groups
    numbers = stage_layers(config.layers, groups.pp.size, groups.pp.rank)
    return ModelWeights(
        _embedding(shard) if groups.first_stage else None,
        tuple(_layer(shard, index, number) for index, number in enumerate(numbers)),
        _lm_head(shard) if groups.last_stage else None,
    )


def _layer(shard: Shard, index: int, number: int) -> Layer:
    """`index` counts layers within the stage, `number` within the model."""
    latent, prefix = shard.config.latent, f"model.layers.{number}."
    attention = LatentAttention(shard, index, prefix, latent) if latent else GroupedQuery(shard, index, prefix)
    return Layer(attention, _mlp(shard, number, prefix + "mlp.", prefix + "post_attention_layernorm.weight"))


def _mlp(shard: Shard, number: int, prefix: str, norm: str) -> GatedMlp | Experts:
    config, tp = shard.config, shard.groups.tp
    if config.mixture and config.sparse[number]:
        return Experts.load(shard, config.mixture, prefix, norm)
    return GatedMlp.load(shard, prefix, norm, config.intermediate, tp.rank, tp.size)


def _embedding(shard: Shard) -> torch.Tensor:
    # A copy: safetensors returns a view of the file itself, which may be overwritten while we serve.
    return shard.checkpoint.tensor(EMBEDDING).to(device=shard.device, dtype=shard.dtype, copy=True)


def _lm_head(shard: Shard) -> Linear:
    attn_tp, vocab = shard.groups.attn_tp, shard.config.vocab
    # The same count on every rank, as an all-gather requires; the last rank pads with zeros.
    count = -(-vocab // attn_tp.size)
    start = attn_tp.rank * count
    rows = shard.checkpoint.part(
        EMBEDDING if shard.config.tie_embeddings else "lm_head.weight", 0, start, min(start + count, vocab)
    )
    padding = count - rows.shape[0]
    if padding:
        rows = torch.cat((rows, rows.new_zeros(padding, rows.shape[1])))
    return shard.folded(rows, "model.norm.weight")


_MASK64 = (1 << 64) - 1
# For callers without a stream of their own. It starts alike in every process, so TP ranks, which sample in step, agree.
_UNSEEDED = np.random.default_rng(1)


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How to sample one row of the logits; penalties look at the ids.

    `ends` are the tokens that may not come before `min_new_tokens` tokens have been produced (sglang 0.5.23:
    BatchedMinNewTokensPenalizer).
    """

    sampling: Sampling
    input_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()
    return_logprob: bool = False
    top_logprobs_num: int = 0
    ends: Sequence[int] = ()

    @property
    def greedy(self) -> bool:
        return self.sampling.temperature <= 0 or self.sampling.top_k == 1

    @property
    def penalised(self) -> bool:
        sampling = self.sampling
        repeats = sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1.0
        return bool(repeats or self.early)

    @property
    def early(self) -> bool:
        """Whether the answer may not end with this token."""
        return bool(self.ends) and len(self.output_ids) < self.sampling.min_new_tokens


@dataclass(frozen=True, slots=True)
class Sampled:
    """One entry per row. `logprobs` is NaN and `top_logprobs` empty if none were asked for."""

    ids: npt.NDArray[np.int64]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[list[tuple[int, float]], ...]


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow], unseeded: np.random.Generator | None = None) -> Sampled:
    """Sample the next token of each row of `logits`, float32 [rows, vocab]. `logits` is not changed."""
    logits = _penalise(logits, rows)
    drawn = [index for index, row in enumerate(rows) if not row.greedy]
    ids = logits.argmax(dim=-1).cpu().numpy()
    if drawn:
        chosen = rows if len(drawn) == len(rows) else [rows[index] for index in drawn]
        ids[drawn] = _draw(logits[drawn], chosen, unseeded or _UNSEEDED)
    if any(row.return_logprob for row in rows):
        return _with_logprobs(logits, rows, ids)
    nothing: tuple[list[tuple[int, float]], ...] = tuple([] for _ in rows)
    return Sampled(ids, (math.nan,) * len(rows), nothing)


def _penalise(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Apply penalties: frequency and presence to the output, repetition to prompt and output (sglang, the papers)."""
    if not any(row.penalised for row in rows):
        return logits
    logits = logits.clone()
    for line, row in zip(logits, rows, strict=True):
        if not row.penalised:
            continue
        sampling = row.sampling
        if row.output_ids:
            counts = torch.bincount(torch.tensor(row.output_ids), minlength=len(line)).to(line)
            line -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
        if sampling.repetition_penalty != 1.0:
            seen = torch.tensor(sorted({*row.input_ids, *row.output_ids}), dtype=torch.int64, device=line.device)
            value = line[seen]
            line[seen] = torch.where(
                value > 0, value / sampling.repetition_penalty, value * sampling.repetition_penalty
            )
        if row.early:
            line[[token for token in row.ends if token < len(line)]] = -math.inf
    return logits


def _draw(logits: torch.Tensor, rows: Sequence[SamplingRow], unseeded: np.random.Generator) -> npt.NDArray[np.int64]:
    """Apply top-k, then top-p, then min-p to the sorted distribution, and invert its cumulative sum."""

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device).unsqueeze(1)

    scaled = logits / column([row.sampling.temperature for row in rows])
    probs, order = torch.softmax(scaled.double(), dim=-1).sort(dim=-1, descending=True, stable=True)
    vocab = probs.shape[-1]
    rank = torch.arange(vocab, device=probs.device)
    kept = rank < column([row.sampling.top_k if row.sampling.top_k > 0 else vocab for row in rows])
    probs = probs.masked_fill(~kept, 0.0)
    before = probs.cumsum(dim=-1) - probs
    kept = before < column([row.sampling.top_p for row in rows]) * probs.sum(dim=-1, keepdim=True)
    kept &= probs >= column([row.sampling.min_p for row in rows]) * probs[:, :1]
    kept[:, 0] = True
    cumulative = probs.masked_fill(~kept, 0.0).cumsum(dim=-1)
    number = column([_uniform(row, unseeded) for row in rows]) * cumulative[:, -1:]
    place = torch.searchsorted(cumulative, number, right=True).clamp_(max=vocab - 1)
    drawn: npt.NDArray[np.int64] = order.gather(1, place)[:, 0].cpu().numpy()
    return drawn


def _uniform(row: SamplingRow, unseeded: np.random.Generator) -> float:
    """Return a number in [0, 1): from the seed and the output position (splitmix64), or from the shared stream."""
    if row.sampling.seed is None:
        return float(unseeded.random())
    state = (row.sampling.seed * 0x9E3779B97F4A7C15 + len(row.output_ids) * 0xD1B54A32D192ED03 + 1) & _MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)


def _with_logprobs(logits: torch.Tensor, rows: Sequence[SamplingRow], ids: npt.NDArray[np.int64]) -> Sampled:
    """Add logprobs of the distribution at the row's temperature, before top-k, top-p and min-p (sglang 0.5.23)."""
    values: list[float] = []
    tops: list[list[tuple[int, float]]] = []
    for line, row, token in zip(logits, rows, ids.tolist(), strict=True):
        if not row.return_logprob:
            values.append(math.nan)
            tops.append([])
            continue
        logprobs = torch.log_softmax(line if row.greedy else line / row.sampling.temperature, dim=-1)
        values.append(float(logprobs[token]))
        best = logprobs.topk(min(row.top_logprobs_num, len(logprobs)))
        tops.append(list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
    return Sampled(ids, tuple(values), tuple(tops))
