"""The small checkpoints that whole engines serve in tests are ones transformers reads, and it answers as we do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from pdctl.engine.config.checkpoint_config import ModelConfig
from pdctl.engine.model.forward_pass import ForwardBatch, SeqSlice
from pdctl.engine.model.model_runner import ModelRunner
from pdctl.engine.model.parallel import Groups
from tests.engine.checkpoints import KINDS, VOCAB, make_checkpoint
from tests.engine.model.passes import LONGEST, PAGE, make_runner, tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROMPTS = (3, 17, 30)  # tokens
ANSWER = 24


@pytest.mark.parametrize("layout", ["layer-major", "page-major", "head-major"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_equal_those_of_transformers(tmp_path: Path, kind: str, layout: str) -> None:
    directory = make_checkpoint(kind, tmp_path / kind)
    from transformers import AutoModelForCausalLM  # here: every test process reads this file, one runs it

    peer, loading = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(loading.values())
    prompts = [tokens(seq)[:length] for seq, length in enumerate(PROMPTS)]
    ours = _greedy(make_runner(directory, Groups.single(), layout), prompts)
    assert ours == [_peer_greedy(peer.eval(), prompt) for prompt in prompts]


def test_a_checkpoint_serves_as_it_is(tmp_path: Path) -> None:
    """With a tokenizer as wide as the model, and nothing that would end an answer early; a seed decides every byte."""
    first, again, other = (
        make_checkpoint("moe", tmp_path / name, seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert Tokenizer.from_file(str(first / "tokenizer.json")).get_vocab_size() == VOCAB
    assert ModelConfig.from_dir(first).eos_token_ids == ()
    weights = [(directory / "model.safetensors").read_bytes() for directory in (first, again, other)]
    assert weights[0] == weights[1] != weights[2]


def _greedy(runner: ModelRunner, prompts: list[list[int]]) -> list[list[int]]:
    """All sequences in one batch after their prefill, the longest prompt in two chunks beside the others' decode."""
    each = LONGEST // PAGE
    pages = [np.arange(1 + seq * each, 1 + (seq + 1) * each, dtype=np.int32) for seq in range(len(prompts))]
    sequences = [list(prompt) for prompt in prompts]
    cached = [0] * len(prompts)
    while any(len(sequence) < len(prompt) + ANSWER for sequence, prompt in zip(sequences, prompts, strict=True)):
        stops = [min(len(sequence), start + 20) for sequence, start in zip(sequences, cached, strict=True)]
        new = [
            token
            for sequence, start, stop in zip(sequences, cached, stops, strict=True)
            for token in sequence[start:stop]
        ]
        slices = [SeqSlice(*part) for part in zip(pages, cached, np.subtract(stops, cached).tolist(), strict=True)]
        logits = runner.forward(ForwardBatch(new, slices))
        assert logits is not None
        cached = stops
        for sequence, stop, row in zip(sequences, stops, logits, strict=True):
            if stop == len(sequence):
                sequence.append(int(row.argmax()))
    return [sequence[len(prompt) : len(prompt) + ANSWER] for sequence, prompt in zip(sequences, prompts, strict=True)]


def _peer_greedy(peer: PreTrainedModel, prompt: list[int]) -> list[int]:
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        answer = peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=ANSWER, do_sample=False)
    return answer[0, len(prompt) :].tolist()
