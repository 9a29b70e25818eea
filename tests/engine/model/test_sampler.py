"""Greedy is argmax; sampling follows the distribution, its filters and its seed, whatever batch the row is in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pdctl.engine.ipc.messages import Sampling
from pdctl.engine.model.model_runner import SamplingRow, sample

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0, 0.5])
PROBS = torch.softmax(LOGITS, -1).tolist()


def draws(count: int = 4000, **sampling: float) -> dict[int, float]:
    """Share of each token over `count` seeds."""
    rows = [SamplingRow(Sampling(seed=seed, **sampling)) for seed in range(count)]
    ids, counts = np.unique(sample(LOGITS.expand(count, -1), rows).ids, return_counts=True)
    return {int(token): float(n) / count for token, n in zip(ids, counts, strict=True)}


def test_temperature_zero_and_top_k_one_are_argmax() -> None:
    logits = torch.stack((LOGITS, LOGITS.flip(0)))
    rows = [SamplingRow(Sampling(temperature=0.0)), SamplingRow(Sampling(temperature=1.0, top_k=1))]
    sampled = sample(logits, rows)
    assert sampled.ids.dtype == np.int64
    assert sampled.ids.tolist() == [0, 5]
    assert all(math.isnan(value) for value in sampled.logprobs)
    assert sampled.top_logprobs == ([], [])


def test_shares_follow_the_distribution() -> None:
    shares = draws()
    assert shares.keys() == set(range(6))
    for token, share in shares.items():
        assert share == pytest.approx(PROBS[token], abs=0.03)


def test_temperature_sharpens() -> None:
    expected = torch.softmax(LOGITS / 0.5, -1)
    shares = draws(temperature=0.5)
    assert shares[0] == pytest.approx(float(expected[0]), abs=0.03)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": PROBS[0] - 0.01}, {0}),
        ({"top_p": PROBS[0] + 0.01}, {0, 1}),
        ({"min_p": 0.2}, {0, 1, 5}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.75}, {0, 1}),
        ({"top_p": 0.0}, {0}),
    ],
)
def test_filters_leave_the_likeliest_and_their_ratio(filters: dict[str, float], left: set[int]) -> None:
    shares = draws(2000, **filters)
    assert shares.keys() == left
    total = sum(PROBS[token] for token in left)
    for token in left:
        assert shares[token] == pytest.approx(PROBS[token] / total, abs=0.04)


def test_a_seed_and_a_position_fix_the_token_in_any_batch() -> None:
    rows = [SamplingRow(Sampling(seed=seed), (), (0,) * at) for seed in (1, 2, 2**63) for at in range(30)]
    together = sample(LOGITS.expand(len(rows), -1), rows).ids.tolist()
    alone = [int(sample(LOGITS[None], [row]).ids[0]) for row in rows]
    mixed = sample(LOGITS.expand(2 * len(rows), -1), [SamplingRow(Sampling(temperature=0)) for _ in rows] + rows)
    assert together == alone == mixed.ids[len(rows) :].tolist()
    assert len({tuple(together[at : at + 30]) for at in (0, 30, 60)}) == 3


def test_rows_without_a_seed_take_the_next_number_of_the_stream() -> None:
    rows = [SamplingRow(Sampling())] * 50
    logits = LOGITS.expand(50, -1)
    first, again = (sample(logits, rows, np.random.default_rng(5)).ids.tolist() for _ in range(2))
    assert first == again
    assert len(set(first)) > 1
    assert sample(logits, rows, np.random.default_rng(6)).ids.tolist() != first


def greedy(logits: list[float], output: tuple[int, ...], prompt: tuple[int, ...] = (), **penalty: float) -> int:
    row = SamplingRow(Sampling(temperature=0.0, **penalty), prompt, output)
    return int(sample(torch.tensor([logits]), [row]).ids[0])


def test_frequency_and_presence_look_at_the_output_only() -> None:
    assert greedy([1.0, 0.5], (0,), frequency_penalty=0.4) == 0
    assert greedy([1.0, 0.5], (0, 0), frequency_penalty=0.4) == 1
    assert greedy([1.0, 0.5], (0, 0), presence_penalty=0.4) == 0
    assert greedy([1.0, 0.5], (0,), presence_penalty=0.6) == 1
    assert greedy([1.0, 0.5], (), (0, 0, 0), frequency_penalty=2.0) == 0


def test_repetition_divides_what_is_positive_and_multiplies_what_is_not() -> None:
    assert greedy([1.0, 0.6], (), (0,), repetition_penalty=2.0) == 1
    assert greedy([-1.0, -1.5], (0,), repetition_penalty=2.0) == 1
    assert greedy([1.0, 0.6], (), (), repetition_penalty=2.0) == 0


def test_penalties_leave_the_logits_and_the_other_rows_alone() -> None:
    logits = torch.tensor([[1.0, 0.5], [1.0, 0.5]])
    rows = [
        SamplingRow(Sampling(temperature=0.0, presence_penalty=2.0), (), (0,)),
        SamplingRow(Sampling(temperature=0.0)),
    ]
    assert sample(logits, rows).ids.tolist() == [1, 0]
    assert logits.tolist() == [[1.0, 0.5], [1.0, 0.5]]


def test_logprobs_are_of_the_row_at_its_temperature() -> None:
    rows = [
        SamplingRow(Sampling(temperature=0.0), return_logprob=True, top_logprobs_num=2),
        SamplingRow(Sampling(temperature=0.5, seed=1), return_logprob=True),
        SamplingRow(Sampling(temperature=0.0)),
    ]
    sampled = sample(LOGITS.expand(3, -1), rows)
    assert sampled.logprobs[0] == pytest.approx(math.log(PROBS[0]), abs=1e-5)
    assert [token for token, _ in sampled.top_logprobs[0]] == [0, 1]
    assert sampled.top_logprobs[0][1][1] == pytest.approx(math.log(PROBS[1]), abs=1e-5)
    halved = torch.log_softmax(LOGITS / 0.5, -1)
    assert sampled.logprobs[1] == pytest.approx(float(halved[sampled.ids[1]]), abs=1e-5)
    assert sampled.top_logprobs[1] == []
    assert math.isnan(sampled.logprobs[2])
