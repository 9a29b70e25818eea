"""Parse a shell text into simple commands, with variables filled in as far as the text sets them; nothing is run."""

from __future__ import annotations

import ast
import operator
import re
from itertools import chain
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.manifests.manifest import PlacedWord, SaidSetting
from pdctl.manifests.shell_words import DOUBLE, LITERAL, SUM, RawWord, split
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


VARIABLE = re.compile(r"\$(?:\{(\w+)(?:(:?[-=?])([^}]*))?\}|(\w+))")
UNBRACED = re.compile(rf"(?!\$\{{){VARIABLE.pattern}")  # the same groups, for a text without a closing brace
ALL = re.compile(r"\$(?:\{(\w+|[@*])(?:\[[@*]\])?\}|([@*]))")  # "${ARGS[@]}", "$@"
ARRAY = re.compile(r"\$\{(\w+|[@*])\[[@*]\]\}|\$[@*]|\$\{[@*]\}")
PASSED = re.compile(r"\$(\d|\{\d+\})")
LONGEST = 1 << 16  # maximum characters of one word
SUMS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
LARGEST = 10**9
MOST = 64  # maximum iterations of one loop
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
RUNNERS = ("env", "exec", "nohup", "time", "command")
LEADING = ("then", "do", "else", "elif", "if", "while", "until", "{", "!", "time")
OPENING, CLOSING = ("if", "case", "while", "until"), ("fi", "esac", "done")
LOOPS = ("for", "while", "until", "select")
SETTERS = ("export", "declare", "readonly", "local", "typeset")
MOST_COMMANDS = 4096  # maximum commands of one text, counting every loop iteration


class ShellVariables:
    """The variables of a shell. `arrays`: the words of each `NAME=(…)`. A value of None: set, but unknown."""

    def __init__(self, known: dict[str, str]) -> None:
        self.known = {name: SaidSetting(name, value, 0) for name, value in known.items()}
        self.arrays: dict[str, list[str]] = {}

    def set(self, name: str, value: str, line: int, more: bool = False, certain: bool = True) -> None:
        """Set a variable. A positional parameter (`MODEL="$2"`), or an unknown value set in only one branch, does not
        replace a value that the text itself set before. `more`: append (`+=`)."""
        old = self.known.get(name)
        vague = PASSED.fullmatch(value) or (not certain and value.startswith("$"))
        if vague and old is not None and old.value is not None and "$" not in old.value:
            return
        before = old.value or "" if more and old is not None else ""
        self.known[name] = SaidSetting(name, (before + value)[:LONGEST], line)

    def words(self, raw: RawWord) -> list[str]:
        """The words that one word expands to: none, one, or several if an unquoted variable contains several."""
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

    def joined(self, raw: RawWord) -> str:
        """The expansion as one word, as in an assignment."""
        return " ".join(self.words(raw))

    def _quoted(self, text: str, fields: list[str]) -> bool:
        """Expand a double-quoted piece into `fields`; return whether it makes a word: an empty array makes none."""
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
        """(literal, "") and ("", value of a variable) in turn. An unknown variable is literal: it cannot be split."""
        at = 0
        closed = _closed(text)
        braced = re.compile(f"{ARRAY.pattern}|{VARIABLE.pattern}").finditer(text, 0, closed)
        for found in chain(braced, re.compile(rf"\$[@*]|{UNBRACED.pattern}").finditer(text, closed)):
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

        closed = _closed(text)
        return VARIABLE.sub(value, text[:closed]) + UNBRACED.sub(value, text[closed:])

    def _value(self, found: re.Match[str]) -> str | None:
        """A variable's value; None if unknown. `${NAME:-default}` and `:=` have a default, which may have variables."""
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
        """`$((BASE + 1))` as a number; unchanged if it contains an unknown name."""
        filled = re.sub(r"(?<!\$)\b[A-Za-z_]\w*", lambda found: f"${found[0]}", text)
        try:
            return str(_reckoned(ast.parse(self.filled(filled).strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return f"$(({text}))"


def _closed(text: str) -> int:
    """Where the last brace closes. Behind it no `${` can match, and each would search the rest of the text."""
    return text.rfind("}") + 1


def _reckoned(node: ast.expr, depth: int = 0) -> int:
    """The value of integers with + - * / % and brackets. Raise ValueError for anything else and for huge numbers."""
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
    """The numbers of `{0..3}`; any other text as the only item."""
    found = re.fullmatch(r"\{(\d{1,6})\.\.(\d{1,6})\}", text)
    if found is None:
        return [text]
    low, high = numerals.whole(found[1]) or 0, numerals.whole(found[2]) or 0
    step = 1 if high >= low else -1
    return [str(number) for number in range(low, high + step, step)][:MOST]


def sequence(text: str) -> list[str] | None:
    """The numbers of `$(seq 4)` or `$(seq 0 3)`; None for any other text."""
    found = re.fullmatch(r"\$\(\s*seq\s+(\d{1,6})(?:\s+(\d{1,6}))?\s*\)", text)
    if found is None:
        return None
    first, last = (found[1], found[2]) if found[2] else ("1", found[1])
    return ranged(f"{{{first}..{last}}}") if int(first) <= int(last) else []


class ShellCommand(NamedTuple):
    """A simple command. `env`: the variables that the text has exported before, and those in front of the command.

    `host`: where it is executed, as in Container.
    """

    words: tuple[PlacedWord, ...]
    env: tuple[SaidSetting, ...]
    host: str | None = ""


def commands(text: str, first: int = 1, known: Mapping[str, str] | None = None) -> Iterator[ShellCommand]:
    """Every simple command of a shell text that begins on line `first`, with known variables filled in.

    `known`: variables that are already set.
    """
    script = _Script(dict(known or {}))
    raws = list(split(text, first))
    yield from script.run(raws, 0, len(raws))


def variables(text: str, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that are set after a text has run, for a file that others source."""
    script = _Script(dict(known or {}))
    raws = list(split(text, 1))
    for _ in script.run(raws, 0, len(raws)):
        pass
    return {name: said.value for name, said in script.variables.known.items() if said.value is not None}


class _Script:
    def __init__(self, known: dict[str, str]) -> None:
        self.variables = ShellVariables(known)
        self._exported: set[str] = set()
        self._left = MOST_COMMANDS
        self._branches = 0  # open if, case and while: an assignment inside may never be executed

    def run(self, raws: list[list[RawWord]], at: int, end: int) -> Iterator[ShellCommand]:
        while at < end and self._left > 0:
            self._left -= 1
            words = raws[at]
            head = words[0].text if words[0].bare else ""
            self._branches = max(self._branches + (head in OPENING) - (head in CLOSING), 0)
            while words and words[0].bare and words[0].text in LEADING and len(words) > 1:
                words = words[1:]
            if words[0].text == "for" and len(words) > 2 and words[2].text == "in":
                last = _end_of_loop(raws, at, end)
                name = words[1].text
                for value in self._values(words[3:]):
                    self.variables.set(name, value, words[1].line)
                    yield from self.run(raws, at + 1, last)
                at = last
            else:
                yield from self._command(words)
            at += 1

    def _values(self, words: list[RawWord]) -> list[str]:
        found: list[str] = []
        for raw in words:
            for each in self.variables.words(raw):
                found += sequence(each) or ranged(each)
        return found[:MOST]

    def _command(self, words: list[RawWord]) -> Iterator[ShellCommand]:
        if len(words) > 1 and words[0].bare and words[0].text.endswith("=(") and words[-1].text == ")":
            self._fill(words)
            return
        plain, own = self._assigned(words)
        if not plain:
            for name, (value, more, line) in own.items():
                self.variables.set(name, value, line, more, certain=not self._branches)
        elif plain[0].text in SETTERS:
            self._export(plain)
        else:
            yield self._made(plain, own)

    def _fill(self, words: list[RawWord]) -> None:
        """Execute `NAME=(a b)` or `NAME+=(a b)`."""
        name = words[0].text[:-2]
        values = [each for raw in words[1:-1] for each in self.variables.words(raw)]
        old = self.variables.arrays.get(name.removesuffix("+"), []) if name.endswith("+") else []
        self.variables.arrays[name.removesuffix("+")] = (old + values)[:MOST_COMMANDS]

    def _export(self, plain: list[RawWord]) -> None:
        _, own = self._assigned([raw for raw in plain[1:] if ASSIGNMENT.fullmatch(raw.text)])
        for name, (value, more, line) in own.items():
            self.variables.set(name, value, line, more)
        if plain[0].text == "export" or any(raw.text.startswith("-") and "x" in raw.text for raw in plain[1:]):
            self._exported |= {raw.text.partition("=")[0].removesuffix("+") for raw in plain[1:]}

    def _made(self, plain: list[RawWord], own: dict[str, tuple[str, bool, int]]) -> ShellCommand:
        env = {name: said for name, said in self.variables.known.items() if name in self._exported}
        env |= {name: SaidSetting(name, value, line) for name, (value, _, line) in own.items()}
        filled = tuple(PlacedWord(text, raw.line) for raw in plain for text in self.variables.words(raw))
        return ShellCommand(filled or (PlacedWord("", plain[0].line),), tuple(env.values()))

    def _assigned(self, words: list[RawWord]) -> tuple[list[RawWord], dict[str, tuple[str, bool, int]]]:
        """The words after leading NAME=value words (and `env`), and NAME → (value, whether it is appended, line)."""
        found: dict[str, tuple[str, bool, int]] = {}
        for at, raw in enumerate(words):
            first = raw.pieces[0] if raw.pieces else None
            match = ASSIGNMENT.fullmatch(first.text) if first is not None and first.how == "" else None
            if match is None and raw.text not in RUNNERS:
                return words[at:], found
            if match is not None and first is not None:
                rest = RawWord((first._replace(text=match[3]), *raw.pieces[1:]), raw.line)
                found[match[1]] = (self._whole(rest), bool(match[2]), raw.line)
        return [], found

    def _whole(self, raw: RawWord) -> str:
        """The value of an assignment, which undergoes no word splitting."""
        return self.variables.joined(
            RawWord(tuple(each._replace(how=each.how or '"') for each in raw.pieces), raw.line)
        )


def _end_of_loop(raws: list[list[RawWord]], at: int, end: int) -> int:
    """The index of the command that closes the loop starting at `at`; `end` if none does."""
    depth = 0
    for index in range(at, end):
        words = [raw.text for raw in raws[index] if raw.bare]
        heads = [word for word in words[:2] if word in LOOPS]
        depth += bool(heads)
        if words[:1] == ["done"]:
            depth -= 1
            if depth == 0:
                return index
    return end
