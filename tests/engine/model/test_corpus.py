"""What the shipped checkpoint was taught is right, and is in the form the chat template gives it when serving."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer

import pdctl.checkpoints
from pdctl.checkpoints import corpus
from pdctl.checkpoints.corpus import Example

TINY = Path(pdctl.checkpoints.__file__).parent / "tiny"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


def many(maker, count: int = 200) -> list[Example]:
    random = Random(1)
    return [maker(random, 30) for _ in range(count)]


def test_the_same_seed_gives_the_same_text() -> None:
    first, second = ([corpus.example(random, 30) for _ in range(50)] for random in (Random(3), Random(3)))
    assert first == second


def test_answers_are_right() -> None:
    for one in many(corpus.repeat):
        assert one.prompt.endswith(": " + one.answer)
    for one in many(corpus.echo):
        assert one.answer == f"You said: {one.prompt}"
    for one in many(corpus.reverse):
        assert one.prompt.removeprefix("Reverse: ").split() == one.answer.split()[::-1]
    for one in many(corpus.recall):
        owner = one.prompt.split()[-2]
        assert one.answer.startswith(f"{owner} has the ")
        assert one.answer in one.prompt
    for one in many(corpus.count):
        numbers = [int(word) for word in one.answer.split()]
        asked = [int(word) for word in one.prompt.split() if word.isdigit()]
        assert [numbers[0], numbers[-1]] == asked
        assert Counter(after - before for before, after in pairwise(numbers)).keys() <= {1, -1}


def test_training_rows_have_the_form_of_served_prompts(tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer  # here: every test process reads this file, one runs it

    from pdctl.checkpoints.make_tiny import encode

    peer = AutoTokenizer.from_pretrained(TINY)
    for one in many(corpus.example, 60):
        ids, learned = encode(tokenizer, one)
        if one.plain:
            assert tokenizer.decode(ids[learned:]).strip() in one.answer
            continue
        messages = [{"role": "user", "content": one.prompt}]
        assert ids[:learned] == peer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert tokenizer.decode(ids[learned:]) == one.answer


def test_only_answers_are_learned(tokenizer: Tokenizer) -> None:
    from pdctl.checkpoints.make_tiny import IGNORE, TrainingPhase, rows

    user, assistant, end = (tokenizer.token_to_id(f"<|{name}|>") for name in ("user", "assistant", "end"))
    for tokens, labels in islice(rows(tokenizer, Random(5), TrainingPhase(1, 8, 200, 20)), 3):
        assert torch.equal(labels[labels != IGNORE], tokens[labels != IGNORE])
        assert not torch.isin(labels, torch.tensor([user, assistant])).any()
        assert torch.isin(labels, torch.tensor([end])).any()
