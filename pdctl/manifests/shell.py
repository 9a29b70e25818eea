"""A shell text taken apart into its simple commands: enough to read flags and variables, never run.

Loops over words are gone through, every branch of an `if` or a `case` is taken, functions are taken where they stand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pdctl.manifests.expansion import MOST, Variables, ranged, sequence
from pdctl.manifests.manifest import Said, Word
from pdctl.manifests.quoting import Raw, split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
RUNNERS = ("env", "exec", "nohup", "time", "command")
LEADING = ("then", "do", "else", "elif", "if", "while", "until", "{", "!", "time")
OPENING, CLOSING = ("if", "case", "while", "until"), ("fi", "esac", "done")
LOOPS = ("for", "while", "until", "select")
SETTERS = ("export", "declare", "readonly", "local", "typeset")
MOST_COMMANDS = 4096  # of one text, every turn of its loops counted


class Command(NamedTuple):
    """`env` is what the text has exported or put in front by then."""

    words: tuple[Word, ...]
    env: tuple[Said, ...]


def commands(text: str, first: int = 1, known: Mapping[str, str] | None = None) -> Iterator[Command]:
    """Every simple command of a shell text that begins on line `first`, its known variables filled in.

    `known`: variables the surroundings set.
    """
    script = _Script(dict(known or {}))
    raws = list(split(text, first))
    yield from script.run(raws, 0, len(raws))


def variables(text: str, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a text that is sourced by others leaves set."""
    script = _Script(dict(known or {}))
    raws = list(split(text, 1))
    for _ in script.run(raws, 0, len(raws)):
        pass
    return {name: said.value for name, said in script.variables.known.items() if said.value is not None}


class _Script:
    def __init__(self, known: dict[str, str]) -> None:
        self.variables = Variables(known)
        self._exported: set[str] = set()
        self._left = MOST_COMMANDS
        self._branches = 0  # of if, case and while that are open: what is set there may never be

    def run(self, raws: list[list[Raw]], at: int, end: int) -> Iterator[Command]:
        while at < end and self._left > 0:
            self._left -= 1
            words = raws[at]
            head = words[0].text if words[0].bare else ""
            self._branches = max(self._branches + (head in OPENING) - (head in CLOSING), 0)
            while words and words[0].bare and words[0].text in LEADING and len(words) > 1:
                words = words[1:]
            if words[0].text == "for" and len(words) > 2 and words[2].text == "in":
                last = _done(raws, at, end)
                name = words[1].text
                for value in self._values(words[3:]):
                    self.variables.set(name, value, words[1].line)
                    yield from self.run(raws, at + 1, last)
                at = last
            else:
                yield from self._command(words)
            at += 1

    def _values(self, words: list[Raw]) -> list[str]:
        found: list[str] = []
        for raw in words:
            for each in self.variables.words(raw):
                found += sequence(each) or ranged(each)
        return found[:MOST]

    def _command(self, words: list[Raw]) -> Iterator[Command]:
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

    def _fill(self, words: list[Raw]) -> None:
        """`NAME=(a b)` and `NAME+=(a b)`."""
        name = words[0].text[:-2]
        values = [each for raw in words[1:-1] for each in self.variables.words(raw)]
        old = self.variables.arrays.get(name.removesuffix("+"), []) if name.endswith("+") else []
        self.variables.arrays[name.removesuffix("+")] = (old + values)[:MOST_COMMANDS]

    def _export(self, plain: list[Raw]) -> None:
        _, own = self._assigned([raw for raw in plain[1:] if ASSIGNMENT.fullmatch(raw.text)])
        for name, (value, more, line) in own.items():
            self.variables.set(name, value, line, more)
        if plain[0].text == "export" or any(raw.text.startswith("-") and "x" in raw.text for raw in plain[1:]):
            self._exported |= {raw.text.partition("=")[0].removesuffix("+") for raw in plain[1:]}

    def _made(self, plain: list[Raw], own: dict[str, tuple[str, bool, int]]) -> Command:
        env = {name: said for name, said in self.variables.known.items() if name in self._exported}
        env |= {name: Said(name, value, line) for name, (value, _, line) in own.items()}
        filled = tuple(Word(text, raw.line) for raw in plain for text in self.variables.words(raw))
        return Command(filled or (Word("", plain[0].line),), tuple(env.values()))

    def _assigned(self, words: list[Raw]) -> tuple[list[Raw], dict[str, tuple[str, bool, int]]]:
        """The words after the leading NAME=value ones (and `env`), and those: value, whether it is added, line."""
        found: dict[str, tuple[str, bool, int]] = {}
        for at, raw in enumerate(words):
            first = raw.pieces[0] if raw.pieces else None
            match = ASSIGNMENT.fullmatch(first.text) if first is not None and first.how == "" else None
            if match is None and raw.text not in RUNNERS:
                return words[at:], found
            if match is not None and first is not None:
                rest = Raw((first._replace(text=match[3]), *raw.pieces[1:]), raw.line)
                found[match[1]] = (self._whole(rest), bool(match[2]), raw.line)
        return [], found

    def _whole(self, raw: Raw) -> str:
        """An assignment splits nothing."""
        return self.variables.joined(Raw(tuple(each._replace(how=each.how or '"') for each in raw.pieces), raw.line))


def _done(raws: list[list[Raw]], at: int, end: int) -> int:
    """The command that closes the loop which begins at `at`; the last one where none does."""
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
