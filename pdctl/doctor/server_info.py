"""An engine's /server_info in the terms in which the two roles must agree (sglang 0.5.3 to 0.5.23)."""

from __future__ import annotations

import json
import math
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.engines.versions import resolve
from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pdctl.doctor.static.servers import Servers
    from pdctl.engines.versions import Version
    from pdctl.fleet.observations import ObservedEngine


LONG = 100  # characters read of a version


class Missing(Enum):
    """Stands for a value an engine did not report; null is a reported value."""

    HERE = "not known"


HERE = Missing.HERE


class KvType(NamedTuple):
    """What determines the KV cache's type. `flag` as given: `auto` means the model's own, or its checkpoint's."""

    flag: str
    dtype: str
    quantization: str | None
    release: Version | None


class Widths(NamedTuple):
    """`attn_tp`: ranks that share one request's heads. `architecture`: "" if unknown."""

    attn_tp: int
    architecture: str


def value(engine: ObservedEngine, key: str) -> Hashable:
    """A scalar of /server_info, or HERE if it has none (unreachable, or a release without the key)."""
    found = engine.info.get(key, HERE)
    if isinstance(found, float) and not math.isfinite(found):
        return HERE
    return found if found is None or isinstance(found, str | int | float | Missing) else str(found)


def release(engine: ObservedEngine) -> Version | None:
    """The known release whose rules apply to the engine; None if its version is unreadable or too old."""
    try:
        return resolve(engine.version[:LONG]).known
    except UsageError:
        return None


def version(engine: ObservedEngine) -> Hashable:
    return engine.version or HERE


def width(engine: ObservedEngine) -> int | None:
    """The number of attention DP groups; None if unknown.

    Up to 0.5.18 it is `dp_size` with `enable_dp_attention`; 0.5.23 counts replicas in `dp_size`, and has
    `attn_dp_size`, from which it derives `enable_dp_attention`.
    """
    attention = engine.number("attn_dp_size")
    if attention is not None and attention > 1:
        return attention
    return engine.number("dp_size") if engine.info.get("enable_dp_attention") else 1


def replicas(engine: ObservedEngine) -> int | None:
    """The number of plain data-parallel copies of the model; None if unknown."""
    return 1 if (width(engine) or 1) > 1 else engine.number("dp_size")


def dp_ranks(engine: ObservedEngine) -> int | None:
    """The number of DP groups a room can belong to; None if unknown."""
    groups, copies = width(engine), replicas(engine)
    return None if groups is None or copies is None else groups * copies


def attn_tp(engine: ObservedEngine) -> int | None:
    tp, groups = engine.number("tp_size"), width(engine)
    if tp is None or not groups:
        return None
    return tp // groups // (engine.number("attn_cp_size") or 1)


def ranks(engine: ObservedEngine) -> int | None:
    """The number of bootstrap registrations a prefill owes: dp × cp × attention tp × pp, that is, all its ranks."""
    tp, pp, copies = engine.number("tp_size"), engine.number("pp_size"), replicas(engine)
    return None if tp is None or pp is None or copies is None else tp * pp * copies


def architecture(engine: ObservedEngine) -> str:
    """The architecture from /model_info; "" in releases whose /model_info does not name it."""
    found = engine.model.get("architectures")
    return str(found[0]) if isinstance(found, list) and found else ""


def widths(engine: ObservedEngine) -> Hashable:
    own = attn_tp(engine)
    return HERE if own is None else Widths(own, architecture(engine))


def kv_type(engine: ObservedEngine) -> Hashable:
    flag = engine.text("kv_cache_dtype")
    if flag is None:
        return HERE
    return KvType(flag, engine.text("dtype") or "auto", engine.text("quantization"), release(engine))


def ib_devices(engine: ObservedEngine) -> Hashable:
    """The device names as a tuple; () if none was named, HERE if not reported."""
    said = engine.info.get("disaggregation_ib_device", HERE)
    if said is HERE:
        return HERE
    return tuple(filter(None, str(said or "").replace(" ", "").split(",")))


def embedded(engine: ObservedEngine) -> bool:
    """Whether it is pdctl's own engine, which behaves like an SGLang release but is not one."""
    return "sglang_compat" in engine.info


def on_cpu(engine: ObservedEngine) -> bool:
    return engine.text("device") == "cpu"


def backend(engine: ObservedEngine) -> str:
    return engine.text("disaggregation_transfer_backend") or ""


def longest(engine: ObservedEngine) -> int | None:
    """Tokens in the longest prompt it accepts, the least of its context and its KV pool; None if unknown."""
    said = [engine.number(key) for key in ("context_length", "max_req_input_len", "max_total_num_tokens")]
    return min((limit for limit in said if limit is not None and limit > 0), default=None)


# Architectures by attention, as far as it matters for handing the KV cache over to another width. Source: sglang
# 0.5.23 srt/configs/model_config.py (AttentionArch.MLA, is_hybrid_swa_model), hybrid_arch.py (mambaish_config).
# An architecture in neither list keeps one or more KV heads per rank: GQA.
MLA = frozenset({
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM", "LongcatFlashForCausalLM", "DotsVLMForCausalLM", "MistralLarge3ForCausalLM",
    "MiniCPM3ForCausalLM", "DeepseekVL2ForCausalLM", "KimiVLForConditionalGeneration",
    "KimiK25ForConditionalGeneration", "SarvamMLAForCausalLM", "HYV4ForCausalLM",
})  # fmt: skip
SLIDING = frozenset({
    "Llama4ForConditionalGeneration", "DeepseekV4ForCausalLM", "GptOssForCausalLM", "GraniteSWAForCausalLM",
    "GraniteMoeSWAForCausalLM", "IQuestQ1ForCausalLM", "MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM",
    "Step3p5ForCausalLM", "Step3p7ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration",
    "LagunaForCausalLM", "MellumForCausalLM", "InklingForConditionalGeneration", "Dots3NoteForCausalLM",
})  # fmt: skip
RECURRENT = frozenset({
    "Qwen3NextForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "FalconH1ForCausalLM", "NemotronHForCausalLM",
    "NemotronHPuzzleForCausalLM", "GraniteMoeHybridForCausalLM", "KimiLinearForCausalLM", "JetNemotronForCausalLM",
    "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM", "ZayaForCausalLM",
    "GigaChat35ForCausalLM", "MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM",
})  # fmt: skip
NO_CONFIG = "the model's config.json is not at hand (set model.config)"


class Family(str, Enum):
    """What a rank's KV cache holds."""

    MLA = "mla"  # the whole latent on every rank: any two widths fit
    GQA = "gqa"  # a share of the heads: a different width needs slicing
    HYBRID = "hybrid"  # sliding-window or recurrent state besides the KV, which no backend slices in every release


def family(architecture: str) -> Family:
    if architecture in SLIDING or architecture in RECURRENT:
        return Family.HYBRID
    return Family.MLA if architecture in MLA else Family.GQA


def recurrent(architecture: str) -> bool:
    """Whether the architecture has Mamba-like state, whose type must be the same on both sides."""
    return architecture in RECURRENT


class CheckpointModel(NamedTuple):
    architecture: str
    family: Family
    longest: int | None  # max_position_embeddings

    @property
    def recurrent(self) -> bool:
        return recurrent(self.architecture)


def model(servers: Servers) -> CheckpointModel | None:
    """The model from its config.json; None if there is none, or it names no architecture."""
    path = _path(servers)
    if path is None:
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    names = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(names, list) or not names:
        return None
    inner = config.get("text_config")
    said = {**inner, **config} if isinstance(inner, dict) else config
    found = family(str(names[0]))
    if found is Family.GQA and said.get("kv_lora_rank"):
        found = Family.MLA
    longest = said.get("max_position_embeddings")
    return CheckpointModel(str(names[0]), found, longest if isinstance(longest, int) else None)


def _path(servers: Servers) -> Path | None:
    """The path of config.json: model.config, else the checkpoint's own if it is a directory on this host."""
    topology = servers.topology
    said = [topology.model.config, topology.model.path] if topology is not None else []
    said += [side.flags.text("model-path") for side in servers.sides]
    for each in filter(None, said):
        path = Path(each)
        path = path / "config.json" if path.is_dir() else path
        if path.is_file():
            return path
    return None
