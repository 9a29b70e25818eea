"""Tensors and transfer addresses name the same bytes, in every layout."""

import mmap
from pathlib import Path

import pytest
import torch

from pdctl.engine.config.checkpoint_config import ModelConfig
from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry
from pdctl.layout import gpu_memory, model_config
from tests.engine.checkpoints import make_checkpoint

LAYOUTS = list(Layout)


def geometry(layout: Layout, itemsize: int = 4) -> PoolGeometry:
    return PoolGeometry(layers=3, num_pages=5, page_size=4, kv_heads=2, head_dim=6, itemsize=itemsize, layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_item_is_where_the_geometry_says(layout: Layout) -> None:
    pool = KVPool(geometry(layout))
    size = pool.geometry.item_bytes
    for layer in range(3):
        for kind, tensor in enumerate((pool.k(layer), pool.v(layer))):
            assert tensor.shape == (5, 4, 2, 6)
            for page in range(5):
                value = 100 * layer + 10 * page + kind
                tensor[page] = value
                start = pool.geometry.address(2 * layer + kind, page)
                assert torch.all(pool.buffer[start : start + size].view(torch.float32) == value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_items_do_not_overlap_and_fill_the_pool(layout: Layout) -> None:
    shape = geometry(layout)
    starts = sorted(shape.address(slab, page) for slab in range(shape.num_slabs) for page in range(shape.num_pages))
    assert starts == list(range(0, shape.nbytes, shape.item_bytes))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_head_of_every_token_is_where_the_geometry_says(layout: Layout) -> None:
    shape = geometry(layout)
    pool = KVPool(shape)
    pool.v(1)[4] = torch.arange(4 * 2 * 6).view(4, 2, 6)
    found = [
        pool.buffer[start : start + shape.head_bytes].view(torch.float32).tolist()
        for token in range(4)
        for head in range(2)
        for start in [shape.address(3, 4) + token * shape.token_stride + head * shape.head_stride]
    ]
    assert found == torch.arange(48.0).view(8, 6).tolist()


def test_page_major_keeps_one_page_of_all_layers_together() -> None:
    shape = geometry(Layout.PAGE_MAJOR)
    assert [shape.address(slab, 1) - shape.address(0, 1) for slab in range(shape.num_slabs)] == [
        slab * shape.item_bytes for slab in range(shape.num_slabs)
    ]


def test_a_pool_over_foreign_memory_writes_there() -> None:
    shape = geometry(Layout.LAYER_MAJOR, itemsize=2)
    with mmap.mmap(-1, shape.nbytes + 4096) as memory:
        view = memoryview(memory)
        pool = KVPool(shape, view, torch.bfloat16)
        pool.v(2)[4] = 1.0
        start = shape.address(5, 4)
        assert bytes(view[start : start + 2]) == b"\x80\x3f"  # 1.0 in bfloat16, little-endian
        del pool
        view.release()


def test_a_short_buffer_or_a_wrong_dtype_is_refused() -> None:
    shape = geometry(Layout.LAYER_MAJOR)
    with pytest.raises(ValueError, match=f"{shape.nbytes} bytes of uint8 are needed"):
        KVPool(shape, torch.zeros(shape.nbytes - 1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="has 2 bytes, the pool's geometry says 4"):
        KVPool(shape, dtype=torch.bfloat16)


def test_geometry_of_a_rank_splits_kv_heads_until_each_rank_has_one() -> None:
    raw = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
        "num_hidden_layers": 3, "intermediate_size": 8, "vocab_size": 8,
    }  # fmt: skip
    config = ModelConfig.from_json(raw, {}, where="here")
    heads = [KVPool.geometry_for(config, tp, 16, 4, torch.float32).kv_heads for tp in (1, 2, 4)]
    assert heads == [2, 1, 1]
    assert KVPool.geometry_for(config, 1, 16, 4, torch.bfloat16, "page-major").layout is Layout.PAGE_MAJOR


@pytest.mark.parametrize("layout", LAYOUTS)
def test_latents_are_one_slab_per_layer(layout: Layout) -> None:
    shape = PoolGeometry(
        layers=3, slabs_per_layer=1, num_pages=5, page_size=4, kv_heads=1, head_dim=6, itemsize=4, layout=layout
    )
    pool = KVPool(shape)
    for layer in range(3):
        pool.k(layer)[2] = layer
        start = shape.address(layer, 2)
        assert torch.all(pool.buffer[start : start + shape.item_bytes].view(torch.float32) == layer)
        assert torch.equal(pool.v(layer), pool.k(layer))


@pytest.mark.parametrize("kind", ["gqa", "mla", "moe"])
def test_a_token_takes_the_bytes_the_plan_says(tmp_path: Path, kind: str) -> None:
    """On every rank and pipeline stage: MLA's latent is whole on each rank, and a stage holds its own layers."""
    directory = make_checkpoint(kind, tmp_path / kind)
    config, planned = ModelConfig.from_dir(directory), model_config.load(directory)
    for attn_tp in (1, 2, 4, 8):
        for stages in (1, 2):
            for stage in range(stages):
                shape = KVPool.geometry_for(config, attn_tp, 1, 4, torch.float32, stage=stage, stages=stages)
                assert shape.page_bytes == gpu_memory.kv_bytes_per_token(planned, attn_tp, 4, config.layers // stages)
