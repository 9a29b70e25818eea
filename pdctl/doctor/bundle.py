"""A support bundle: what doctor saw, packed into one archive with secrets and prompts taken out."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import json
import math
import os
import platform
import re
import tarfile
import time
from collections import Counter
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote

from pdctl import __version__, user_files
from pdctl.doctor import secret_document, secret_look, secret_name
from pdctl.doctor.secret_shapes import (
    AGAIN,
    AUTHORIZATION,
    ENCODED,
    FIELD,
    FLAG,
    FORM,
    GONE,
    HASH,
    PRIVATE,
    PROMPT,
    RANDOM,
    TOKENS,
    URL,
    VARIABLE,
    CleanText,
    SecretSpan,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pdctl.doctor.check import Facts


KEPT = ("run.json", "plan.json", "topology.yaml")  # of a run's directory
_WRAPPED = 60  # columns; a shorter line was not wrapped by a terminal
_CONTINUED = re.compile(r"\\?\r?\n[ \t]*[A-Za-z0-9+/_.~%-]{4,}={0,2}(?=[ \t]*[\"']?[,\])}]?[ \t]*(?:\r?\n|$))")
_QUOTED = r"(?P<quote>[\"'])(?:(?:(?!(?P=quote))[^\\]|\\[\s\S])*(?P=quote)|[^\n]*)"
_LISTED = r"\[(?:\s*(?:\"(?:[^\"\\]|\\[\s\S])*(?:\"|$)|'(?:[^'\\]|\\[\s\S])*(?:'|$)),?)+\s*\]?"
_NUMBERS = r"\[(?=[\[\s]*-?\d)(?:[\d\s,\[\]-]*\]|[\d\s,-]*)"
_SAID = re.compile(rf"(?:\b|[\"'])(?:text|prompt|content)[\"']?\s*[=:]\s*(?P<value>{_QUOTED}|{_LISTED})")
_COUNTED = re.compile(rf"(?:\b|[\"'])(?:input_ids|output_ids)[\"']?\s*[=:]\s*(?P<value>{_NUMBERS})")
ORDER = (
    PRIVATE, AUTHORIZATION, URL, FLAG, FIELD, FORM, HASH, VARIABLE, ENCODED, RANDOM, AGAIN, PROMPT, TOKENS,
)  # fmt: skip


def pack(path: Path, facts: Facts, reports: Mapping[str, str], run: Path | None, known: Iterable[str]) -> Counter[str]:
    """Write the archive: `reports` (name → text), facts, versions, log lines, and the files that describe the run.

    `known`: secrets the caller holds; those of this process's environment are added. Return how often each rule
    removed something.
    """
    kept = [name for name in KEPT if (run / name).is_file()] if run is not None else []
    files = {
        **reports,
        "facts.json": facts_json(facts),
        "versions.txt": f"pdctl {__version__}\npython {platform.python_version()}\n{platform.platform()}\n",
        "log-lines.txt": "".join(f"{line.code} {line.place} ×{line.count}: {line.text}\n" for line in facts.logs),
        **{f"run/{name}": (run / name).read_text("utf-8", errors="replace") for name in kept if run is not None},
    }
    return write(path, files, (*known, *(value for name, value in os.environ.items() if is_secret(name, value))))


def facts_json(facts: Facts) -> str:
    """Everything that was observed, as JSON."""
    names = ("endpoints", "engines", "bootstraps", "router", "host", "canaries", "queues")
    return json.dumps(_plain({name: getattr(facts, name) for name in names}), indent=1, ensure_ascii=False)


def _plain(value: object) -> object:
    """`value` as JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (dict, MappingProxyType)):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # Python writes NaN, which is not valid JSON
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def write(path: Path, files: Mapping[str, str], known: Iterable[str] = ()) -> Counter[str]:
    """Pack `files` (name → text) under one directory, all or none. Return how often each rule removed something.

    `known`: secrets of this process, removed wherever they occur.

    Raise UsageError if `path` cannot be written.
    """
    clean, taken = of_files(files, known)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    root = path.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    try:
        with tarfile.open(draft, "w:gz") as archive:
            for name, text in sorted(clean.items()):
                _add(archive, f"{root}/{name}", text)
            _add(archive, f"{root}/REDACTED.txt", _account(taken))
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise user_files.unwritable(f"--bundle {path}", error) from None
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


def remove_secrets(text: str, known: re.Pattern[str] | None = None) -> CleanText:
    """Remove secrets and prompts; `known` matches what is secret wherever it occurs."""
    spans = [span for detector in DETECTORS for span in detector(text)]
    values = frozenset(text[span.start : span.end] for span in spans if span.rule in (FLAG, FIELD, AUTHORIZATION, URL))
    spans += [SecretSpan(*match.span(), AGAIN) for match in (known.finditer(text) if known else ())]
    spans += [longer for span in spans if (longer := _wrapped(text, span)) is not None]
    order = {detector: at for at, detector in enumerate(ORDER)}
    spans.sort(key=lambda span: (span.start, order[span.rule]))
    parts: list[str] = []
    taken: Counter[str] = Counter()
    at = 0
    for span in _merge_spans(spans):
        parts += (text[at : span.start], span.instead)
        taken[span.rule] += 1
        at = span.end
    return CleanText("".join((*parts, text[at:])), taken, values)


def _merge_spans(spans: list[SecretSpan]) -> Iterator[SecretSpan]:
    held: SecretSpan | None = None
    for span in spans:
        if held is not None and span.start < held.end:
            if span.end > held.end:
                held = SecretSpan(
                    held.start, span.end, held.rule, held.instead if span.instead == GONE else span.instead
                )
            continue
        if held is not None:
            yield held
        held = span
    if held is not None:
        yield held


def _anywhere(values: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds the values as they are, quoted for a URL, escaped for JSON, or in base64."""
    forms: set[str] = set()
    for value in values:
        plain = base64.b64encode(value.encode("utf-8", "surrogatepass")).decode().rstrip("=")
        forms |= {value, quote(value, safe="", errors="replace"), json.dumps(value)[1:-1], plain}
    return re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True)))) if forms else None


def is_secret(name: str, value: str) -> bool:
    """Whether this variable holds a secret that is worth searching for elsewhere."""
    return worth_finding_again(value) and any(secret_name.named_values(f'"{name}": {json.dumps(value)}'))


def worth_finding_again(value: str) -> bool:
    """Whether the value is long and odd enough not to occur anywhere by chance."""
    kinds = (any(map(str.isalpha, value)), any(not letter.isalpha() for letter in value))
    return 8 <= len(value) <= 4096 and all(kinds) and not value.isspace()


def _wrapped(text: str, span: SecretSpan) -> SecretSpan | None:
    """The span extended over the following lines, where a terminal has wrapped one long word."""
    if span.rule in (PROMPT, TOKENS, PRIVATE) or span.end - span.start < 16:
        return None
    end = span.end
    for _ in range(64):
        line = text.rfind("\n", 0, end) + 1
        found = _CONTINUED.match(text, end)
        if found is None or end - line < _WRAPPED or " " in text[span.start : end].strip():
            break
        end = found.end()
    return SecretSpan(span.start, end, span.rule, span.instead) if end > span.end else None


def prompts(text: str) -> Iterator[SecretSpan]:
    for match in _SAID.finditer(text):
        quoted = match["quote"]
        if match["value"] not in (f'"{GONE}"', f"'{GONE}'"):
            yield SecretSpan(*match.span("value"), PROMPT, f"{quoted}{GONE}{quoted}" if quoted else GONE)
    for match in _COUNTED.finditer(text):
        yield SecretSpan(*match.span("value"), TOKENS)


DETECTORS: tuple[Callable[[str], Iterator[SecretSpan]], ...] = (
    secret_look.private_keys, secret_look.headers, secret_look.patterned, secret_name.named_values,
    secret_document.environments, secret_look.encoded, prompts,
)  # fmt: skip


def of_files(files: Mapping[str, str], known: Iterable[str] = ()) -> tuple[dict[str, str], Counter[str]]:
    """Every file without its secrets and those found in the other files; file names are cleaned too."""
    values = {value for value in known if value}
    for name, text in files.items():
        values |= {value for value in _clean(name, text, None).values if worth_finding_again(value)}
    anywhere = _anywhere(values)
    taken: Counter[str] = Counter()
    clean: dict[str, str] = {}
    for name, text in files.items():
        found, named = _clean(name, text, anywhere), remove_secrets(name, anywhere)
        taken += found.taken + named.taken
        clean[named.text] = found.text
    return clean, taken


def _clean(name: str, text: str, known: re.Pattern[str] | None) -> CleanText:
    """Clean JSON and YAML by their structure, so that they stay valid, and everything else as text."""
    if name.endswith(".json"):
        with contextlib.suppress(ValueError, RecursionError):
            return secret_document.of_json(text, lambda leaf: remove_secrets(leaf, known))
    if name.endswith((".yaml", ".yml")):
        found = secret_document.of_yaml(text, lambda leaf: remove_secrets(leaf, known))
        if found is not None:
            return found
    return remove_secrets(text, known)
