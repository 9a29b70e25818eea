"""Sliding windows: which layers have one, and what of a sequence such a layer reads.

The pool keeps every token of every layer, as SGLang's does with its hybrid memory off: a page means the same for all
layers, and a transfer carries it whole. A layer with a window of w tokens attends to the token itself and the w - 1
before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from pdctl.engine.model.forward_batch import SeqSlice

FULL = 0  # the window of a layer that reads everything
KINDS = ("full_attention", "sliding_attention")
# Where config.json leaves it out, transformers 5 takes these: a window, and the layers before the first that has one.
DEFAULT_WINDOW = {"MistralForCausalLM": 4096, "GptOssForCausalLM": 128}
DEFAULT_SWITCHED_WINDOW = 4096
DEFAULT_FULL_LAYERS = 28
SWITCHED = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")  # have a window only with use_sliding_window


def layer_windows(raw: Mapping[str, Any], architecture: str, layers: int) -> tuple[int, ...]:
    """The window of each layer in tokens, FULL without. Raises ValueError for what config.json must not say."""
    window = _window(raw, architecture)
    if not window:
        return (FULL,) * layers
    kinds = raw.get("layer_types") or _default_kinds(raw, architecture, layers)
    if len(kinds) != layers or not set(kinds) <= set(KINDS):
        raise ValueError(f"layer_types = {kinds!r}; supported: one of {', '.join(KINDS)} for each of {layers} layers")
    return tuple(window if kind == "sliding_attention" else FULL for kind in kinds)


def _window(raw: Mapping[str, Any], architecture: str) -> int:
    if architecture in SWITCHED:
        window = raw.get("sliding_window", DEFAULT_SWITCHED_WINDOW) if raw.get("use_sliding_window") else None
    elif architecture in DEFAULT_WINDOW:
        window = raw.get("sliding_window", DEFAULT_WINDOW[architecture])
    else:
        window = None
    if window is None:
        return FULL
    if not isinstance(window, int) or window < 1:
        raise ValueError(f"sliding_window = {window!r}; supported: tokens, at least 1, or null")
    return window


def _default_kinds(raw: Mapping[str, Any], architecture: str, layers: int) -> list[str]:
    if architecture == "GptOssForCausalLM":
        return [KINDS[1 - index % 2] for index in range(layers)]
    full = int(raw.get("max_window_layers", DEFAULT_FULL_LAYERS)) if architecture in SWITCHED else 0
    return [KINDS[index >= full] for index in range(layers)]


class Stretch(NamedTuple):
    """The part of a sequence that one step reads: `length` tokens up to its end, `skip` tokens into the first page."""

    pages: npt.NDArray[np.int32]
    skip: int
    length: int


def stretches(seqs: Sequence[SeqSlice], page_size: int, window: int = FULL) -> list[Stretch]:
    """What the new tokens of each sequence attend to, together; pages before that are not touched."""
    parts = []
    for seq in seqs:
        start = max(0, seq.prefix_len + 1 - window) if window else 0
        first, skip = divmod(start, page_size)
        parts.append(Stretch(seq.pages[first : -(-seq.total_len // page_size)], skip, seq.total_len - start))
    return parts
