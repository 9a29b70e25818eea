"""Attention sinks (gpt-oss): each head has one more score to share its softmax with, and no value behind it.

With z the sum of a query's exponentiated scores, a sink s turns the divisor z into z + exp(s): the attention without
it is scaled by sigmoid(log z - s), and log z is what the fused kernel hands out beside its result.
"""

from __future__ import annotations

import torch

from pdctl.engine.model.rows import sigmoid


def attend_with_sinks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor,
    hidden: torch.Tensor | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """[1, heads, rows, head_dim] over [1, heads, tokens, head_dim]; `sinks` broadcasts over [1, heads, rows].

    `hidden` is an additive mask [rows, tokens]; `causal` hides what comes after the row's own place instead.
    """
    if query.device.type == "cpu":
        attended, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, is_causal=causal, attn_mask=hidden
        )
        kept = sigmoid(log_sum - sinks.float()).unsqueeze(-1)
        scaled: torch.Tensor = attended * kept.to(attended.dtype)
        return scaled
    return _plain(query, key, value, sinks, hidden, causal)


def _plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor,
    hidden: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    """The same in plain operations, where no kernel hands out its sums."""
    scores = (query @ key.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1), -torch.inf)
    elif hidden is not None:
        scores += hidden
    column = sinks.float().expand(scores.shape[:-1]).unsqueeze(-1)
    weights = torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]
    return weights.to(value.dtype) @ value
