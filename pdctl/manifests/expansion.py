"""Variables of a shell text, as far as the text itself sets them; sums of them; what nobody knows stays as written."""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.manifests.manifest import Said
from pdctl.manifests.quoting import DOUBLE, LITERAL, SUM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.manifests.quoting import Raw

VARIABLE = re.compile(r"\$(?:\{(\w+)(?:(:?[-=?])([^}]*))?\}|(\w+))")
ALL = re.compile(r"\$(?:\{(\w+|[@*])(?:\[[@*]\])?\}|([@*]))")  # "${ARGS[@]}", "$@"
ARRAY = re.compile(r"\$\{(\w+|[@*])\[[@*]\]\}|\$[@*]|\$\{[@*]\}")
PASSED = re.compile(r"\$(\d|\{\d+\})")
LONGEST = 1 << 16  # characters one word may grow to


class Variables:
    """`arrays` are the words of `NAME=(…)`. A value of None is set to something nobody knows."""

    def __init__(self, known: dict[str, str]) -> None:
        self.known = {name: Said(name, value, 0) for name, value in known.items()}
        self.arrays: dict[str, list[str]] = {}

    def set(self, name: str, value: str, line: int, more: bool = False, certain: bool = True) -> None:
        """What the caller may pass (`MODEL="$2"`), and what only one branch sets to something unknown, does not replace
        what the text itself has set before."""
        old = self.known.get(name)
        vague = PASSED.fullmatch(value) or (not certain and value.startswith("$"))
        if vague and old is not None and old.value is not None and "$" not in old.value:
            return
        before = old.value or "" if more and old is not None else ""
        self.known[name] = Said(name, (before + value)[:LONGEST], line)

    def words(self, raw: Raw) -> list[str]:
        """What a word becomes: nothing, itself, or several where an unquoted variable holds several."""
        fields, begun = [""], False
        for piece in raw.pieces:
            if piece.how == LITERAL:
                fields[-1] += piece.text
                begun = True
            elif piece.how == SUM:
                fields[-1] += self._sum(piece.text)
                begun = True
            elif piece.how == DOUBLE:
                begun = self._quoted(piece.text, fields) or begun
            else:
                begun = self._plain(piece.text, fields) or begun
            if len(fields[-1]) > LONGEST:
                fields[-1] = fields[-1][:LONGEST]
        return fields if begun or len(fields) > 1 else []

    def joined(self, raw: Raw) -> str:
        """As one word, the way an assignment takes it."""
        return " ".join(self.words(raw))

    def _quoted(self, text: str, fields: list[str]) -> bool:
        """Whether there is a word at all: of an empty array nothing is left."""
        found = ARRAY.fullmatch(text)
        if found is None:
            fields[-1] += self.filled(ARRAY.sub(lambda each: " ".join(self._array(each)), text))
            return True
        elements = self._array(found)
        if elements:
            fields[-1] += elements[0]
            fields += elements[1:]
        return bool(elements)

    def _array(self, found: re.Match[str]) -> list[str]:
        return self.arrays.get(found[1] or "", [])

    def _plain(self, text: str, fields: list[str]) -> bool:
        begun = False
        for literal, value in self._parts(text):
            if literal:
                fields[-1] += literal
                begun = True
                continue
            several = value.split()
            if value[:1].isspace() and fields[-1]:
                fields.append("")
            if several:
                fields[-1] += several[0]
                fields += several[1:]
                begun = True
        return begun

    def _parts(self, text: str) -> Iterator[tuple[str, str]]:
        """(literal, "") and ("", value of a variable) in turn. What is unknown is literal: nobody can split it."""
        at = 0
        for found in re.finditer(f"{ARRAY.pattern}|{VARIABLE.pattern}", text):
            if found.start() > at:
                yield text[at : found.start()], ""
            at = found.end()
            array, variable = ARRAY.fullmatch(found[0]), VARIABLE.fullmatch(found[0])
            if array is not None:
                yield "", " ".join(self._array(array))
            elif variable is not None:
                value = self._value(variable)
                yield ("", value) if value is not None else (found[0], "")
        if at < len(text):
            yield text[at:], ""

    def filled(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            known = self._value(found)
            return found[0] if known is None else known

        return VARIABLE.sub(value, text)

    def _value(self, found: re.Match[str]) -> str | None:
        """None: nobody knows. `${NAME:-default}` and `:=` have a default, which may name another variable."""
        name, how, default = found[1] or found[4], found[2] or "", found[3]
        said = self.known.get(name)
        if said is not None and said.value is not None and (said.value or ":" not in how):
            return said.value
        if default is None or how.endswith("?"):
            return None
        value = self.filled(default.strip("'\"")) if "$" in default else default.strip("'\"")
        if how.endswith("="):
            self.set(name, value, 0)
        return value

    def _sum(self, text: str) -> str:
        """`$((BASE + 1))` as a number; as it is written where a name in it is unknown."""
        filled = re.sub(r"(?<!\$)\b[A-Za-z_]\w*", lambda found: f"${found[0]}", text)
        try:
            return str(_reckoned(ast.parse(self.filled(filled).strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return f"$(({text}))"


SUMS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
LARGEST = 10**9


def _reckoned(node: ast.expr, depth: int = 0) -> int:
    """Whole numbers, + - * / % and brackets; ValueError for anything else, and for numbers no port has."""
    if depth > 20:
        raise ValueError
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= LARGEST:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_reckoned(node.operand, depth + 1)
    if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
        value = SUMS[type(node.op)](_reckoned(node.left, depth + 1), _reckoned(node.right, depth + 1))
        if abs(value) <= LARGEST:
            return value
    raise ValueError


def ranged(text: str) -> list[str]:
    """`{0..3}` as its numbers; anything else as itself."""
    found = re.fullmatch(r"\{(\d{1,6})\.\.(\d{1,6})\}", text)
    if found is None:
        return [text]
    low, high = numerals.whole(found[1]) or 0, numerals.whole(found[2]) or 0
    step = 1 if high >= low else -1
    return [str(number) for number in range(low, high + step, step)][:MOST]


def sequence(text: str) -> list[str] | None:
    """`$(seq 4)`, `$(seq 0 3)` as their numbers."""
    found = re.fullmatch(r"\$\(\s*seq\s+(\d{1,6})(?:\s+(\d{1,6}))?\s*\)", text)
    if found is None:
        return None
    first, last = (found[1], found[2]) if found[2] else ("1", found[1])
    return ranged(f"{{{first}..{last}}}") if int(first) <= int(last) else []


MOST = 64  # turns of one loop
