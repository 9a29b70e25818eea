"""Weights load from one file or many, slice by slice, and a broken checkpoint says which part is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pdctl.engine.config.checkpoint_config import INDEX, SINGLE, CheckpointError, check_weight_files
from pdctl.engine.model.weights import Checkpoint
from tests.engine.model.peers import CASES, forward, make_peer, make_runner, run_of_pages, token_ids

CASE = CASES[1]


def split(directory: Path, parts: int) -> None:
    """Turn the checkpoint's single file into `parts` files and an index."""
    tensors = load_file(directory / SINGLE)
    names = sorted(tensors)
    where = {}
    for part in range(parts):
        file = f"model-{part + 1:05d}-of-{parts:05d}.safetensors"
        own = {name: tensors[name].clone() for name in names[part::parts]}
        save_file(own, directory / file)
        where.update(dict.fromkeys(own, file))
    (directory / INDEX).write_text(json.dumps({"weight_map": where}))
    (directory / SINGLE).unlink()


def test_an_indexed_checkpoint_gives_the_same_logits(tmp_path: Path) -> None:
    make_peer(CASE, tmp_path)
    ids, pages = token_ids(CASE, 9), run_of_pages(CASE, 1, 9)
    whole = forward(make_runner(CASE, tmp_path), (ids, pages, 0, 9))
    split(tmp_path, 3)
    assert torch.equal(forward(make_runner(CASE, tmp_path), (ids, pages, 0, 9)), whole)


def test_parts_are_rows_or_columns(tmp_path: Path) -> None:
    save_file({"w": torch.arange(12.0).view(3, 4)}, tmp_path / SINGLE)
    with Checkpoint(tmp_path) as checkpoint:
        assert "w" in checkpoint
        assert checkpoint.part("w", 0, 1, 3).tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
        assert checkpoint.part("w", 1, 0, 2).tolist() == [[0, 1], [4, 5], [8, 9]]
        with pytest.raises(CheckpointError, match=r"w has 3 along dim 0, config\.json implies 5"):
            checkpoint.part("w", 0, 4, 5)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    make_peer(CASE, tmp_path)
    tensors = load_file(tmp_path / SINGLE)
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match=r"the weights hold no model\.layers\.2\.mlp\.up_proj\.weight"):
        make_runner(CASE, tmp_path)


def test_files_that_are_not_there_or_not_safetensors_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither model\..* is there"):
        Checkpoint(tmp_path)
    (tmp_path / SINGLE).write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a readable safetensors file"):
        Checkpoint(tmp_path)
    (tmp_path / SINGLE).unlink()
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"w": "gone.safetensors"}}))
    with (
        Checkpoint(tmp_path) as checkpoint,
        pytest.raises(CheckpointError, match=r"gone\.safetensors: not a readable safetensors file"),
    ):
        checkpoint.tensor("w")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def pointed(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 3416520\n")


def headless(path: Path) -> None:
    path.write_bytes((2).to_bytes(8, "little") + b"[]")


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (cut, "model-00002-of-00003.safetensors: not a readable safetensors file: 95 bytes, its header tells of 96"),
        (pointed, "72 bytes that do not begin with a header"),
        (headless, "its header does not say where the tensors lie"),
        (Path.unlink, "model-00002-of-00003.safetensors: not a readable safetensors file: No such file"),
    ],
)
def test_files_that_are_not_whole_are_found_without_reading_a_tensor(
    tmp_path: Path, broken: Callable[[Path], None], told: str
) -> None:
    save_file({name: torch.arange(8.0) for name in "abc"}, tmp_path / SINGLE)
    check_weight_files(tmp_path)
    split(tmp_path, 3)
    check_weight_files(tmp_path)
    broken(tmp_path / "model-00002-of-00003.safetensors")
    with pytest.raises(CheckpointError) as refused:
        check_weight_files(tmp_path)
    assert told in refused.value.message


@pytest.mark.parametrize("written", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": ["a"]}'])
def test_an_index_that_is_none_is_named(tmp_path: Path, written: str) -> None:
    (tmp_path / INDEX).write_text(written)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json: no index of safetensors files"):
        check_weight_files(tmp_path)
