"""Pool sizes: the same number of pages on every rank and stage of an instance, whatever it holds of the model."""

from __future__ import annotations

import dataclasses

import pytest

from pdctl.engine.config.checkpoint_config import ModelConfig
from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.scheduler.scheduler_rank import Sizing
from pdctl.errors import UsageError
from tests.engine.checkpoints import COMMON, CONFIGS


def resolve(kind: str, layers: int = 3, stage: int = 0, **changes: object) -> Sizing:
    config = ModelConfig.from_json(COMMON | CONFIGS[kind] | {"num_hidden_layers": layers}, {}, where="here")
    args = dataclasses.replace(ServerArgs(model_path="here"), page_size=16, **changes)
    return Sizing.resolve(args, config, stage)


def test_every_stage_has_the_same_pages_of_its_own_layers() -> None:
    first, last = (resolve("gqa", stage=stage, pp_size=2, context_length=4096).geometry for stage in (0, 1))
    assert (first.layers, last.layers) == (1, 2)
    assert first.num_pages == last.num_pages


@pytest.mark.parametrize(
    ("kind", "changes", "heads", "width", "slabs"),
    [
        ("gqa", {"tp_size": 4, "attn_dp_size": 2}, 2, 8, 2),
        ("gqa", {"tp_size": 8}, 1, 8, 2),
        ("mla", {"tp_size": 4}, 1, 40, 1),
    ],
)
def test_a_page_is_of_this_rank_share(
    kind: str, changes: dict[str, object], heads: int, width: int, slabs: int
) -> None:
    geometry = resolve(kind, **changes).geometry
    assert (geometry.kv_heads, geometry.head_dim, geometry.slabs_per_layer) == (heads, width, slabs)


def test_a_pool_of_less_than_a_page_is_refused() -> None:
    with pytest.raises(UsageError, match="--max-total-tokens 15 is less than one page of 16 tokens"):
        resolve("mla", max_total_tokens=15)


def test_the_pool_of_so_many_tokens() -> None:
    sizing = resolve("moe", max_total_tokens=100)
    assert sizing.tokens == 96  # whole pages
    assert str(sizing.device) == "cpu"
    assert str(sizing.dtype) == "torch.float32"
