"""Which attention a model architecture has, as far as handing its KV cache to another width is concerned.

Source: sglang 0.5.23 srt/configs/model_config.py (AttentionArch.MLA, is_hybrid_swa_model) and hybrid_arch.py
(mambaish_config). An architecture in neither list keeps one KV head or more per rank: GQA.
"""

from __future__ import annotations

from enum import Enum


class Family(str, Enum):
    """What a rank's KV cache holds."""

    MLA = "mla"  # the whole latent on every rank: any two widths fit
    GQA = "gqa"  # a share of the heads: other widths need slicing
    HYBRID = "hybrid"  # sliding-window or recurrent state beside the KV, which no backend slices in every release


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


def family(architecture: str) -> Family:
    if architecture in SLIDING or architecture in RECURRENT:
        return Family.HYBRID
    return Family.MLA if architecture in MLA else Family.GQA


def recurrent(architecture: str) -> bool:
    """Whether it has Mamba-like state, whose type both sides must share."""
    return architecture in RECURRENT
