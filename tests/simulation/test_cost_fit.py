"""Coefficients from measurements: those that made the measurements come back."""

from __future__ import annotations

import random

import pytest

from pdctl.errors import PdctlError
from pdctl.simulation.cost_fit import Measurements, PromptSample, StepSample, fit_costs, fit_non_negative
from tests.cases import for_each

A, B, C = 0.004, 3e-5, 2e-9
D, E, F = 0.0015, 2e-4, 4e-8
REQUEST, EACH_TOKEN = 0.003, 1e-6
KV_BYTES = 1024


def measured(noise: float) -> Measurements:
    rng = random.Random(7)

    def seen(seconds: float) -> float:
        return seconds * (1 + noise * (2 * rng.random() - 1))

    lengths = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    shapes = [PromptSample.of(n, 512, 0.0) for n in lengths]
    prompts = [one._replace(seconds=seen(A * one.passes + B * one.tokens + C * one.pairs)) for one in shapes]
    first = [StepSample(1, one.tokens, one.seconds + REQUEST + EACH_TOKEN * one.tokens) for one in prompts]
    decode = [
        StepSample(n, n * each, seen(D + E * n + F * n * each)) for n in (1, 2, 4, 8, 16, 32) for each in (40, 4000)
    ]
    return Measurements(tuple(prompts), tuple(decode), tuple(first))


def test_exact_measurements_give_the_coefficients_that_made_them() -> None:
    fitted = fit_costs(measured(0.0), KV_BYTES)
    assert fitted.costs == pytest.approx(
        {
            "prefill_step_s": A,
            "prefill_token_s": B,
            "prefill_square_s": C,
            "decode_step_s": D,
            "decode_room_s": E,
            "decode_token_s": F,
            "request_s": REQUEST,
            "nic_bytes_per_s": KV_BYTES / EACH_TOKEN,
        },
        rel=1e-6,
    )
    assert max(fitted.error.values()) < 1e-6


def test_noise_moves_the_steps_by_no_more_than_itself() -> None:
    found = fit_costs(measured(0.05), KV_BYTES).costs
    for length in (16, 300, 4000):
        one = PromptSample.of(length, 512, 0.0)
        step = found["prefill_step_s"] * one.passes + found["prefill_token_s"] * length
        step += found["prefill_square_s"] * one.pairs
        assert step == pytest.approx(A * one.passes + B * length + C * one.pairs, rel=0.05), f"{length} tokens"


def test_a_long_prompt_is_computed_in_passes_that_attend_to_what_came_before() -> None:
    assert PromptSample.of(300, 512, 1.0) == (1, 300, 300 * 300, 1.0)
    assert PromptSample.of(1100, 512, 1.0) == (3, 1100, 512 * 512 + 512 * 1024 + 76 * 1100, 1.0)


def test_a_coefficient_that_would_be_negative_is_0_and_the_others_are_fitted_without_it() -> None:
    rows = [((1.0, float(n)), 5.0 - 0.001 * n) for n in range(1, 9)]
    (constant, slope), error = fit_non_negative(rows)
    assert slope == 0
    assert constant == pytest.approx(4.9955, rel=1e-3)
    assert error < 1e-3


def test_engines_that_count_no_busy_time_leave_the_prefill_coefficients_out() -> None:
    fitted = fit_costs(measured(0.0)._replace(prompts=()), KV_BYTES)
    assert {"prefill_step_s", "prefill_token_s", "prefill_square_s"} & set(fitted.costs) == set()
    assert "decode_step_s" in fitted.costs


@for_each("count", [0, 1, 2])
def test_too_few_measurements_are_refused(count: int) -> None:
    few = Measurements((), measured(0.0).decode_steps[:count], measured(0.0).first_tokens)
    with pytest.raises(PdctlError, match=f"{count} measurements are too few for"):
        fit_costs(few, KV_BYTES)
