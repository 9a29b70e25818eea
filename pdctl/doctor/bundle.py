"""A support bundle: what doctor saw, packed into one archive with secrets and prompts taken out."""

from __future__ import annotations

import io
import os
import re
import tarfile
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GONE = "[redacted]"


class Rule(NamedTuple):
    """`keep` is what of the match stays, as a substitution template."""

    name: str
    pattern: re.Pattern[str]
    keep: str


SECRET = r"(?:api[_-]?key|token(?!i|s|_ids|_usage)|secret|passw(?:or)?d|credential)"
# Closed on whatever line; a line that was cut short has no closing quote, and what stands there goes too. The quotes
# stay (group 2), so that JSON remains JSON.
QUOTED = r"([\"'])(?:(?:(?!\2)[^\\]|\\[\s\S])*\2|[^\n]*)"
VALUE = rf"(?!None\b|null\b|[\d.]+\b|[\"']?{re.escape(GONE)})(?:{QUOTED}|[^\s,;)}}\]\"']{{4,}})"
FORMS = r"hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|AKIA[A-Z0-9]{12,}|gh[pousr]_[A-Za-z0-9]{20,}"
LISTED = r"\[(?:\s*(?:\"(?:[^\"\\]|\\[\s\S])*(?:\"|$)|'(?:[^'\\]|\\[\s\S])*(?:'|$)),?)+\s*\]?"
NUMBERS = r"\[(?=[\[\s]*-?\d)(?:[\d\s,\[\]-]*\]|[\d\s,-]*)"
INSTEAD = r"\1\2" + GONE + r"\2"

# Order matters: the narrow forms first, so that what they leave is not taken for a value by a wider one. No pattern
# may begin, or go on, with a repeat that another place of the same run could begin with: that is quadratic in a log.
RULES: tuple[Rule, ...] = (
    Rule("authorization header", re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), r"\1 " + GONE),
    Rule("password in a URL", re.compile(r"(?<=://)[^/\s:@'\"]+:[^/\s@'\"]+(?=@)"), GONE),
    Rule(
        "key flag",
        re.compile(rf"(?i)(--[a-z-]{{0,48}}{SECRET}[a-z-]{{0,32}}(?:[\"']?,\s*|[\"']?[ =]+)){VALUE}"),
        INSTEAD,
    ),
    Rule("key variable or field", re.compile(rf"(?i)({SECRET}[\"']?[ \t]*[=:][ \t]*){VALUE}"), INSTEAD),
    Rule("known key form", re.compile(rf"\b(?:{FORMS})"), GONE),
    Rule(
        "prompt or answer",
        re.compile(rf"((?:\b|[\"'])(?:text|prompt|content)[\"']?\s*[=:]\s*)(?:{QUOTED}|{LISTED})"),
        INSTEAD,
    ),
    Rule("token ids", re.compile(rf"((?:\b|[\"'])(?:input_ids|output_ids)[\"']?\s*[=:]\s*){NUMBERS}"), r"\1" + GONE),
)


def redact(text: str) -> tuple[str, Counter[str]]:
    """`text` without secrets and prompts, and how often each rule took something out."""
    taken: Counter[str] = Counter()
    for rule in RULES:
        text, count = rule.pattern.subn(rule.keep, text)
        if count:
            taken[rule.name] += count
    return text, taken


def write(path: Path, files: Mapping[str, str]) -> Counter[str]:
    """Pack `files` (name → text) under one directory; whole or not at all. Returns what was taken out.

    Raises UsageError when `path` cannot be written.
    """
    taken: Counter[str] = Counter()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    root = path.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    try:
        with tarfile.open(draft, "w:gz") as archive:
            for name, text in sorted(files.items()):
                clean, count = redact(text)
                taken += count
                _add(archive, f"{root}/{name}", clean)
            _add(archive, f"{root}/REDACTED.txt", _account(taken))
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(
            f"--bundle {path}: {error.strerror or error}", "give a path in a directory that exists"
        ) from None
    return taken


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode("utf-8", errors="replace")
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))


def _account(taken: Counter[str]) -> str:
    if not taken:
        return "Nothing was taken out.\n"
    return "".join(f"{count} × {name}\n" for name, count in sorted(taken.items()))
