"""Where a report's short name points: `sglang#14439` is a thread of sgl-project/sglang."""

from __future__ import annotations

from pdctl.errors import PdctlError

REPOSITORIES = {
    "sglang": "sgl-project/sglang",
    "Mooncake": "kvcache-ai/Mooncake",
    "nixl": "ai-dynamo/nixl",
    "dynamo": "ai-dynamo/dynamo",
    "vllm": "vllm-project/vllm",
    "vllm-ascend": "vllm-project/vllm-ascend",
    "llm-d": "llm-d/llm-d",
    "llm-d-router": "llm-d/llm-d-router",
    "smg": "smg-project/smg",
    "aibrix": "vllm-project/aibrix",
    "kthena": "volcano-sh/kthena",
    "ray": "ray-project/ray",
    "InferenceX": "SemiAnalysisAI/InferenceX",
    "srt-slurm": "NVIDIA/srt-slurm",
    "ishandhanani/srt-slurm": "ishandhanani/srt-slurm",
    "DeepEP": "deepseek-ai/DeepEP",
    "TensorRT-LLM": "NVIDIA/TensorRT-LLM",
    "ATOM": "ROCm/ATOM",
    "LightLLM": "ModelTC/LightLLM",
    "LMCache": "LMCache/LMCache",
    "miles": "radixark/miles",
    "bytedance-iaas/sglang": "bytedance-iaas/sglang",
    "vllm-backport": "wtdcode/vllm-backport",
}


def address(report: str) -> str:
    """The thread's address; the site forwards pull requests from there."""
    name, _, number = report.partition("#")
    if name not in REPOSITORIES or not number.isdigit():
        raise PdctlError(f"`{report}` is not a report pdctl can point to", f"known: {', '.join(REPOSITORIES)}")
    return f"https://github.com/{REPOSITORIES[name]}/issues/{number}"
