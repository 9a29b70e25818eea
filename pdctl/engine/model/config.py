"""What a Hugging Face checkpoint says about a dense Llama, Qwen2 or Qwen3 model; refuses what the engine cannot run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdctl.errors import PdctlError

if TYPE_CHECKING:
    from collections.abc import Mapping

SUPPORTED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
SUPPORTED_ROPE = ("default", "linear", "llama3")
SUPPORTED_DTYPES = ("float32", "bfloat16", "float16")


class CheckpointError(PdctlError):
    """A checkpoint that cannot be served: names the directory, the part, and what would be accepted."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding. `low_freq`, `high_freq` and `original_context` are llama3's scaling only."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq: float = 1.0
    high_freq: float = 4.0
    original_context: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything that shapes the computation. Counts are of the whole model; `rank_*` are one rank's share."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope: Rope
    rms_eps: float
    tie_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    max_position: int  # tokens
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    dtype: str

    @classmethod
    def from_dir(cls, path: str | Path) -> ModelConfig:
        """Read config.json and generation_config.json. Raises CheckpointError naming what is not supported."""
        directory = Path(path)
        raw = _read_json(directory / "config.json")
        generation = directory / "generation_config.json"
        return cls.from_json(raw, _read_json(generation) if generation.is_file() else {}, where=str(directory))

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], generation: Mapping[str, Any], where: str) -> ModelConfig:
        architecture = _architecture(raw, where)
        _refuse_features(raw, architecture, where)
        try:
            heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
            config = cls(
                architecture=architecture,
                layers=int(raw["num_hidden_layers"]),
                hidden=hidden,
                heads=heads,
                kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_dim=int(raw.get("head_dim") or hidden // heads),
                intermediate=int(raw["intermediate_size"]),
                vocab=int(raw["vocab_size"]),
                rope=_rope(raw, where),
                rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
                tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
                qkv_bias=architecture == "Qwen2ForCausalLM",
                qk_norm=architecture == "Qwen3ForCausalLM",
                max_position=int(raw.get("max_position_embeddings", 2048)),
                eos_token_ids=_token_ids(generation.get("eos_token_id"), raw.get("eos_token_id")),
                bos_token_id=raw.get("bos_token_id"),
                dtype=_dtype(raw, where),
            )
        except KeyError as missing:
            raise CheckpointError(f"{where}: config.json has no {missing}") from None
        if config.heads % config.kv_heads or config.head_dim % 2:
            raise CheckpointError(
                f"{where}: {config.heads} heads over {config.kv_heads} KV heads of {config.head_dim} cannot be grouped"
            )
        return config

    def rank_kv_heads(self, tp_size: int) -> int:
        """KV heads of one rank; with more ranks than KV heads each is held by several (sglang's rule)."""
        return max(1, self.kv_heads // tp_size)

    def check_tp(self, tp_size: int) -> None:
        """Raise CheckpointError when the model cannot be cut into `tp_size` equal ranks."""
        for name, count in (("num_attention_heads", self.heads), ("intermediate_size", self.intermediate)):
            if count % tp_size:
                raise CheckpointError(f"{name} {count} is not divisible by --tp-size {tp_size}")
        if self.kv_heads % tp_size and tp_size % self.kv_heads:
            raise CheckpointError(
                f"num_key_value_heads {self.kv_heads} and --tp-size {tp_size}: one must divide the other"
            )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file", "give the directory of a Hugging Face checkpoint") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path}: a JSON object is expected")
    return loaded


def _architecture(raw: Mapping[str, Any], where: str) -> str:
    names = [str(name) for name in raw.get("architectures") or ()]
    for name in names:
        if name in SUPPORTED:
            return name
    found = ", ".join(names) or "no architecture"
    raise CheckpointError(
        f"{where}: {found} is not served by the embedded engine; it serves {', '.join(SUPPORTED)}",
        "use `engine: {kind: sglang}` in the topology for other models",
    )


def _refuse_features(raw: Mapping[str, Any], architecture: str, where: str) -> None:
    """Features that change the arithmetic and are not implemented: running on would give wrong text, not an error."""
    windowed = raw.get("use_sliding_window") and raw.get("sliding_window")
    wrong = (
        ("quantization_config", raw.get("quantization_config"), "unquantised weights"),
        ("use_sliding_window", windowed, "full attention"),
        ("hidden_act", raw.get("hidden_act", "silu") not in ("silu", "swish"), "silu"),
        ("mlp_bias", raw.get("mlp_bias"), "no bias in the MLP"),
        ("attention_bias", raw.get("attention_bias"), "no attention_bias; the bias of Qwen2 is built in"),
    )
    for key, found, accepted in wrong:
        if found:
            raise CheckpointError(f"{where}: {architecture} with {key} = {raw.get(key)!r}; supported: {accepted}")


def _rope(raw: Mapping[str, Any], where: str) -> Rope:
    """`rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (before)."""
    scaling: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in SUPPORTED_ROPE:
        raise CheckpointError(f"{where}: rope type {kind!r} is not supported; supported: {', '.join(SUPPORTED_ROPE)}")
    partial = scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor")) or 1.0
    if partial != 1.0:
        raise CheckpointError(f"{where}: partial_rotary_factor {partial} is not supported; supported: 1.0")
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if kind == "default":
        return Rope(theta)
    original = scaling.get("original_max_position_embeddings") or raw.get("max_position_embeddings", 0)
    return Rope(
        theta=theta,
        kind=kind,
        factor=float(scaling["factor"]),
        low_freq=float(scaling.get("low_freq_factor", 1.0)),
        high_freq=float(scaling.get("high_freq_factor", 4.0)),
        original_context=int(original),
    )


def _token_ids(*values: int | list[int] | None) -> tuple[int, ...]:
    """Every id named anywhere, in order, once."""
    ids: dict[int, None] = {}
    for value in values:
        if value is not None:
            ids.update(dict.fromkeys([value] if isinstance(value, int) else value))
    return tuple(ids)


def _dtype(raw: Mapping[str, Any], where: str) -> str:
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
    if name not in SUPPORTED_DTYPES:
        raise CheckpointError(f"{where}: dtype {name!r} is not supported; supported: {', '.join(SUPPORTED_DTYPES)}")
    return name
