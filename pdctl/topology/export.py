"""What pdctl writes of topologies: one resolved as a file again, the schema as JSON Schema and as a page of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pdctl import units
from pdctl.topology import owned_flags
from pdctl.topology.diagnostic import Code, listing
from pdctl.topology.schema import TOPOLOGY, Key, Required, ValueKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.topology.checked_values import Values


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
            "engine-flags": _flags(owned_flags.ENGINE_OWNED),
            "router-flags": _flags(owned_flags.ROUTER_OWNED),
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


def _schema(kind: ValueKind, path: str) -> Schema:
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


def _table(kind: ValueKind, path: str) -> Schema:
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


def _map(kind: ValueKind, item: ValueKind, path: str) -> Schema:
    names = {f"^{kind.name_kind.pattern}$": _schema(item, path)} if kind.name_kind else {}
    return {
        "type": ["object", "null"],
        "patternProperties": {**EXTENSION, **names},
        "additionalProperties": False if names else _schema(item, path),
    }


def _single(kind: ValueKind) -> Schema:
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


def document(values: Values) -> dict[str, object]:
    """`values` of a ResolvedTopology as a file would have them; keys without a value are left out."""
    written = _written(TOPOLOGY, values)
    if not isinstance(written, dict):
        raise TypeError("the top of a topology is a map")
    return written


def to_yaml(values: Values) -> str:
    """A file that resolves to the same topology."""
    import yaml

    return yaml.safe_dump(document(values), sort_keys=False, allow_unicode=True, width=120)


def _written(kind: ValueKind, value: object) -> object:
    if kind.name == "table" and isinstance(value, Mapping):
        pairs = {key.name: _written(key.kind, value[key.name]) for key in kind.keys}
        return {name: inner for name, inner in pairs.items() if inner not in (None, {}, [])}
    if kind.name == "map" and isinstance(value, Mapping) and kind.item is not None:
        return {name: _written(kind.item, inner) for name, inner in value.items()}
    if kind.name == "either":
        return _written(next((option for option in kind.options if option.keys), kind.options[0]), value)
    if isinstance(value, tuple):
        return [_literal(item) for item in value]
    if kind.name == "size" and isinstance(value, int):
        return units.format_size(value)
    if kind.name == "rate" and isinstance(value, int):
        return units.format_rate(value)
    return units.format_duration(value) if kind.name == "duration" and isinstance(value, float) else _literal(value)


def _literal(value: object) -> object:
    """Double every `$`: variables are already resolved, so it is a dollar sign."""
    return value.replace("$", "$$") if isinstance(value, str) else value


MEANING = {
    Code.MISSING_FILE: "no file of that name, and no topology",
    Code.NOT_A_FILE: "a directory",
    Code.UNREADABLE_FILE: "the file exists but cannot be read",
    Code.FILE_TOO_LARGE: "more than 1 MiB",
    Code.NOT_UTF8: "not UTF-8 text, or binary",
    Code.EMPTY_FILE: "nothing but comments",
    Code.YAML_SYNTAX: "not YAML",
    Code.TAB_INDENT: "YAML is indented with spaces",
    Code.MANY_DOCUMENTS: "more than one YAML document",
    Code.TOO_DEEP: "nested deeper than any topology",
    Code.TOO_MANY_NODES: "too many values, counting every use of an anchor",
    Code.BAD_ALIAS: "an alias without an anchor, or inside its own",
    Code.BAD_MERGE: "`<<` of something that is not a map",
    Code.BAD_KEY: "a key that is not text",
    Code.BAD_TAG: "a YAML tag other than `!!str`",
    Code.DUPLICATE_KEY: "one key twice in one map",
    Code.NOT_A_MAP: "the file holds a list or a single value",
    Code.BAD_SET: "`--set` without a path and a value",
    Code.BAD_INTERPOLATION: "a `$` that is neither `${VAR}`, `${VAR:-default}` nor `$$`",
    Code.UNSET_VARIABLE: "`${VAR}` of a variable that is not set, without a default",
    Code.UNKNOWN_KEY: "a key the schema does not have",
    Code.MISSING_KEY: "a key the schema requires",
    Code.WRONG_TYPE: "a list for a number, text for a list, …",
    Code.AMBIGUOUS_VALUE: "YAML 1.1 and 1.2 read it differently (`on`, `010`, `1_000`, `2:30`)",
    Code.OUT_OF_RANGE: "a number too small or too large",
    Code.BAD_CHOICE: "none of the names allowed there",
    Code.BAD_NAME: "text of the wrong form",
    Code.BAD_UNIT: "a size, time or bandwidth without a unit, or with the wrong one",
    Code.BAD_FLAG: "a flag with dashes in front, capitals or underscores",
    Code.OWNED_FLAG: "a flag that pdctl writes itself",
    Code.UNKNOWN_POOL: "a pool that is not defined",
    Code.PORT_COLLISION: "two servers want one port of one host",
    Code.PORT_RANGE: "counting up from the first port goes past 65535",
    Code.DP_SPLIT: "tp cannot be split into dp attention groups",
    Code.NIC_COUNT: "`count` contradicts the list of devices",
    Code.WRONG_BACKEND: "a transfer backend the engine does not have",
    Code.WRONG_POLICY: "a policy the router does not have",
}


def markdown() -> str:
    """What `pdctl topology schema -o markdown` prints."""
    lines = ["## Fields", "", "| field | value | default | meaning |", "| --- | --- | --- | --- |"]
    lines += [_row(path, key) for path, key in fields(TOPOLOGY, "")]
    lines += ["", "## Problems", "", "| code | meaning |", "| --- | --- |"]
    lines += [f"| `{code.value}` | {_escaped(meaning)} |" for code, meaning in MEANING.items()]
    return "\n".join(lines) + "\n"


def fields(kind: ValueKind, path: str) -> Iterator[tuple[str, Key]]:
    """Every key with its path, roles once (both have the same keys), map entries as `<name>`."""
    for key in kind.keys:
        here = f"{path}.{key.name}" if path else key.name
        if here == "roles.decode":
            yield here, key
            continue
        yield here, key
        inner = here
        for table in (key.kind, *key.kind.options):
            if table.name == "map" and table.item is not None and table.item.keys:
                table, inner = table.item, f"{here}.<pool>"
            elif table.name == "list" and table.item is not None and table.item.keys:
                table, inner = table.item, f"{here}[]"
            yield from fields(table, inner)


def _row(path: str, key: Key) -> str:
    if path == "roles.decode":
        return f"| `{path}` | the keys of `roles.prefill` | required | {key.doc} |"
    value = listing(key.kind.choices) or key.kind.expected
    return f"| `{path}` | {_escaped(value)} | {_default(key)} | {_escaped(key.doc)} |"


def _default(key: Key) -> str:
    if key.default is Required:
        return "required"
    if isinstance(key.default, bool):
        return f"`{str(key.default).lower()}`"
    if isinstance(key.default, (str, int, float)):
        return f"`{key.default}`"
    return "" if key.kind.name == "table" else key.unset


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
