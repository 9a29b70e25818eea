"""The schema table as JSON Schema (draft 2020-12), for editors that check YAML while it is typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.topology import flags
from pdctl.topology.schema import TOPOLOGY, Key, Kind, Required

if TYPE_CHECKING:
    from collections.abc import Mapping

Schema = dict[str, object]

EXTENSION = {"^x-": True}
FLAG = "^[a-z0-9][a-z0-9-]*$"
# `${VAR}` may stand for any single value.
VARIABLE: Schema = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-.*)?\}"}
PATTERNS = {
    "size": r"^\d+(\.\d+)?\s*([KMGT]iB?|[kMGT]?B)$",
    "rate": r"^\d+(\.\d+)?\s*([kMGT]bps|[MGT]b/s)$",
    "duration": r"^(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?(\d+(\.\d+)?ms)?$",
}


def json_schema() -> Schema:
    """The document `pdctl topology schema` prints."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "pdctl/v1",
        "title": "pdctl topology",
        "$defs": {
            "variable": VARIABLE,
            "engine-flags": _flags(flags.ENGINE_OWNED),
            "router-flags": _flags(flags.ROUTER_OWNED),
        },
        **_table(TOPOLOGY, ""),
        "type": "object",
    }


def _flags(owned: Mapping[str, str]) -> Schema:
    """Flags pdctl writes itself are refused; the rest are single values or lists of them."""
    value = {"type": ["string", "number", "boolean"]}
    return {
        "type": ["object", "null"],
        "properties": dict.fromkeys(owned, False),
        "patternProperties": {**EXTENSION, FLAG: {"anyOf": [value, {"type": "array", "items": value}]}},
        "additionalProperties": False,
    }


def _schema(kind: Kind, path: str) -> Schema:
    if kind.name == "table":
        return _table(kind, path)
    if kind.name == "map" and kind.item is not None:
        if kind.item.name == "flag":
            return {"$ref": f"#/$defs/{'router' if path.startswith('router') else 'engine'}-flags"}
        return _map(kind, kind.item, path)
    if kind.name == "list" and kind.item is not None:
        return {"type": "array", "items": _schema(kind.item, path)}
    if kind.name == "either":
        return {"anyOf": [_schema(option, path) for option in kind.options]}
    return _single(kind)


def _table(kind: Kind, path: str) -> Schema:
    schema: Schema = {
        "type": ["object", "null"],
        "properties": {key.name: _property(key, f"{path}.{key.name}".lstrip(".")) for key in kind.keys},
        "patternProperties": EXTENSION,
        "additionalProperties": False,
    }
    required = [key.name for key in kind.keys if key.default is Required]
    if required:
        schema |= {"type": "object", "required": required}
    return schema


def _property(key: Key, path: str) -> Schema:
    schema = {"description": key.doc, **_schema(key.kind, path)}
    if isinstance(key.default, (str, int, float)):
        schema["default"] = key.default
    return schema


def _map(kind: Kind, item: Kind, path: str) -> Schema:
    names = {f"^{kind.name_kind.pattern}$": _schema(item, path)} if kind.name_kind else {}
    return {
        "type": ["object", "null"],
        "patternProperties": {**EXTENSION, **names},
        "additionalProperties": False if names else _schema(item, path),
    }


def _single(kind: Kind) -> Schema:
    """A scalar, or a variable in its place. Plain text needs no alternative: `${VAR}` is text."""
    if kind.name == "boolean":
        return _or_variable({"type": "boolean"})
    if kind.name in ("integer", "number"):
        low = "exclusiveMinimum" if kind.open_low else "minimum"
        bounds = {low: kind.low, "maximum": kind.high}
        return _or_variable({"type": kind.name, **{name: value for name, value in bounds.items() if value is not None}})
    if kind.name == "choice":
        return _or_variable({"enum": [*kind.choices, *(alias for alias, _ in kind.aliases)]})
    if kind.name in PATTERNS:
        return _or_variable({"type": "string", "pattern": PATTERNS[kind.name]})
    if kind.name == "variable":
        return {"type": ["string", "number"]}
    return (
        _or_variable({"type": "string", "pattern": f"^{kind.pattern}$"})
        if kind.pattern
        else {"type": "string", "minLength": 1}
    )


def _or_variable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"$ref": "#/$defs/variable"}]}
