"""Values after a name that announces a secret, in the syntax of shells, Python, JSON, YAML, TOML, XML and prose."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.doctor.secret_shapes import (
    BLOCK,
    ESCAPED,
    FIELD,
    FLAG,
    LONGEST,
    QUOTE,
    SecretSpan,
    block_scalar,
    closing,
    listed,
    looks_secret,
    unless_harmless,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

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
