"""What gives a secret away: the shapes of issuers' tokens, the names in front of a value, and the variables kept.

Shapes are those the issuers document (AWS, GitHub, GitLab, Google, Hugging Face, OpenAI, NVIDIA, Slack, …), each
with a prefix of its own, so that room ids, request ids, digests, commits and model names never have one.
"""

from __future__ import annotations

import re

from pdctl.engines.environment import FAMILIES

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
# Request ids are what a room is found by: SGLang's own, OpenAI's forms, and whatever stands behind their names.
REQUEST = re.compile(r"(?:chatcmpl|cmpl|resp|msg|req|call|run|thread|HEALTH_CHECK|bootstrap)[_-]")
REQUEST_NAME = re.compile(
    r"(?i)(?:rid|request[_-]?id|trace[_-]?id|correlation[_-]?id|span[_-]?id)\W{1,16}(?:\[\d+m\W{0,4}){0,3}$"
)
HASHED = re.compile(r"\$(?:1|2[aby]|5|6|7|y|apr1|argon2(?:id|i|d)|scrypt|pbkdf2)\$[^\s:\"']{8,}")  # crypt(3)
WEBHOOK = re.compile(
    r"(?i)\bhooks?\.slack\.com/(?:services|workflows)/(?P<value>[^\s\"'<>]+)|\bdiscord(?:app)?\.com/api/webhooks/(?P<other>[^\s\"'<>]+)"
)

# Names whose value is secret whatever it looks like, and names that also have harmless values: `token=1024`.
STRONG = (
    r"api[_ -]?keys?|(?:access|account|shared|private|signing|encryption|master|licen[cs]e|storage|subscription)"
    r"[_-]?keys?|client[_-]key|ssh[_-]key|secret|passw(?:or)?d|passphrase|passcode|credential|connection[_-]?string|"
    r"(?:auth|access|refresh|bearer|identity|session|security|registry|deploy|bot|hf|hub)[_-]?token|requirepass|"
    r"authkey|webhook"
)
WEAK = r"token|authorization|auth|cookie|pwd|pass|jwt|dsn|signature|sig|bearer|pat|otp|salt|pin|key"
WEAK_TAIL = re.compile(r"(?i)(?:[_-]?(?:value|data|b64|base64|header|string|hash|\d{1,3}))?(?![A-Za-z0-9_-])")
# `api_key_file=/etc/key` names a place, `secretName: hf` an object, `token_usage` is a figure.
PLACE = re.compile(
    r"(?i)(?:file|path|names?|env|dir|mount|ref|types?|ttl|expir\w*|len|length|required|enabled?|set|version|count|"
    r"usage|ids|plugin|provider|manager|store)$"
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

# Variables whose values a bundle keeps: what decides how SGLang, its transports and the collectives behave.
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
