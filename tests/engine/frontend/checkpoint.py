"""A checkpoint without tensors: what the HTTP process reads of one. Its tokens are those of byte_tokens.py."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pdctl.engine.frontend.tokenizer import BYTE_OF
from tests.engine.frontend.byte_tokens import CONTEXT, FIRST_BYTE

BEGIN, END, USER = "<|begin|>", "<|end|>", "<|user|>"
VOCAB = 300  # wider than the tokenizer, as real checkpoints are
NO_TENSORS = b"{}"
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role not in ('user', 'assistant', 'system') %}"
    "{{ raise_exception('Unknown role: ' + message.role) }}{% endif %}"
    "{{ '<|user|>' if message.role == 'user' else '' }}{{ message['content'] }}"
    "{% endfor %}"
)


def tokenizer() -> Tokenizer:
    vocab = {BEGIN: 0, END: 1, USER: 2} | {char: FIRST_BYTE + byte for char, byte in BYTE_OF.items()}
    built = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([BEGIN, END, USER])
    return built


def write(directory: Path, template: str | None = TEMPLATE) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(directory / "tokenizer.json"))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_hidden_layers": 8,
        "intermediate_size": 64,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "eos_token_id": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(len(NO_TENSORS).to_bytes(8, "little") + NO_TENSORS)
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "top_k": 7}))
    settings = {"bos_token": BEGIN, "eos_token": {"content": END}, "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory
