"""Split a shell text into simple commands of quoted and unquoted pieces (POSIX token recognition); nothing is run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDS = ";&|\n()"  # what ends a simple command; `&&` and `||` are two of them
LITERAL, PLAIN, DOUBLE, SUM = "'", "", '"', "("  # how a piece is quoted; SUM is the inside of `$((…))`
_ORDINARY = re.compile(r"[^\\'\"$`#<>() \t\r\n;&|]+")  # a run of characters without a special meaning
_BLANKS = re.compile(r"[ \t\r]+")
CLOSING = {"(": ")", "{": "}"}


class ShellPiece(NamedTuple):
    text: str
    how: str


class RawWord(NamedTuple):
    """One word as written. `line`: the line on which it ends; for a word that spans lines, its first."""

    pieces: tuple[ShellPiece, ...]
    line: int

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def bare(self) -> bool:
        """Whether the word has no quotes or escapes, as a reserved word must."""
        return all(piece.how == PLAIN for piece in self.pieces)


class _Words:
    """The words of the command being read, without the targets of redirections (`2> log`)."""

    def __init__(self) -> None:
        self.done: list[RawWord] = []
        self.pieces: list[ShellPiece] = []
        self._drop = False

    @property
    def begun(self) -> bool:
        return bool(self.pieces)

    def add(self, text: str, how: str = PLAIN) -> None:
        if how == PLAIN and self.pieces and self.pieces[-1].how == PLAIN:
            self.pieces[-1] = ShellPiece(self.pieces[-1].text + text, PLAIN)
        else:
            self.pieces.append(ShellPiece(text, how))

    def end(self, line: int) -> None:
        if self.begun and not self._drop:
            self.done.append(RawWord(tuple(self.pieces), line))
        self._drop = self._drop and not self.begun
        self.pieces = []

    def redirect(self, line: int) -> None:
        if len(self.pieces) == 1 and self.pieces[0].text.isdigit():  # the number of a file descriptor
            self.pieces = []
        self.end(line)
        self._drop = True

    def take(self) -> list[RawWord]:
        taken, self.done, self._drop = self.done, [], False
        return taken


def split(text: str, first: int) -> Iterator[list[RawWord]]:
    """The words of each command; quotes, escapes, comments, here-documents and continued lines are as in a POSIX shell.

    An array (`NAME=(a b)`) is one command whose words begin with `NAME=(` and end with `)`.
    """
    words, line, at, array = _Words(), first, 0, False
    awaited: list[str] = []  # the words that end the here-documents of this line
    while at < len(text):
        letter, after = text[at], at + 1
        if letter == "\\" and after < len(text):
            if text[after] != "\n":
                words.add(text[after], LITERAL)
            after += 1
        elif letter in "'\"":
            inside, after = _quoted(text, at)
            words.add(inside, LITERAL if letter == "'" else DOUBLE)
        elif letter == "$" and text[after : after + 1] in ("(", "{"):
            after = _closing_bracket(text, after)
            whole = text[at:after]
            total = whole.startswith("$((") and whole.endswith("))")
            words.add(*((whole[3:-2], SUM) if total else (whole, PLAIN if whole[1] == "{" else LITERAL)))
        elif letter == "`":
            end = text.find("`", after)
            after = len(text) if end < 0 else end + 1
            words.add(f"$({text[at + 1 : after - 1]})", LITERAL)
        elif letter == "#" and not words.begun:
            end = text.find("\n", at)
            after = len(text) if end < 0 else end
        elif letter in "<>":
            if text.startswith("<<", at) and not text.startswith("<<<", at):
                mark, after = _delimiter(text, at + 2)
                awaited.append(mark)
            else:
                words.redirect(line)
                after += len(text[after : after + 2]) - len(text[after : after + 2].lstrip("<>&"))
        elif letter == "(" and words.begun and words.pieces[-1].text.endswith("=") and not array:
            words.add("(")
            words.end(line)
            array = True
        elif array and letter == ")":
            words.end(line)
            words.add(")")
            words.end(line)
            array = False
        elif letter in " \t\r" or (array and letter == "\n"):
            words.end(line)
            after = _BLANKS.match(text, at).end() if letter != "\n" else after  # type: ignore[union-attr]
        elif letter in ENDS:
            words.end(line)
            if words.done:
                yield words.take()
            if letter == "\n" and awaited:
                after = _after_documents(text, after, awaited)
                awaited = []
        else:
            run = _ORDINARY.match(text, at)
            after = run.end() if run else after
            words.add(text[at:after])
        line += text.count("\n", at, after)
        at = after
    words.end(line)
    if words.done:
        yield words.take()


def _quoted(text: str, at: int) -> tuple[str, int]:
    """The text inside the quotes that open at `at`, and the index after them; an unclosed quote runs to the end."""
    mark, inside, at = text[at], "", at + 1
    while at < len(text) and text[at] != mark:
        if mark == '"' and text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
            inside += "" if text[at + 1] == "\n" else text[at + 1]
            at += 2
        elif mark == '"' and text.startswith(("$(", "${"), at):
            end = _closing_bracket(text, at + 1)
            inside += text[at:end]
            at = end
        else:
            inside += text[at]
            at += 1
    return inside, at + 1


def _closing_bracket(text: str, at: int) -> int:
    """The index after the bracket that closes the one at `at`, skipping quotes; the end of the text if none does."""
    opening, closing, depth = text[at], CLOSING[text[at]], 0
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 1
        elif letter in "'\"" and opening == "(":
            end = text.find(letter, at + 1)
            at = end if end >= 0 else at
        elif letter == opening:
            depth += 1
        elif letter == closing:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return len(text)


def _delimiter(text: str, at: int) -> tuple[str, int]:
    """The word that ends a here-document, and the index at which the line continues."""
    while text[at : at + 1] in ("-", " ", "\t"):
        at += 1
    if text[at : at + 1] in ("'", '"'):
        return _quoted(text, at)
    end = at
    while end < len(text) and text[end] not in " \t\r\n;&|<>()":
        end += 1
    return text[at:end].replace("\\", ""), end


def _after_documents(text: str, at: int, marks: list[str]) -> int:
    for mark in marks:
        while at < len(text):
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            found, at = text[at:end].strip() == mark, end + 1
            if found:
                break
    return min(at, len(text))
