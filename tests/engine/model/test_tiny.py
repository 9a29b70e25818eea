"""The shipped checkpoint answers legibly, is a Hugging Face checkpoint, and notices when a KV page was overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import pdctl.checkpoints
from pdctl.engine.config.checkpoint_config import ModelConfig
from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.model.forward_pass import ForwardBatch, SeqSlice
from pdctl.engine.model.model_runner import ModelRunner
from pdctl.engine.model.parallel import Groups

TINY = Path(pdctl.checkpoints.__file__).parent / "tiny"
PAGE = 16
PAGES = np.arange(1, 100, dtype=np.int32)
FOX = "Repeat: the red fox jumps over the lazy dog and runs into the dark forest"
LONG = (
    "Repeat: the quick brown fox jumps over the lazy dog while seven small boats follow a silver moon and nine tall "
    "towers hide one golden key from the brave king who never opens his red door at night because every bell would "
    "wake the gentle queen"
)


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer  # here: every test process reads this file, one runs it

    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    config = ModelConfig.from_dir(TINY)
    pool = KVPool(KVPool.geometry_for(config, 1, PAGE, len(PAGES) + 1, torch.float32))
    return ModelRunner(config, TINY, pool, Groups.single())


def chat_ids(tokenizer, message: str) -> list[int]:
    messages = [{"role": "user", "content": message}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def finish(runner: ModelRunner, logits: torch.Tensor, length: int, limit: int = 120) -> list[int]:
    """Greedy tokens after a prefill of `length` tokens, until the model ends its answer."""
    made: list[int] = []
    while len(made) < limit:
        token = int(logits.argmax())
        if token in runner.config.eos_token_ids:
            return made
        made.append(token)
        logits = runner.forward(ForwardBatch([token], [SeqSlice(PAGES, length + len(made) - 1, 1)]))
    raise AssertionError(f"no end of the answer within {limit} tokens")


def answer(tokenizer, runner: ModelRunner, ids: list[int]) -> str:
    logits = runner.forward(ForwardBatch(ids, [SeqSlice(PAGES, 0, len(ids))]))
    return tokenizer.decode(finish(runner, logits, len(ids)))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (FOX, FOX.removeprefix("Repeat: ")),
        (LONG, LONG.removeprefix("Repeat: ")),
        ("Say: hello world", "hello world"),
        ("Reverse: fox dog cat", "cat dog fox"),
        ("Count from 3 to 9", "3 4 5 6 7 8 9"),
        ("Count down from 9 to 3", "9 8 7 6 5 4 3"),
        ("What is the capital of France?", "The capital of France is Paris."),
        (
            "Anna has the red key. Ben has the old map. Ida has the blue cup. What does Ben have?",
            "Ben has the old map.",
        ),
        ("What is a room?", "A room is one request on its way from a prefill instance to a decode instance."),
        ("The weather is nice today.", "You said: The weather is nice today."),
    ],
)
def test_greedy_answers(tokenizer, runner: ModelRunner, message: str, expected: str) -> None:
    assert answer(tokenizer, runner, chat_ids(tokenizer, message)) == expected


def test_plain_text_goes_on(tokenizer, runner: ModelRunner) -> None:
    assert (
        answer(tokenizer, runner, tokenizer.encode("Monday Tuesday")) == " Wednesday Thursday Friday Saturday Sunday."
    )


@pytest.mark.parametrize("page", range(3))
def test_an_overwritten_page_changes_the_answer(tokenizer, runner: ModelRunner, page: int) -> None:
    """Page by page: another page's bytes in its place, as a transfer to the wrong page would leave them."""
    ids = chat_ids(tokenizer, LONG)
    assert len(ids) > 3 * PAGE  # the page after the last one that is overwritten is in use too
    logits = runner.forward(ForwardBatch(ids, [SeqSlice(PAGES, 0, len(ids))]))
    for layer in range(runner.config.layers):
        for slab in (runner.pool.k(layer), runner.pool.v(layer)):
            slab[int(PAGES[page])] = slab[int(PAGES[page + 1])]
    damaged = tokenizer.decode(finish(runner, logits, len(ids)))
    assert damaged != LONG.removeprefix("Repeat: ")


def test_transformers_computes_the_same(tokenizer, runner: ModelRunner) -> None:
    from transformers import AutoModelForCausalLM

    peer = AutoModelForCausalLM.from_pretrained(TINY).eval()
    ids = chat_ids(tokenizer, LONG)
    with torch.inference_mode():
        expected = peer(torch.tensor([ids])).logits[0, -1]
    got = runner.forward(ForwardBatch(ids, [SeqSlice(PAGES, 0, len(ids))]))[0]
    assert (got - expected).abs().max() < 1e-4


def test_any_text_survives_the_tokenizer(tokenizer) -> None:
    for text in ("naïve café — 日本語 😀", "  two  spaces\n\tand a tab", "<|end|"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_directory_is_small_and_complete() -> None:
    sizes = {file.name: file.stat().st_size for file in TINY.iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    } == set(sizes)
    assert sum(sizes.values()) <= 5_000_000
    config = ModelConfig.from_dir(TINY)
    assert config.max_position >= 2048
    vocabulary = json.loads((TINY / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == config.vocab
