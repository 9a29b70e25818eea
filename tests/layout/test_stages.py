"""Layers over pipeline stages: all of them, in order, and no stage with two more than another."""

from __future__ import annotations

import pytest

from pdctl.layout.shape import stage_layers

VECTOR = [(0, 7), (7, 14), (14, 21), (21, 29), (29, 37), (37, 45), (45, 53), (53, 61)]


@pytest.mark.parametrize(("layers", "pp"), [(1, 1), (7, 3), (8, 4), (61, 8), (4, 4)])
def test_stages_hold_every_layer_once_and_the_last_ones_the_rest(layers: int, pp: int) -> None:
    stages = [stage_layers(layers, pp, stage) for stage in range(pp)]
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    sizes = [len(stage) for stage in stages]
    assert sizes == sorted(sizes)
    assert sizes[-1] - sizes[0] <= 1


def test_a_stage_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="3 layers over 4 pipeline stages"):
        stage_layers(3, 4, 0)


def test_it_is_sglangs_answer() -> None:
    """Executed: get_pp_indices of sglang 0.5.8 and 0.5.23, 61 layers over 8 stages."""
    assert [(layers.start, layers.stop) for layers in (stage_layers(61, 8, stage) for stage in range(8))] == VECTOR
