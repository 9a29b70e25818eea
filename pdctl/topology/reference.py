"""The schema table as the field reference of docs/topology.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.topology.diagnostic import Code, listing
from pdctl.topology.schema import TOPOLOGY, Key, Kind, Required

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    Code.PORT_RANGE: "counting up from the first port leaves the port numbers",
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


def fields(kind: Kind, path: str) -> Iterator[tuple[str, Key]]:
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
