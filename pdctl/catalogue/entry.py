"""One failure mode of a PD deployment: its stable code, all pdctl says about it, the threads that report it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError
from pdctl.quick_definitions import NamedTuple, compile_late
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

_COMPOSED = frozenset({"fix", "look", "next"})  # fixes that a check has put together, with `pasteable`
PLACEHOLDER = compile_late(r"\{([a-z_]+)(?:\|((?:[^{}]|\{[^{}]*\})*))?\}")  # {name} or {name|words without a value}
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


class Severity(str, Enum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Needs(str, Enum):
    """What must be examined to detect a failure mode, the cheapest first."""

    TOPOLOGY = "topology"  # a topology or manifest alone
    ENDPOINT = "endpoint"  # an engine's HTTP surface or bootstrap server
    ROUTER = "router"
    HOST = "host"
    CANARY = "canary"  # a real request
    LOG = "log"


class Entry(NamedTuple):
    """A failure mode. A retired code is never reused. `slug` is the code's name in kebab case.

    headline: one line; may have placeholders that the check fills: {name}, or {name|words}, where the words are used
    in a general explanation. explain: what happens, why, how it is recognised, and after "Next:" which side to look at
    then. fix: one command or edit to paste; may have the same placeholders.
    versions: the affected releases, in words. source: where the failure mode is known from.
    reports: public threads that report it, as "sglang#14439" (`thread_address` gives the addresses).
    unseen: "" if a check or log signature exists; otherwise why it cannot be checked.
    """

    code: str
    slug: str
    severity: Severity
    headline: str
    explain: str
    fix: str
    needs: tuple[Needs, ...]
    versions: str
    source: str
    unseen: str = ""
    reports: tuple[str, ...] = ()


def cited(reports: str) -> tuple[str, ...]:
    """The reports in a text that lists them separated by spaces, as the catalogue does."""
    return tuple(reports.split())


def fill(text: str, values: Mapping[str, object]) -> str:
    """A headline or fix with its placeholders filled; one without a value becomes its words or its name in capitals."""

    def word(found: re.Match[str]) -> str:
        name, words = found[1], found[2]
        return str(values[name]) if name in values else words or name.upper().replace("_", "-")

    return PLACEHOLDER.sub(word, text)


def fill_fix(text: str, values: Mapping[str, object]) -> str:
    """A fix with its placeholders filled. What servers, logs and manifests gave cannot end its word in a shell."""
    parts, end, quote = [], 0, ""
    for found in PLACEHOLDER.finditer(text):
        before = text[end : found.start()]
        quote = _quote_after(before, quote)
        word = fill(found[0], values)
        parts += [before, word if found[1] in _COMPOSED or found[1] not in values else pasteable(word, quote)]
        end = found.end()
    return "".join([*parts, text[end:]])


def _quote_after(text: str, quote: str) -> str:
    """The quote that is still open after `text`, which begins inside `quote`; "" if none is."""
    for letter in text:
        if letter in "'\"" and quote in ("", letter):
            quote = "" if quote else letter
    return quote


def thread_address(report: str) -> str:
    """The URL of a report's thread; GitHub redirects it if it is a pull request. Raise PdctlError if it is unknown."""
    name, _, number = report.partition("#")
    if name not in REPOSITORIES or not number.isdigit():
        raise PdctlError(f"`{report}` is not a report pdctl can point to", f"known: {', '.join(REPOSITORIES)}")
    return f"https://github.com/{REPOSITORIES[name]}/issues/{number}"
