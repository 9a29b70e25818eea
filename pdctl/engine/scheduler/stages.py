"""Pipeline stages after a pass: only the last one has logits, and all of them must go on with the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pdctl.engine.model.sampler import Sampled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.model.sampler import SamplingRow


def share(sampled: Sampled | None, rows: Sequence[SamplingRow], groups: Groups) -> Sampled:
    """What the last stage sampled, on every rank of the replica; `sampled` is None on the others."""
    if groups.pp.size == 1:
        if sampled is None:
            raise AssertionError("the only pipeline stage computed no logits")
        return sampled
    width = sum(2 + 2 * row.top_logprobs_num for row in rows)
    values = list(_packed(sampled, rows)) if sampled is not None else [0] * width
    last = groups.replica.size - groups.attn_tp.size  # in world order its ranks stand at the end
    return _unpacked(groups.replica.share_ints(values, last), rows)


def _packed(sampled: Sampled, rows: Sequence[SamplingRow]) -> Iterator[int]:
    """id, logprob, then (id, logprob) of the best; a float64's bits travel as an int64. Fewer than asked for: -1."""
    for index, row in enumerate(rows):
        yield int(sampled.ids[index])
        yield _bits(sampled.logprobs[index])
        top = sampled.top_logprobs[index]
        for token, logprob in top:
            yield token
            yield _bits(logprob)
        for _ in range(row.top_logprobs_num - len(top)):
            yield -1
            yield 0


def _unpacked(values: Sequence[int], rows: Sequence[SamplingRow]) -> Sampled:
    ids, logprobs, tops, at = [], [], [], 0
    for row in rows:
        ids.append(values[at])
        logprobs.append(_float(values[at + 1]))
        at += 2
        end = at + 2 * row.top_logprobs_num
        pairs = zip(values[at:end:2], values[at + 1 : end : 2], strict=True)
        tops.append([(token, _float(bits)) for token, bits in pairs if token >= 0])
        at = end
    return Sampled(np.asarray(ids, dtype=np.int64), tuple(logprobs), tuple(tops))


def _bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def _float(bits: int) -> float:
    return float(np.int64(bits).view(np.float64)) if bits else 0.0
