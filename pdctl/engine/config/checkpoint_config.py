"""A Hugging Face checkpoint before it is loaded: its config, the models the engine cannot run, its safetensors files.

A safetensors file consists of the header's length (8 bytes, little-endian), the header (JSON: name → dtype, shape,
start and end of the data) and the tensors. Truncated downloads, and pointers in place of files, are found before a rank
is started, without torch and numpy.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdctl.engine.config.layer_kinds import SWITCHED, Mixture, layer_windows, mixture, sparse_layers
from pdctl.errors import PdctlError
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.layout.shape import Shape


GPT_OSS = "GptOssForCausalLM"
SUPPORTED = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    GPT_OSS,
)
SUPPORTED_ROPE = ("default", "linear", "llama3", "yarn")
QKV_BIAS = ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM", GPT_OSS)
QK_NORM = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
# Whole numbers above 0. Null means the default, for those that have one.
COUNTS = ("num_attention_heads", "hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
COUNTS_WITH_DEFAULT = ("num_key_value_heads", "head_dim", "max_position_embeddings")
SUPPORTED_DTYPES = ("float32", "bfloat16", "float16")
LATENT_ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")


class CheckpointError(PdctlError):
    """A checkpoint that cannot be served; the message names the directory, the setting and what is supported."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding. `low_freq` and `high_freq` are for llama3 scaling, fields after `original_context` for yarn.

    Rotated queries and keys are multiplied by `magnitude`. `all_dims` is mscale_all_dim, which gives yarn's factor for
    whole heads: DeepSeek's softmax uses that factor (attention_layer.py).
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq: float = 1.0
    high_freq: float = 4.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole: bool = True  # round the range between the two betas to whole dimensions
    magnitude: float = 1.0
    all_dims: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything that determines the computation. Counts are for the whole model; `rank_*` give one rank's share."""

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
    windows: tuple[int, ...]  # of each layer, in tokens; 0: full attention
    latent: Latent | None = None  # MLA: `head_dim` is then the rotated part of a head, `kv_heads` has no meaning
    mixture: Mixture | None = None
    out_bias: bool = False  # of attention's output projection
    sinks: bool = False  # attention sinks (forward_pass.py)
    sparse: tuple[bool, ...] = ()  # whether each layer of an MoE model has experts; () for a dense model

    @classmethod
    def from_dir(cls, path: str | Path) -> ModelConfig:
        """Read config.json and generation_config.json. Raise CheckpointError naming what is not supported."""
        directory = Path(path)
        raw = _read_json(directory / "config.json")
        generation = directory / "generation_config.json"
        return cls.from_json(raw, _read_json(generation) if generation.is_file() else {}, where=str(directory))

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], generation: Mapping[str, Any], where: str) -> ModelConfig:
        architecture = _architecture(raw, where)
        _refuse_features(raw, architecture, where)
        _refuse_counts(raw, where)
        try:
            heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
            mla, experts = latent(raw, architecture), mixture(raw, architecture)
            config = cls(
                architecture=architecture,
                layers=int(raw["num_hidden_layers"]),
                hidden=hidden,
                heads=heads,
                kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_dim=mla.rope_dim if mla else int(raw.get("head_dim") or hidden // heads),
                intermediate=int(raw["intermediate_size"]),
                vocab=int(raw["vocab_size"]),
                rope=_rope(raw, architecture, where),
                rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
                tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
                qkv_bias=architecture in QKV_BIAS,
                qk_norm=architecture in QK_NORM,
                max_position=int(raw.get("max_position_embeddings") or 2048),
                eos_token_ids=_token_ids(generation.get("eos_token_id"), raw.get("eos_token_id")),
                bos_token_id=raw.get("bos_token_id"),
                dtype=_dtype(raw, where),
                windows=layer_windows(raw, architecture, int(raw["num_hidden_layers"])),
                out_bias=architecture == GPT_OSS,
                sinks=architecture == GPT_OSS,
                latent=mla,
                mixture=experts,
                sparse=sparse_layers(raw, int(raw["num_hidden_layers"])) if experts else (),
            )
        except KeyError as missing:
            raise CheckpointError(f"{where}: config.json has no {missing}") from None
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{where}: {architecture} with {error}") from None
        if config.heads % config.kv_heads or config.head_dim % 2:
            raise CheckpointError(
                f"{where}: {config.heads} heads over {config.kv_heads} KV heads of {config.head_dim} cannot be grouped"
            )
        return config

    @property
    def slabs_per_layer(self) -> int:
        """2 (K and V), or 1 (the latent)."""
        return 1 if self.latent else 2

    @property
    def cached_dim(self) -> int:
        """Elements that one token and KV head have in one slab."""
        return self.latent.cached_dim if self.latent else self.head_dim

    def rank_kv_heads(self, attn_tp: int) -> int:
        """Return the KV heads of one rank; with more ranks than KV heads, several hold the same one (sglang's rule)."""
        return 1 if self.latent else max(1, self.kv_heads // attn_tp)

    def check_shape(self, shape: Shape) -> None:
        """Raise CheckpointError if the model cannot be split evenly over the ranks of `shape`."""
        for what, count, flag, parts in self._cuts(shape):
            if count % parts:
                raise CheckpointError(f"{what} {count} is not divisible by {flag} {parts}")
        attn_tp = shape.attn_tp_size
        if not self.latent and self.kv_heads % attn_tp and attn_tp % self.kv_heads:
            raise CheckpointError(
                f"num_key_value_heads {self.kv_heads} and {_attention_flag(shape)} {attn_tp}: one must divide the other"
            )
        if shape.pp > self.layers:
            raise CheckpointError(f"num_hidden_layers {self.layers} are fewer than --pp-size {shape.pp} stages")
        if shape.ep_size > 1 and not self.mixture:
            raise CheckpointError(f"--ep-size {shape.ep_size}: {self.architecture} has no experts")

    def _cuts(self, shape: Shape) -> list[tuple[str, int, str, int]]:
        """Return what is split: its name and size in config.json, the flag and the number of parts."""
        cuts = [("num_attention_heads", self.heads, _attention_flag(shape), shape.attn_tp_size)]
        if not all(self.sparse) or not self.sparse:
            cuts.append(("intermediate_size", self.intermediate, "--tp-size", shape.tp))
        if self.mixture:
            experts = self.mixture
            cuts += [
                ("experts", experts.experts, "--ep-size", shape.ep_size),
                ("moe_intermediate_size", experts.intermediate, "MoE TP (--tp-size / --ep-size)", shape.moe_tp_size),
                ("intermediate size of the shared expert", experts.shared_intermediate, "--tp-size", shape.tp),
            ]
        return cuts


def _attention_flag(shape: Shape) -> str:
    return "attention TP (--tp-size / --attn-dp-size)" if shape.dp_attention else "--tp-size"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file", "give the directory of a Hugging Face checkpoint") from None
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}", "let the engine read it") from None
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
    """Reject features that change the arithmetic but are not implemented: ignoring them would give wrong text."""
    wrong = (
        ("quantization_config", raw.get("quantization_config"), "unquantised weights"),
        ("hidden_act", raw.get("hidden_act", "silu") not in ("silu", "swish"), "silu"),
        ("use_sliding_window", raw.get("use_sliding_window") and architecture not in SWITCHED, "full attention"),
        ("mlp_bias", raw.get("mlp_bias"), "no bias in the MLP"),
        (
            "attention_bias",
            raw.get("attention_bias") and architecture != GPT_OSS,
            "no attention_bias; the bias of Qwen2 is built in",
        ),
        ("attention_bias", architecture == GPT_OSS and not raw.get("attention_bias", True), "attention_bias"),
    )
    for key, found, accepted in wrong:
        if found:
            raise CheckpointError(f"{where}: {architecture} with {key} = {raw.get(key)!r}; supported: {accepted}")


def _refuse_counts(raw: Mapping[str, Any], where: str) -> None:
    for key in (*COUNTS, *COUNTS_WITH_DEFAULT):
        count = raw.get(key, 1)  # a missing key is reported where it is read
        if (count is None and key in COUNTS_WITH_DEFAULT) or (type(count) is int and count > 0):
            continue
        raise CheckpointError(f"{where}: config.json has {key} = {count!r}; supported: a whole number above 0")


def _rope(raw: Mapping[str, Any], architecture: str, where: str) -> Rope:
    """`rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (before)."""
    scaling: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if architecture == GPT_OSS and not scaling:
        raise KeyError("rope_scaling")  # its default is yarn with its own parameters, not ours
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in SUPPORTED_ROPE:
        raise CheckpointError(f"{where}: rope type {kind!r} is not supported; supported: {', '.join(SUPPORTED_ROPE)}")
    partial = scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor")) or 1.0
    if partial != 1.0:
        raise CheckpointError(f"{where}: partial_rotary_factor {partial} is not supported; supported: 1.0")
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if kind == "default":
        return Rope(theta)
    context = int(scaling.get("original_max_position_embeddings") or raw.get("max_position_embeddings", 0))
    factor = float(scaling["factor"])
    if kind == "yarn":
        return _yarn(scaling, theta, factor, context)
    return Rope(
        theta=theta,
        kind=kind,
        factor=factor,
        low_freq=float(scaling.get("low_freq_factor", 1.0)),
        high_freq=float(scaling.get("high_freq_factor", 4.0)),
        original_context=context,
    )


def _yarn(scaling: Mapping[str, Any], theta: float, factor: float, context: int) -> Rope:
    part, whole = scaling.get("mscale"), scaling.get("mscale_all_dim")
    magnitude = scaling.get("attention_factor")
    if magnitude is None:
        magnitude = yarn_scale(factor, part) / yarn_scale(factor, whole) if part and whole else yarn_scale(factor, 1.0)
    return Rope(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_context=context,
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        whole=bool(scaling.get("truncate", True)),
        magnitude=float(magnitude),
        all_dims=float(whole or 0.0),
    )


def yarn_scale(factor: float, weight: float) -> float:
    """Return the factor by which yarn scales attention for a context extended by `factor`."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _token_ids(*values: int | list[int] | None) -> tuple[int, ...]:
    """Return the ids of all `values`, in order and without duplicates."""
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


class Latent(NamedTuple):
    """Widths of MLA in elements. The cache has one vector of `kv_rank` + `rope_dim` per token, shared by all heads."""

    q_rank: int  # 0: queries are projected from the hidden states in one step
    kv_rank: int
    nope_dim: int  # of the part of a query or key head without position
    rope_dim: int  # of the rotated part of a query head, and of the key part that all heads share
    v_dim: int
    adjacent: bool  # whether elements that rotate as a pair are adjacent in the checkpoint

    @property
    def qk_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def cached_dim(self) -> int:
        return self.kv_rank + self.rope_dim


def latent(raw: Mapping[str, Any], architecture: str) -> Latent | None:
    """Return None for a model without MLA. Raise KeyError for a missing key, ValueError for an odd width."""
    if architecture not in LATENT_ARCHITECTURES:
        return None
    found = Latent(
        q_rank=int(raw.get("q_lora_rank") or 0),
        kv_rank=int(raw["kv_lora_rank"]),
        nope_dim=int(raw["qk_nope_head_dim"]),
        rope_dim=int(raw["qk_rope_head_dim"]),
        v_dim=int(raw["v_head_dim"]),
        adjacent=architecture == "DeepseekV2ForCausalLM" or bool(raw.get("rope_interleave", True)),
    )
    for key, width in (
        ("kv_lora_rank", found.kv_rank),
        ("qk_nope_head_dim", found.nope_dim),
        ("qk_rope_head_dim", found.rope_dim),
        ("q_lora_rank", found.q_rank),
    ):
        if width % 2:  # rotation takes two elements as a complex number, which must start at an even index
            raise ValueError(f"{key} = {width}; supported: even widths")
    return found


SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LENGTH = 8  # bytes
LONGEST_HEADER = 100_000_000  # bytes, the format's own limit


def weight_index(directory: Path) -> dict[str, str]:
    """Return tensor name → file name; empty if all are in `SINGLE`. Raise CheckpointError naming what is missing."""
    path = directory / INDEX
    if not path.is_file():
        if not (directory / SINGLE).is_file():
            message = f"{directory}: neither {SINGLE} nor {INDEX} is there"
            raise CheckpointError(message, "convert the weights to safetensors")
        return {}
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if names:
            return {str(name): str(file) for name, file in names.items()}
        raise ValueError("it names no tensor")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path}: no index of safetensors files ({reason})", "download it again") from None


def check_weight_files(directory: Path) -> None:
    """Check the header of every file. Raise CheckpointError naming the first file that is missing or not whole."""
    for name in sorted(set(weight_index(directory).values())) or [SINGLE]:
        problem = _problem(directory / name)
        if problem:
            raise CheckpointError(
                f"{directory / name}: not a readable safetensors file: {problem}", "download it again"
            )


def _problem(path: Path) -> str:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH), "little")
            if not 0 < length <= min(LONGEST_HEADER, size - LENGTH):
                return f"{size} bytes that do not begin with a header"
            whole = LENGTH + length + _tensors(json.loads(file.read(length)))
    except OSError as error:
        return str(error.strerror)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError):
        return "its header does not say where the tensors lie"
    return "" if whole == size else f"{size} bytes, its header tells of {whole}"


def _tensors(header: dict[str, Any]) -> int:
    """Return the size of all tensors in bytes, according to the header."""
    return max((int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"), default=0)
