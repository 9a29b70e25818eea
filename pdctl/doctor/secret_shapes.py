"""What all detectors of secrets share: shapes of issued tokens, names of headers and variables, quotes."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from pdctl.engines.environment import FAMILIES
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_ISSUED = (
    r"(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{12,}",  # AWS key ids
    r"gh[pousr]_[A-Za-z0-9]{16,}",
    r"github_pat_[A-Za-z0-9_]{16,}",
    r"gl(?:pat|dt|ptt|rt|cbt|ft|imt|agent|soat|oas)-[A-Za-z0-9_.-]{16,}",
    r"hf_[A-Za-z0-9]{16,}",
    r"api_org_[A-Za-z0-9]{16,}",
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, OpenRouter, LiteLLM, …
    r"(?:sk|pk|rk|whsec)_(?:(?:live|test|prod)_)?[A-Za-z0-9]{16,}",  # Stripe
    r"nvapi-[A-Za-z0-9_-]{16,}",
    r"(?:gsk|fw|csk|tgp_v1|r8|ntn|secret|xai|pplx|voyage|jina|tvly|psk)[_-][A-Za-z0-9]{24,}",
    r"AIza[A-Za-z0-9_-]{30,}",
    r"ya29\.[A-Za-z0-9_.-]{16,}",
    r"GOCSPX-[A-Za-z0-9_-]{16,}",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"xapp-[A-Za-z0-9-]{16,}",
    r"npm_[A-Za-z0-9]{24,}",
    r"pypi-[A-Za-z0-9_-]{16,}",
    r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{16,}",
    r"do[opr]_v1_[a-f0-9]{32,}",
    r"dapi[a-f0-9]{32}",
    r"hv[sbr]\.[A-Za-z0-9_-]{16,}",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"gl(?:sa|c)_[A-Za-z0-9_+/=-]{16,}",
    r"(?:shpat|shpss|shpca|shppa)_[a-fA-F0-9]{24,}",
    r"sntry[su]_[A-Za-z0-9_+/=-]{16,}",
    r"tskey-[a-z]+-[A-Za-z0-9-]{10,}",
    r"pul-[a-f0-9]{32,}",
    r"PMAK-[a-f0-9-]{24,}",
    r"NRAK-[A-Z0-9]{20,}",
    r"lin_api_[A-Za-z0-9]{24,}",
    r"dp\.(?:pt|st|sa|ct)\.[A-Za-z0-9._-]{24,}",
    r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{32,}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{32,}",
    r"LTAI[A-Za-z0-9]{16,}",  # Alibaba Cloud
    r"AKID[A-Za-z0-9]{16,}",  # Tencent Cloud
    r"\d{8,10}:AA[A-Za-z0-9_-]{32,}",  # Telegram
    r"AC[a-f0-9]{32}|SK[a-f0-9]{32}",  # Twilio
    r"key-[a-f0-9]{32}",  # Mailgun
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{2,}(?:\.[A-Za-z0-9_-]*){0,3}",  # JSON web tokens
)
ISSUED = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_ISSUED)})")
# Request ids are kept, because rooms are found by them: SGLang's own, OpenAI's forms, and the values of their names.
REQUEST = re.compile(r"(?:chatcmpl|cmpl|resp|msg|req|call|run|thread|HEALTH_CHECK|bootstrap)[_-]")
REQUEST_NAME = re.compile(
    r"(?i)(?:rid|request[_-]?id|trace[_-]?id|correlation[_-]?id|span[_-]?id)\W{1,16}(?:\[\d+m\W{0,4}){0,3}$"
)
HASHED = re.compile(r"\$(?:1|2[aby]|5|6|7|y|apr1|argon2(?:id|i|d)|scrypt|pbkdf2)\$[^\s:\"']{8,}")  # crypt(3)
WEBHOOK = re.compile(
    r"(?i)\bhooks?\.slack\.com/(?:services|workflows)/(?P<value>[^\s\"'<>]+)|\bdiscord(?:app)?\.com/api/webhooks/(?P<other>[^\s\"'<>]+)"
)

HEADERS = (
    r"(?:proxy-|x-forwarded-|x-)?authorization|set-cookie2?|cookie|x-api-?key|api-?key|x-auth-token|x-auth-key|"
    r"x-goog-api-key|x-amz-security-token|x-vault-token|private-token|job-token|x-csrf-token|x-xsrf-token|"
    r"x-access-token|ocp-apim-subscription-key|x-hub-signature(?:-256)?|x-registry-auth|authentication"
)
QUERIED = (
    r"sig|signature|x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|access_token|"
    r"refresh_token|id_token|token|auth|apikey|api_key|api-key|key|password|passwd|pwd|secret|client_secret|code|"
    r"awsaccesskeyid|sessionid|session|jwt|assertion|credential"
)

# Variables whose values a bundle keeps: they determine how SGLang, its transports and the collectives behave.
KEPT_FAMILIES = (
    *FAMILIES, "NIXL_", "MOONCAKE_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "ROCM_", "NVSHMEM_", "OMP_", "MKL_", "ATEN_",
    "ONEDNN_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "FLASHINFER_", "VLLM_", "SGL_", "MORI_", "FI_",
    "IBV_", "MLX5_", "RDMAV_", "SLURM_", "PDCTL_", "PYTHON", "LC_", "TOKENIZERS_", "OTEL_", "RUST_", "DYN_", "ETCD_",
    "KUBERNETES_",
)  # fmt: skip
_KEPT = """
PATH LD_LIBRARY_PATH LD_PRELOAD HOSTNAME HOST_IP POD_IP POD_NAME NODE_NAME NODE_IP NAMESPACE POD_NAMESPACE TZ LANG TERM
NO_COLOR COLUMNS HF_HOME HF_HUB_OFFLINE HF_HUB_CACHE HF_ENDPOINT HF_DATASETS_CACHE TRANSFORMERS_CACHE
TRANSFORMERS_OFFLINE XDG_STATE_HOME XDG_CACHE_HOME TMPDIR HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy
https_proxy no_proxy all_proxy RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT NODE_RANK LWS_LEADER_ADDRESS
LWS_GROUP_SIZE LWS_WORKER_INDEX MODEL MODEL_PATH ROLE PORT HOST TP DP EP PP VIRTUAL_ENV CONDA_PREFIX MALLOC_ARENA_MAX
PROMETHEUS_MULTIPROC_DIR NUMEXPR_MAX_THREADS OPENBLAS_NUM_THREADS
"""
KEPT = frozenset(_KEPT.split())

GONE = "[redacted]"
AUTHORIZATION, URL, FLAG, FIELD = "authorization header", "password in a URL", "key flag", "key variable or field"
FORM, PRIVATE, HASH, ENCODED = "known key form", "private key", "password hash", "encoded secret"
RANDOM, VARIABLE, AGAIN = "random string", "environment variable", "a secret found elsewhere"
PROMPT, TOKENS = "prompt or answer", "token ids"
LONGEST = 1 << 16  # characters of one secret
DEEPEST = 8  # nested brackets after a name

ESCAPED = r"\\{0,8}"
QUOTE = re.compile(rf"(?:\w{{1,24}}\()?[bBrRfFuU]{{0,2}}(?P<quote>{ESCAPED}(?:\"\"\"|'''|[\"'`]))")
BLOCK = re.compile(r"[|>][+-]?\d?[ \t]*(?:#.*)?\n")
_HARMLESS = re.compile(
    r"(?i)(?:none|null|nil|~|true|false|yes|no|on|off|unset|empty|required|optional|missing|invalid|unauthorized|"
    r"\*+|x{3,}|<[^<>]*>|\$\{?[A-Z_][A-Z0-9_]*\}?|\$\{[^}]*\}|\$\([^)]*\)?|\{\{.*\}\}|\(?hidden\)?|\[?redacted\]?|\.\.\.|…|%s|\{\w*\}|[A-Za-z_]+\()"
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_TURNS = re.compile(r"(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[a-z0-9]|(?<=[0-9])[A-Za-z]")


class SecretSpan(NamedTuple):
    """text[start:end] is replaced with `instead`; `rule` names the reason."""

    start: int
    end: int
    rule: str
    instead: str = GONE


class CleanText(NamedTuple):
    """A cleaned text. `taken`: removals per rule; `values`: the secrets that a name gave away."""

    text: str
    taken: Counter[str]
    values: frozenset[str]


def closing(text: str, begin: int, quote: str) -> int | None:
    """Where the quoted text that begins at `begin` ends, escaped quotes skipped; None if it does not."""
    at, limit = begin, min(len(text), begin + LONGEST)
    escapes = len(quote) - len(quote.lstrip("\\"))
    mark = quote.lstrip("\\")
    while (at := text.find(mark, at, limit)) >= 0:
        slashes = 0
        while at - slashes - 1 >= begin and text[at - slashes - 1] == "\\":
            slashes += 1
        if (slashes <= escapes and (escapes or not slashes % 2)) or (not escapes and slashes % 2 == 0):
            return at - min(slashes, escapes)
        at += len(mark)
    return None


def unless_harmless(text: str, start: int, end: int, rule: str, strong: bool, quote: str) -> Iterator[SecretSpan]:
    value = text[start:end]
    bare = value.strip()
    if not bare or GONE in bare or _HARMLESS.fullmatch(bare) or (bare.startswith("$") and _HARMLESS.match(bare + "}")):
        return
    if _NUMBER.fullmatch(bare) and (not strong or len(bare) < 6):
        return
    if not strong and bare.startswith(("/", "./", "~/")) and not looks_secret(bare):
        return
    yield SecretSpan(start, end, rule, GONE + quote)


def listed(text: str, at: int, rule: str) -> Iterator[SecretSpan]:
    """Every quoted text in the list or mapping after a name, up to its closing bracket, but no keys of a nested one."""
    depth, limit = 0, min(len(text), at + LONGEST)
    quoted = re.compile(r"[\"']|[\[\](){}]")
    while at < limit and (found := quoted.search(text, at, limit)) is not None:
        at = found.end()
        mark = found.group()
        if mark in "[({":
            depth += 1
            if depth > DEEPEST:
                return
        elif mark in "])}":
            depth -= 1
            if depth <= 0:
                return
        else:
            close = closing(text, at, mark)
            if close is None:
                return
            is_name = text[close + 1 : close + 24].lstrip().startswith(":")
            if not is_name:
                yield from unless_harmless(text, at, close, rule, True, "")
            at = close + 1


def block_scalar(text: str, line: int, at: int, rule: str) -> Iterator[SecretSpan]:
    """The text of a YAML block scalar: the lines indented deeper than the one that opens it."""
    opened = BLOCK.match(text, at)
    if opened is None:
        return
    indent = len(text[line:at]) - len(text[line:at].lstrip(" -"))
    end = opened.end()
    first = end
    while end < len(text):
        stop = text.find("\n", end)
        stop = len(text) if stop < 0 else stop
        content = text[end:stop]
        if content.strip() and len(content) - len(content.lstrip(" ")) <= indent:
            break
        end = stop + 1
    last = min(end, len(text))
    inner = text[first:last].rstrip()
    if inner and inner.strip() != GONE:
        lead = len(inner) - len(inner.lstrip(" \n"))
        yield SecretSpan(first + lead, first + len(inner), rule)


def end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def looks_secret(value: str) -> bool:
    """Whether no person would write it: letters and digits mixed, at least 8 characters, or long and random."""
    letters = any(letter.isalpha() for letter in value)
    digits = any(letter.isdigit() for letter in value)
    return (letters and digits and len(value) >= 8 and not re.search(r"[:/@]|^\d+[A-Za-z]{1,3}$", value)) or is_random(
        value
    )


def is_random(run: str) -> bool:
    """Whether it looks like base64 of random bytes. Model names and paths contain separators and words."""
    if len(run) < 32 or len(re.findall(r"[_/-]", run)) > 0.1 * len(run):
        return False
    kinds = (re.search(r"[A-Z]", run), re.search(r"[a-z]", run), re.search(r"\d", run))
    if None in kinds or len(_TURNS.findall(run)) < 0.35 * len(run):
        return False
    counts = Counter(run)
    return -sum(n / len(run) * math.log2(n / len(run)) for n in counts.values()) > 3.8
