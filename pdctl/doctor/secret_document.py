"""Secrets in parsed JSON and YAML: every text by itself, told what it is by its key or by what stands before it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from pdctl.doctor import secret_environment, secret_name
from pdctl.doctor.secret_span import FIELD, GONE, PROMPT, TOKENS, VARIABLE, Found

if TYPE_CHECKING:
    from collections.abc import Callable

    Search = Callable[[str], Found]

SAID, COUNTED = ("text", "prompt", "content"), ("input_ids", "output_ids")
KUBERNETES = ("data", "stringData")
ENVIRONMENTS = ("env", "environ", "environment")


def of_json(text: str, search: Search) -> Found:
    """Raise ValueError or RecursionError if `text` is not JSON."""
    leaves = _Leaves(search)
    clean = leaves.clean(json.loads(text), "")
    return Found(json.dumps(clean, indent=1, ensure_ascii=False), leaves.taken, frozenset(leaves.values))


def of_yaml(text: str, search: Search) -> Found | None:
    """None where `text` is not YAML of plain values."""
    import yaml  # late: a bundle without a run has none

    leaves = _Leaves(search)
    try:
        clean = leaves.clean(yaml.safe_load(text), "")
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    dumped = yaml.safe_dump(clean, sort_keys=False, allow_unicode=True, width=4096)
    return Found(dumped, leaves.taken, frozenset(leaves.values))


class _Leaves:
    def __init__(self, search: Search) -> None:
        self._search = search
        self.taken: Counter[str] = Counter()
        self.values: set[str] = set()

    def clean(self, value: object, name: str) -> object:
        """`name`: the key, flag or variable that `value` belongs to."""
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
            name = self._search(key).text if isinstance(key, str) else key
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
        found = self._search(value)
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
        if secret_environment.is_kept(name) or value in (None, "", GONE):
            return self.clean(value, name)
        if isinstance(value, str) and _is_secret(name, value):
            self.values.add(value)
        return self._gone(VARIABLE)

    def _gone(self, rule: str) -> str:
        self.taken[rule] += 1
        return GONE


def _is_secret(name: str, value: str) -> bool:
    """Whether `name`, as a key or a flag, says that `value` is secret."""
    return any(secret_name.named_values(f"{json.dumps(name[-200:].lstrip('-'))}: {json.dumps(value)}"))
