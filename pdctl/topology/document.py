"""A resolved topology written back as a topology file: every default spelt out, quantities with their units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pdctl.topology import units
from pdctl.topology.schema import TOPOLOGY, Kind

if TYPE_CHECKING:
    from pdctl.topology.read import Values


def document(values: Values) -> dict[str, object]:
    """`values` of `resolve.Resolved` as a file would have them; keys without a value are left out."""
    written = _written(TOPOLOGY, values)
    if not isinstance(written, dict):
        raise TypeError("the top of a topology is a map")
    return written


def to_yaml(values: Values) -> str:
    """A file that resolves to the same topology."""
    import yaml

    return yaml.safe_dump(document(values), sort_keys=False, allow_unicode=True, width=120)


def _written(kind: Kind, value: object) -> object:
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
    """A `$` was resolved already: doubled, it stays what it is."""
    return value.replace("$", "$$") if isinstance(value, str) else value
