"""Values after a name that announces a secret, in the syntax of shells, Python, JSON, YAML, TOML, XML and prose.

Also what all detectors of secrets share: the shapes of issuers' tokens, names, quotes, and what replaces a secret.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from pdctl.engines.environment import FAMILIES
from pdctl.named_tuple import NamedTuple

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

# Names whose value is always secret, and names that also have harmless values: `token=1024`.
STRONG = (
    r"api[_ -]?keys?|(?:access|account|shared|private|signing|encryption|master|licen[cs]e|storage|subscription)"
    r"[_-]?keys?|client[_-]key|ssh[_-]key|secret|passw(?:or)?d|passphrase|passcode|credential|connection[_-]?string|"
    r"(?:auth|access|refresh|bearer|identity|session|security|registry|deploy|bot|hf|hub)[_-]?token|requirepass|"
    r"authkey|webhook"
)
WEAK = r"token|authorization|auth|cookie|pwd|pass|jwt|dsn|signature|sig|bearer|pat|otp|salt|pin|key"
WEAK_TAIL = re.compile(r"(?i)(?:[_-]?(?:value|data|b64|base64|header|string|hash|\d{1,3}))?(?![A-Za-z0-9_-])")
# `api_key_file=/etc/key` names a file, `secretName: hf` an object, and `token_usage` is a number.
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
_STRONG = re.compile(rf"(?i)(?:{STRONG})(?P<tail>[A-Za-z0-9_-]{{0,40}})")
_WEAK = re.compile(rf"(?i)(?:{WEAK})(?![a-z])")
_ASSIGNED = re.compile(rf"(?:{ESCAPED}[\"'])?[\])]?[ \t]{{0,8}}(?:=>|:=|==|[=:])[ \t]{{0,32}}")
_PAIRED = re.compile(rf"{ESCAPED}[\"']\s{{0,32}},\s{{0,32}}(?=[brfu]?{ESCAPED}[\"'])")
_AS_VALUE = re.compile(
    rf"(?:{ESCAPED}[\"'])?\s{{0,32}}[,;]?\s{{0,64}}(?:{ESCAPED}[\"'])?[Vv]alue(?:{ESCAPED}[\"'])?\s{{0,8}}[:=]\s{{0,8}}"
)
_AFTER_FLAG = re.compile(
    rf"[ \t]{{0,8}}\\\r?\n[ \t]{{0,64}}|{ESCAPED}[\"'],\s{{0,64}}|"
    rf"{ESCAPED}[\"']?[ \t]{{0,8}}\n[ \t]{{0,64}}-[ \t]{{1,8}}|{ESCAPED}[\"']?[ \t=]{{1,8}}"
)
_SPOKEN = re.compile(r"(?:[ \t](?:is|was|of|=|:))?[ \t]{1,4}(?=[\"'`]?[^\s\"'`]{4})")
_WORD = re.compile(r"(?:\\[^nrt\"'\s]|[^\s\\\"'`,;)}\]<>&]){1,8192}")
_SHELL_WORD = re.compile(r"(?:\\[^nrt\"'\s]|[^\s\\\"'`;|&<>]){1,8192}")
_LINE = re.compile(r"[^\r\n\0]{1,8192}?(?=[ \t]{1,8}#|[ \t]{0,8}\\[rn]|[ \t\r]{0,8}(?:[\n\0]|$))")
# After these, a space separates a name from its value: Dockerfile, csh, .netrc, redis.conf.
_SPACED = re.compile(
    r"(?:(?:^|\n)[ \t]*(?:ENV|ARG|setenv)[ \t]+|\b(?:machine|login)[ \t]+\S{1,128}\s{1,8}|(?:^|\n)[ \t]*)$"
)


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


def named_values(text: str) -> Iterator[SecretSpan]:
    done = 0  # a name inside another's value does not count
    for match in _STRONG.finditer(text):
        if match.start() < done:
            continue
        tail = match["tail"]
        if PLACE.search(tail) and tail.lower() not in ("", "s"):
            continue
        for span in _announced(text, match.start(), match.end(), strong=True):
            done = max(done, span.end)
            yield span
    done = 0
    for match in _WEAK.finditer(text):
        if match.start() < done:
            continue
        tail = WEAK_TAIL.match(text, match.end())
        if tail is None or not _begins_word(text, match.start(), match.group()):
            continue
        for span in _announced(text, match.start(), tail.end(), strong=False):
            done = max(done, span.end)
            yield span


def _begins_word(text: str, at: int, word: str) -> bool:
    """Whether `word` begins a word at `at`: `auth` in `x-auth` and `userAuth`; `token` anywhere; `key` in MY_KEY."""
    before = text[at - 1 : at]
    if word.lower() == "key":
        return before == "_" and word.isupper() and _identifier(text, at).isupper()
    if word.lower() == "token" or not before.isalpha():
        return True
    return (before.islower() and word[0].isupper()) or (word.isupper() and word in ("PASS", "PWD"))


def _identifier(text: str, at: int) -> str:
    """The part of a name before `at`."""
    first = at
    while first > max(0, at - 64) and (text[first - 1].isalnum() or text[first - 1] in "_-."):
        first -= 1
    return text[first:at]


def _announced(text: str, start: int, end: int, strong: bool) -> Iterator[SecretSpan]:
    head = _identifier(text, start)
    head = head[max(head.rfind("--"), 0) :]
    begin = start - len(head)
    if head.startswith("-"):
        after = _AFTER_FLAG.match(text, end)
        if after is not None:
            yield from value_at(text, after.end(), FLAG, strong=True, words=_SHELL_WORD, flag=True)
            return
    before = text[max(0, begin - 8) : begin]
    separated = _ASSIGNED.match(text, end)
    if separated is not None:
        line = text.rfind("\n", 0, begin) + 1
        leading = text[line:begin].strip(" \t-")
        alone = leading in ("", "export", "set", "declare -x", '"', "'") or leading.endswith(("\0", "\\n"))
        yaml = alone and ":" in separated.group() and text[separated.end() - 1 : separated.end()] in (" ", "\t", ":")
        shell = (
            alone and "=" in separated.group() and (text[begin:end].isupper() or leading.startswith(("export", "set")))
        )
        words = _LINE if yaml else _SHELL_WORD if shell else _WORD
        if BLOCK.match(text, separated.end()):
            yield from block_scalar(text, line, separated.end(), FIELD)
            return
        lenient = not strong and not alone and ":" in separated.group()
        yield from value_at(text, separated.end(), FIELD, strong=strong, words=words, lenient=lenient)
        return
    quoted = before[-1:] in ('"', "'", ">", "<") if before else False
    for pattern, wanted in ((_PAIRED, quoted), (_AS_VALUE, True)):
        found = pattern.match(text, end) if wanted else None
        if found is not None:
            yield from value_at(
                text, found.end(), FIELD, strong=strong, words=_LINE if "\n" in found.group() else _WORD
            )
            return
    if before.endswith("<") and text[end : end + 1] == ">":
        close = text.find("<", end)
        if close > end + 1:
            yield from unless_harmless(text, end + 1, min(close, end + 1 + LONGEST), FIELD, strong, "")
        return
    if strong and _SPACED.search(text, max(0, begin - 240), begin) is not None:
        found = re.compile(r"[ \t]+").match(text, end)
        if found is not None:
            yield from value_at(text, found.end(), FIELD, strong=True, words=_SHELL_WORD)
            return
    spoken = _SPOKEN.match(text, end)
    if spoken is not None and not head:
        yield from value_at(text, spoken.end(), FIELD, strong=False, words=_WORD, lenient=True)


def value_at(
    text: str, at: int, rule: str, *, strong: bool, words: re.Pattern[str], lenient: bool = False, flag: bool = False
) -> Iterator[SecretSpan]:
    """The span of the value that begins at `at`. `lenient`: only if it looks like a secret."""
    opened = QUOTE.match(text, at)
    if opened is not None:
        begin = opened.end()
        close = closing(text, begin, opened["quote"])
        if close is not None:
            yield from unless_harmless(text, begin, close, rule, strong, "")
            return
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        yield from unless_harmless(text, begin, end, rule, strong, opened["quote"])
        return
    if text[at : at + 1] in ("[", "{", "(") and not flag:
        yield from listed(text, at, rule)
        return
    found = words.match(text, at)
    if found is None or (flag and found.group().startswith("--")):
        return
    value = found.group()
    if lenient and not looks_secret(value):
        return
    if len(value) < 4 and not strong:
        return
    end = found.end()
    if text[end : end + 1] in ('"', "'") and text[end - 1 : end] not in ("", " ") and words is _SHELL_WORD:
        more = _SHELL_WORD.match(text, end + 1)  # "$(cat x)"'tail': a word made of several quoted parts
        end = more.end() if more and text[more.end() : more.end() + 1] == text[end] else end
    yield from unless_harmless(text, found.start(), end, rule, strong, "")
