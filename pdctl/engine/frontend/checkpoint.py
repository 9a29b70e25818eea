"""What the HTTP process needs to know of a checkpoint, read from its small JSON files; the ranks read the rest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl.engine.frontend.tokenizer import ChatTemplate, Tokenizer
from pdctl.errors import PdctlError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """generation_config.json: what a chat request that leaves a field out gets (sglang: --sampling-defaults model)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    model_type: str
    architectures: tuple[str, ...]
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    defaults: SamplingDefaults

    @classmethod
    def load(cls, directory: Path) -> Checkpoint:
        """Raises PdctlError naming the file that is missing or malformed."""
        config = _read(directory / "config.json")
        generation = _read(directory / "generation_config.json", optional=True)
        known = SamplingDefaults.__dataclass_fields__
        defaults = {name: value for name, value in generation.items() if name in known and value is not None}
        try:
            template = ChatTemplate.load(directory)
        except (ValueError, KeyError) as error:
            raise PdctlError(f"{directory}/tokenizer_config.json: {error}", "the file is not valid JSON") from None
        return cls(
            model_type=str(config.get("model_type", "")),
            architectures=tuple(config.get("architectures") or ()),
            tokenizer=Tokenizer.load(directory, int(config.get("vocab_size") or 0)),
            chat_template=template,
            defaults=SamplingDefaults(**defaults),
        )


def _read(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PdctlError(f"{path}: {error}", "give --model-path the directory of a Hugging Face checkpoint") from None
    if not isinstance(content, dict):
        raise PdctlError(f"{path}: not a JSON object", "give --model-path the directory of a Hugging Face checkpoint")
    return content
