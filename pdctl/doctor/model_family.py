"""Which attention a model architecture has, as far as handing its KV cache to another width is concerned.

Of a topology or manifest it is told by the config.json of its model, where that can be read from here.
Source: sglang 0.5.23 srt/configs/model_config.py (AttentionArch.MLA, is_hybrid_swa_model) and hybrid_arch.py
(mambaish_config). An architecture in neither list keeps one KV head or more per rank: GQA.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pdctl.doctor.static.servers import Servers

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
    GQA = "gqa"  # a share of the heads: other widths need slicing
    HYBRID = "hybrid"  # sliding-window or recurrent state beside the KV, which no backend slices in every release


def family(architecture: str) -> Family:
    if architecture in SLIDING or architecture in RECURRENT:
        return Family.HYBRID
    return Family.MLA if architecture in MLA else Family.GQA


def recurrent(architecture: str) -> bool:
    """Whether it has Mamba-like state, whose type both sides must share."""
    return architecture in RECURRENT


class CheckpointModel(NamedTuple):
    architecture: str
    family: Family
    longest: int | None  # max_position_embeddings

    @property
    def recurrent(self) -> bool:
        return recurrent(self.architecture)


def model(servers: Servers) -> CheckpointModel | None:
    """None where there is no config.json, or one that names no architecture."""
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
    """model.config, else the checkpoint's own where it is a directory here."""
    topology = servers.topology
    said = [topology.model.config, topology.model.path] if topology is not None else []
    said += [side.flags.text("model-path") for side in servers.sides]
    for each in filter(None, said):
        path = Path(each)
        path = path / "config.json" if path.is_dir() else path
        if path.is_file():
            return path
    return None
