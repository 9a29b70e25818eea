"""One table drives reading, the JSON Schema and the documentation: here they are held against each other."""

from __future__ import annotations

from typing import Any

from pdctl.topology import model
from pdctl.topology.checked_values import default, defaults
from pdctl.topology.diagnostic import Code
from pdctl.topology.export import MEANING, fields, markdown
from pdctl.topology.schema import POOL, ROLE, ROUTER, TOPOLOGY, Absent, Required, ValueKind
from tests.cases import for_each

from .conftest import ROOT, Write


def walk(kind: ValueKind) -> list[ValueKind]:
    inner = [key.kind for key in kind.keys] + list(kind.options) + ([kind.item] if kind.item else [])
    return [kind, *(found for each in inner for found in walk(each))]


def test_every_kind_can_be_read_exported_and_described() -> None:
    from pdctl.topology.checked_values import ValueReader
    from pdctl.topology.diagnostic import ProblemReport

    readers = ValueReader(ProblemReport(), {})._readers
    kinds = walk(TOPOLOGY)
    assert {kind.name for kind in kinds} == set(readers)
    assert all(kind.expected for kind in kinds)


def test_every_written_default_is_one_its_kind_accepts() -> None:
    for kind in walk(TOPOLOGY):
        for key in kind.keys:
            value = default(key)
            if key.default in (None, Required, Absent):
                continue
            if key.kind.choices:
                assert value in key.kind.choices
            if key.kind.name in ("integer", "number", "duration", "size"):
                assert isinstance(value, (int, float))


@for_each(
    ("kind", "fields_of", "derived"),
    [
        (ROLE, model.Role, {"name"}),
        (ROUTER, model.Router, set()),
        (POOL, model.Pool, {"name", "nic_speed", "nic_count", "nic_devices"}),
    ],
)
def test_the_table_and_the_model_have_the_same_keys(kind: ValueKind, fields_of: Any, derived: set[str]) -> None:
    written = {name.replace("-", "_") for name in defaults(kind)} - {"nic"}
    assert written == set(fields_of._fields) - derived


def test_the_documentation_is_current() -> None:
    text = (ROOT / "docs" / "topology.md").read_text("utf-8")
    begin, end = "<!-- begin: pdctl topology schema -o markdown -->\n", "<!-- end -->\n"
    assert text.count(begin) == text.count(end) == 1
    current = text.partition(begin)[2].partition(end)[0]
    assert current == markdown(), "run: pdctl topology schema -o markdown, and put it between the markers"


def test_the_reference_has_every_field_and_every_code() -> None:
    assert set(MEANING) == set(Code)
    paths = [path for path, _ in fields(TOPOLOGY, "")]
    assert len(paths) == len(set(paths))
    assert {"version", "roles.prefill.tp", "pools.<pool>.nic.speed", "readiness.restart.backoff-max"} <= set(paths)
    assert all(f"| `{path}` |" in markdown() for path in paths)


def test_the_examples_of_the_documentation_are_valid(write: Write) -> None:
    from pdctl.topology.resolve import load

    text = (ROOT / "docs" / "topology.md").read_text("utf-8")
    blocks = [block.partition("```")[0] for block in text.split("```yaml\n")[1:]]
    whole = [block for block in blocks if block.startswith("version:")]
    assert len(whole) >= 2
    for number, block in enumerate(whole):
        load([write(block, f"example-{number}.yaml", bare=True)], environ={})
