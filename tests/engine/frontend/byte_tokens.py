"""The tokens of the checkpoint without tensors: every byte is one.

A module of its own because each echo rank imports it, and the tokenizer would bring pydantic into every one of them.
"""

from __future__ import annotations

FIRST_BYTE = 3  # ids 0 to 2 are the special tokens
CONTEXT = 512


def ids_of(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode()]


def text_of(ids: list[int]) -> str:
    return bytes(token - FIRST_BYTE for token in ids if FIRST_BYTE <= token < FIRST_BYTE + 256).decode(errors="replace")
