"""Makes the shipped checkpoint: `python -m pdctl.checkpoints.make_tiny DIR` trains it from scratch on one CPU thread.

The same torch on the same kind of CPU gives the same file. Needs the `engine` and `test` extras.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from pdctl.checkpoints.corpus import Example, example

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("make_tiny")

END_OF_TEXT, END, USER, ASSISTANT, SYSTEM = "<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"
# The tokenizer numbers them first, in this order.
SPECIALS = (END_OF_TEXT, END, USER, ASSISTANT, SYSTEM)
VOCAB = 1280
CONTEXT = 4096
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
IGNORE = -100  # torch's label for "no loss here"


@dataclass(frozen=True, slots=True)
class TrainingPhase:
    """One phase of the training: rows of `length` tokens, free text of up to `longest` words."""

    steps: int
    rows: int
    length: int
    longest: int


# Copying is learned on short rows, then stretched.
PHASES = (
    TrainingPhase(560, 48, 96, 14),
    TrainingPhase(460, 24, 224, 60),
    TrainingPhase(270, 12, 512, 140),
    TrainingPhase(290, 6, 1024, 300),
)
PEAK_RATE = 4e-3
DECAY = 0.5  # share of the steps, at the end, over which the rate falls to zero
WARMUP = 60  # steps
SEED = 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pdctl.checkpoints.make_tiny", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the training steps to take (default 1)")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    model = LlamaForCausalLM(shape())
    log.info("%d parameters", sum(weight.numel() for weight in model.parameters()))
    phases = [TrainingPhase(max(1, round(p.steps * args.scale)), p.rows, p.length, p.longest) for p in PHASES]
    train(model, tokenizer, phases)
    save(model, tokenizer, args.directory)


def shape() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=[SPECIALS.index(END), SPECIALS.index(END_OF_TEXT)],
        pad_token_id=SPECIALS.index(END_OF_TEXT),
    )


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE: any text can be encoded, common words are one token."""
    random = Random(SEED)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    samples = (example(random, 12) for _ in range(20000))
    tokenizer.train_from_iterator((f"{one.prompt}\n{one.answer}" for one in samples), trainer)
    return tokenizer


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, phases: list[TrainingPhase]) -> None:
    """Train, with one rate schedule over all phases; the loss counts answers and plain text only."""
    random = Random(SEED)
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), lr=PEAK_RATE)
    total = sum(phase.steps for phase in phases)
    started, step = time.monotonic(), 0
    model.train()
    for phase in phases:
        source = rows(tokenizer, random, phase)
        for _ in range(phase.steps):
            rate = PEAK_RATE * min(1.0, (step + 1) / WARMUP, (total - step) / (DECAY * total))
            for group in optimizer.param_groups:
                group["lr"] = rate
            tokens, labels = next(source)
            loss = answer_loss(model, tokens, labels)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % 25 == 0:
                log.info(
                    "step %d of %d, loss %.4f, %.0f s", step, total, float(loss.detach()), time.monotonic() - started
                )


def answer_loss(model: LlamaForCausalLM, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of the labelled tokens; no logits are computed for the others."""
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    learned = labels[:, 1:] != IGNORE
    return F.cross_entropy(model.lm_head(hidden[:, :-1][learned]), labels[:, 1:][learned])


def rows(tokenizer: Tokenizer, random: Random, phase: TrainingPhase) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of rows; a row is filled with whole examples, the last one cut off."""
    while True:
        tokens = torch.zeros(phase.rows, phase.length, dtype=torch.int64)
        labels = torch.full_like(tokens, IGNORE)
        for row in range(phase.rows):
            filled = 0
            while filled < phase.length:
                ids, scored = encode(tokenizer, example(random, phase.longest))
                ids = ids[: phase.length - filled]
                tokens[row, filled : filled + len(ids)] = torch.tensor(ids)
                learned = slice(filled + min(scored, len(ids)), filled + len(ids))
                labels[row, learned] = tokens[row, learned]
                filled += len(ids)
        yield tokens, labels


def encode(tokenizer: Tokenizer, one: Example) -> tuple[list[int], int]:
    """Return token ids as the chat template makes them, and where the part to be learned starts."""
    if one.plain:
        prompt = tokenizer.encode(one.prompt).ids
        return prompt + tokenizer.encode(one.answer + END_OF_TEXT).ids, max(1, len(prompt))
    prompt = tokenizer.encode(f"{USER}{one.prompt}{END}{ASSISTANT}").ids
    return prompt + tokenizer.encode(f"{one.answer}{END}").ids, len(prompt)


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """Write the files of a Hugging Face checkpoint directory, in float32."""
    directory.mkdir(parents=True, exist_ok=True)
    if model.generation_config is not None:
        # Greedy unless the client asks otherwise, so that the answers of a rehearsal repeat.
        model.generation_config.do_sample, model.generation_config.top_k = True, 1
    model.save_pretrained(directory)
    (directory / "model.safetensors").chmod(0o644)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
