"""Secrets in parsed JSON and YAML, in environments and in Kubernetes Secrets."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING

from pdctl.doctor import secret_name
from pdctl.doctor.secret_shapes import (
    BLOCK,
    ESCAPED,
    FIELD,
    GONE,
    KEPT,
    KEPT_FAMILIES,
    PROMPT,
    QUOTE,
    TOKENS,
    VARIABLE,
    CleanText,
    SecretSpan,
    block_scalar,
    closing,
    end_of_line,
    listed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

if TYPE_CHECKING:
    from collections.abc import Callable

    Removal = Callable[[str], CleanText]

SAID, COUNTED = ("text", "prompt", "content"), ("input_ids", "output_ids")
KUBERNETES = ("data", "stringData")
ENVIRONMENTS = ("env", "environ", "environment")
_DUMPED = re.compile(
    rf"(?i)(?:environ\(|\benv(?:iron(?:ment)?)?[\"']?\s{{0,4}}[=:]\s{{0,4}})(?=\{{\s{{0,32}}{ESCAPED}[\"'])"
)
_MAPPED = re.compile(
    rf"[{{,]\s{{0,64}}{ESCAPED}[\"'](?P<name>[A-Za-z_]\w{{0,80}}){ESCAPED}[\"']\s{{0,8}}:\s{{0,8}}(?=[\"'\\])"
)
_LISTED_ENV = re.compile(
    rf"(?i)\benv(?:iron(?:ment)?)?[\"']?\s{{0,4}}[=:]\s{{0,4}}(?=\[\s{{0,64}}{ESCAPED}[\"'][A-Za-z_]\w{{0,80}}=)"
)
_ITEM = re.compile(rf"[\[,]\s{{0,64}}(?P<quote>{ESCAPED}[\"'])(?P<name>[A-Za-z_]\w{{0,80}})=")
_LINES = re.compile(
    r"(?m)(?:^|(?<=\0))[ \t]*(?:export |declare -x |set )?(?P<name>[A-Za-z_]\w{0,80})=(?P<value>[^\n\0]*)(?:[\n\0]|\Z)"
)
_K8S = re.compile(
    r"(?m)^[ \t]*-[ \t]+name:[ \t]*[\"']?(?P<name>[A-Z_][A-Z0-9_]{0,80})[\"']?[ \t]*\n"
    r"[ \t]+value:[ \t]*(?P<value>[^\n]+)"
)
_K8S_JSON = re.compile(
    r"\"name\"\s{0,4}:\s{0,4}\"(?P<name>[A-Z_][A-Z0-9_]{0,80})\"\s{0,4},\s{0,64}\"value\"\s{0,4}:\s{0,4}\"(?P<value>(?:[^\"\\]|\\.)*)\""
)
_SECRET_KIND = re.compile(r"(?m)^[ \t]*kind:[ \t]*[\"']?Secret[\"']?[ \t]*$")
_SECRET_DATA = re.compile(r"(?m)^(?P<indent>[ \t]*)(?:data|stringData):[ \t]*\n")
_SECRET_LINE = re.compile(r"[ \t]*[^\s:#]{1,253}:[ \t]*(?P<value>[^\n]*)")
_SECRET_JSON = re.compile(r"\"kind\"\s{0,8}:\s{0,8}\"Secret\"")
_DATA_JSON = re.compile(r"\"(?:data|stringData)\"\s{0,8}:\s{0,8}\{(?P<value>[^{}]*)\}")
FEW = 3  # consecutive lines NAME=value that count as an environment


def of_json(text: str, remove_secrets: Removal) -> CleanText:
    """The JSON text `text` without secrets. Raise ValueError or RecursionError if it is not JSON."""
    leaves = _Leaves(remove_secrets)
    clean = leaves.clean(json.loads(text), "")
    return CleanText(json.dumps(clean, indent=1, ensure_ascii=False), leaves.taken, frozenset(leaves.values))


def of_yaml(text: str, remove_secrets: Removal) -> CleanText | None:
    """The YAML text `text` without secrets; None if it is not YAML of plain values."""
    import yaml  # late: a bundle without a run has no YAML

    leaves = _Leaves(remove_secrets)
    try:
        clean = leaves.clean(yaml.safe_load(text), "")
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    dumped = yaml.safe_dump(clean, sort_keys=False, allow_unicode=True, width=4096)
    return CleanText(dumped, leaves.taken, frozenset(leaves.values))


class _Leaves:
    def __init__(self, remove_secrets: Removal) -> None:
        self._remove_secrets = remove_secrets
        self.taken: Counter[str] = Counter()
        self.values: set[str] = set()

    def clean(self, value: object, name: str) -> object:
        """`value` without secrets. `name`: the key, flag or variable it belongs to."""
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, (list, tuple)):
            return self._list(value, name)
        if isinstance(value, str):
            return self._text(value, name)
        if isinstance(value, int) and not isinstance(value, bool) and name and _is_secret(name, str(value)):
            return self._gone(FIELD)
        return value

    def _mapping(self, value: dict[object, object]) -> dict[object, object]:
        told = value.get("name", value.get("key"))
        about = told if isinstance(told, str) else ""
        secret = value.get("kind") == "Secret"
        clean: dict[object, object] = {}
        for key, each in value.items():
            name = self._remove_secrets(key).text if isinstance(key, str) else key
            if secret and key in KUBERNETES and isinstance(each, dict):
                clean[name] = dict.fromkeys(each, self._gone(FIELD))
            elif str(key).lower() in ENVIRONMENTS:
                clean[name] = self._environment(each)
            else:
                clean[name] = self.clean(each, about if key == "value" and about else str(key))
        return clean

    def _list(self, value: list[object] | tuple[object, ...], name: str) -> object:
        if name in COUNTED and value and all(isinstance(each, (int, list)) for each in value):
            return self._gone(TOKENS)
        before = [name, *(each if isinstance(each, str) else "" for each in value)]
        pair = len(value) == 2 and isinstance(value[0], str)
        return [
            self.clean(each, said if said.startswith("-") or (pair and at) else name)
            for at, (each, said) in enumerate(zip(value, before, strict=False))
        ]

    def _text(self, value: str, name: str) -> str:
        if not value or value == GONE:
            return value
        if name in SAID:
            return self._gone(PROMPT)
        if name and _is_secret(name, value):
            self.values.add(value)
            return self._gone(FIELD)
        found = self._remove_secrets(value)
        self.taken += found.taken
        self.values |= found.values
        return found.text

    def _environment(self, value: object) -> object:
        if isinstance(value, dict):
            return {name: self._variable(str(name), each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._item(each) for each in value]
        return self.clean(value, "")

    def _item(self, value: object) -> object:
        """One variable of a list: ["NAME", "value"], {"name": …, "value": …} or "NAME=value"."""
        if isinstance(value, (list, tuple)) and len(value) == 2:
            return [value[0], self._variable(str(value[0]), value[1])]
        if isinstance(value, dict) and "value" in value:
            return {**value, "value": self._variable(str(value.get("name")), value["value"])}
        if isinstance(value, str) and "=" in value:
            name, _, text = value.partition("=")
            return f"{name}={self._variable(name, text)}"
        return self.clean(value, "")

    def _variable(self, name: str, value: object) -> object:
        if is_kept(name) or value in (None, "", GONE):
            return self.clean(value, name)
        if isinstance(value, str) and _is_secret(name, value):
            self.values.add(value)
        return self._gone(VARIABLE)

    def _gone(self, rule: str) -> str:
        self.taken[rule] += 1
        return GONE


def _is_secret(name: str, value: str) -> bool:
    """Whether `name`, as a key or a flag, marks `value` as secret."""
    return any(secret_name.named_values(f"{json.dumps(name[-200:].lstrip('-'))}: {json.dumps(value)}"))


def is_kept(name: str) -> bool:
    """Whether a bundle keeps the value of this variable."""
    return name in KEPT or name.startswith(KEPT_FAMILIES)


def environments(text: str) -> Iterator[SecretSpan]:
    for start in _DUMPED.finditer(text):
        at = start.end()
        while (found := _MAPPED.match(text, at)) is not None:
            opened = QUOTE.match(text, found.end())
            close = closing(text, opened.end(), opened["quote"]) if opened else None
            if opened is None or close is None:
                break
            yield from _variable(text, found["name"], opened.end(), close)
            at = close + len(opened["quote"])
    for start in _LISTED_ENV.finditer(text):
        at = start.end()
        while (found := _ITEM.match(text, at)) is not None:
            close = closing(text, found.end(), found["quote"])
            if close is None:
                break
            yield from _variable(text, found["name"], found.end(), close)
            at = close + len(found["quote"])
    run: list[re.Match[str]] = []
    for match in _LINES.finditer(text):
        if run and match.start() != run[-1].end():
            yield from _dumped(text, run)
            run = []
        run.append(match)
    yield from _dumped(text, run)
    for pattern in (_K8S, _K8S_JSON):
        for match in pattern.finditer(text):
            yield from _variable(text, match["name"], *match.span("value"))
    yield from _secret_objects(text)


def _dumped(text: str, run: list[re.Match[str]]) -> Iterator[SecretSpan]:
    if len(run) >= FEW:
        for match in run:
            yield from _variable(text, match["name"], *match.span("value"))


def _variable(text: str, name: str, start: int, end: int) -> Iterator[SecretSpan]:
    if not is_kept(name):
        bare = text[start:end].strip().strip("\"'")
        if bare and bare != GONE:
            lead = len(text[start:end]) - len(text[start:end].lstrip(" \t\"'"))
            trail = len(text[start:end]) - len(text[start:end].rstrip(" \t\r\"'"))
            yield SecretSpan(start + lead, max(end - trail, start + lead), VARIABLE)


def _secret_objects(text: str) -> Iterator[SecretSpan]:
    """The data of Kubernetes Secrets, whatever the names of their keys."""
    if _SECRET_KIND.search(text):
        at = 0
        for one in text.split("\n---"):
            if _SECRET_KIND.search(one):
                for head in _SECRET_DATA.finditer(one):
                    yield from _under(text, at + head.end(), len(head["indent"]))
            at += len(one) + 4
    if _SECRET_JSON.search(text):
        for match in _DATA_JSON.finditer(text):
            yield from listed(text, match.start("value") - 1, FIELD)


def _under(text: str, at: int, indent: int) -> Iterator[SecretSpan]:
    while at < len(text):
        stop = end_of_line(text, at)
        line = text[at:stop]
        if line.strip() and len(line) - len(line.lstrip(" \t")) <= indent:
            return
        found = _SECRET_LINE.match(text, at, stop)
        if found is not None and BLOCK.match(text, found.start("value")):
            for block in block_scalar(text, at, found.start("value"), FIELD):
                yield block
                stop = end_of_line(text, block.end)
        elif found is not None:
            yield from _variable(text, "", *found.span("value"))
        at = stop + 1
