from __future__ import annotations

from pdctl.topology.diagnostic import Code, ProblemReport
from pdctl.topology.yaml_parser import MAX_NODES, List, Map, Node, Scalar, YamlText, parse
from tests.cases import for_each


def tree(text: str) -> Map:
    report = ProblemReport()
    node = parse(YamlText.of("t.yaml", text), report)
    assert report.listed() == ()
    assert isinstance(node, Map)
    return node


def plain(node: Node) -> object:
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, List):
        return [plain(item) for item in node.items]
    return {name: plain(entry.value) for name, entry in node.entries.items()}


def codes(text: str) -> list[Code]:
    report = ProblemReport()
    parse(YamlText.of("t.yaml", text), report)
    return [found.code for found in report.listed()]


def test_every_key_and_value_knows_its_place() -> None:
    root = tree("a: 1\nb:\n  - x\n  - {c: &n 'd e'}\n")
    assert (root.entries["a"].key.line, root.entries["a"].key.column) == (1, 1)
    assert (root.entries["a"].value.span.column, root.entries["a"].value.span.end_column) == (4, 5)
    items = root.entries["b"].value
    assert isinstance(items, List)
    inner = items.items[1]
    assert isinstance(inner, Map)
    span = inner.entries["c"].value.span
    assert (span.line, span.column, span.end_column) == (4, 12, 17), "the anchor is not part of the value"


def test_columns_count_characters_not_bytes() -> None:
    span = tree("{naïve: 'ありがとう', next: 1}").entries["next"].key
    assert (span.column, span.end_column) == (18, 22)


def test_a_value_over_several_lines_ends_with_its_first() -> None:
    root = tree("a: |\n  one\n  two\nb: {c: 1,\n  d: 2}\n")
    block, flow = root.entries["a"].value.span, root.entries["b"].value.span
    assert (block.line, block.column, block.end_column) == (1, 4, 5)
    assert (flow.line, flow.column, flow.end_column) == (4, 4, 10)


def test_a_blank_value_points_at_its_key() -> None:
    entry = tree("a:\nb: 1\n").entries["a"]
    assert isinstance(entry.value, Scalar)
    assert entry.value.blank
    assert entry.value.span == entry.key


def test_merge_keys_own_keys_win_then_the_first_map() -> None:
    text = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz: {<<: [*x, *y], a: 0}\nw: {<<: *x, d: 3}\n"
    root = plain(tree(text))
    assert isinstance(root, dict)
    assert root["z"] == {"a": "0", "b": "1", "c": "2"}
    assert root["w"] == {"a": "1", "b": "1", "d": "3"}


def test_a_quoted_merge_key_is_an_ordinary_key() -> None:
    assert plain(tree("'<<': 1")) == {"<<": "1"}


def test_quotes_and_str_tags_make_text() -> None:
    root = tree("a: '1'\nb: !!str 1\nc: 1\n")
    kinds = {name: entry.value.plain for name, entry in root.entries.items() if isinstance(entry.value, Scalar)}
    assert kinds == {"a": False, "b": False, "c": True}


@for_each("line_break", ["\n", "\r\n", "\r"])
def test_lines_are_counted_by_any_line_break(line_break: str) -> None:
    root = tree(line_break.join(["# head", "a: 1", "", "b: 2"]))
    assert root.entries["b"].key.line == 4


@for_each("depth", [40, 5_000, 100_000])
def test_deep_nesting_is_refused_without_recursing(depth: int) -> None:
    assert codes("a: " + "[" * depth) == [Code.TOO_DEEP]


def test_a_large_plain_list_and_an_alias_bomb_meet_the_same_limit() -> None:
    assert codes("a: [" + "1, " * MAX_NODES + "]") == [Code.TOO_MANY_NODES]
    rows = ["l0: &l0 [1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 8)}]" for level in range(1, 12)]
    assert codes("\n".join(rows)) == [Code.TOO_MANY_NODES]


def test_aliases_within_the_limit_share_their_value() -> None:
    root = tree("a: &a {b: 1}\nc: *a\n")
    assert root.entries["a"].value is root.entries["c"].value
