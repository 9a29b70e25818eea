"""A shell text taken apart into its simple commands: enough to read flags and variables, never run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pdctl.doctor.manifest import Said, Word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
ENDS = ";&|\n()"  # what ends a simple command; `&&` and `||` are two of them


class Command(NamedTuple):
    """`env` is what the text has exported or put in front by then."""

    words: tuple[Word, ...]
    env: tuple[Said, ...]


def commands(text: str, first: int = 1) -> Iterator[Command]:
    """Every simple command of a shell text that begins on line `first`, its known variables filled in."""
    known: dict[str, Said] = {}
    exported: set[str] = set()
    for words in _split(text, first):
        plain, own = _assigned(words)
        settings = {name: said._replace(value=_expanded(said.value or "", known)) for name, said in own.items()}
        if not plain:
            known |= settings
        elif plain[0].text in ("export", "declare", "readonly"):
            _, said = _assigned(plain[1:])
            known |= {name: each._replace(value=_expanded(each.value or "", known)) for name, each in said.items()}
            exported |= {word.text.partition("=")[0] for word in plain[1:]}
        else:
            env = {name: said for name, said in known.items() if name in exported} | settings
            filled = tuple(Word(_expanded(word.text, known), word.line) for word in plain)
            yield Command(filled, tuple(env.values()))


def _assigned(words: list[Word]) -> tuple[list[Word], dict[str, Said]]:
    """The words after the leading NAME=value ones (and `env`), and those."""
    found: dict[str, Said] = {}
    for at, word in enumerate(words):
        match = ASSIGNMENT.fullmatch(word.text)
        if match is None and word.text not in ("env", "exec", "nohup"):
            return words[at:], found
        if match is not None:
            found[match[1]] = Said(match[1], match[2], word.line)
    return [], found


def _expanded(text: str, known: Mapping[str, Said]) -> str:
    """Variables the text itself has set; others stay as they are, for nobody knows them."""

    def value(found: re.Match[str]) -> str:
        said = known.get(found[1] or found[3])
        return said.value if said is not None and said.value is not None else found[2] or found[0]

    return VARIABLE.sub(value, text)


class _Words:
    """The words of the command being read; the target of a redirection (`2> log`) is none of them."""

    def __init__(self) -> None:
        self.done: list[Word] = []
        self.piece = ""
        self.begun = False
        self._drop = False

    def add(self, text: str) -> None:
        self.piece, self.begun = self.piece + text, True

    def end(self, line: int) -> None:
        if self.begun and not self._drop:
            self.done.append(Word(self.piece, line))
        self._drop = self._drop and not self.begun
        self.piece, self.begun = "", False

    def redirect(self, line: int) -> None:
        if self.piece.isdigit():  # the number of a file descriptor
            self.piece, self.begun = "", False
        self.end(line)
        self._drop = True

    def take(self) -> list[Word]:
        taken, self.done, self._drop = self.done, [], False
        return taken


def _split(text: str, first: int) -> Iterator[list[Word]]:
    """Words of each command; quotes, escapes, comments and continued lines as a POSIX shell has them."""
    words, line, at = _Words(), first, 0
    while at < len(text):
        letter, after = text[at], at + 1
        if letter == "\\" and after < len(text):
            if text[after] != "\n":
                words.add(text[after])
            after += 1
        elif letter in "'\"":
            inside, after = _quoted(text, at)
            words.add(inside)
        elif letter == "#" and not words.begun:
            end = text.find("\n", at)
            after = len(text) if end < 0 else end
        elif letter in "<>":
            words.redirect(line)
            after += len(text[after : after + 2]) - len(text[after : after + 2].lstrip("<>&"))
        elif letter in " \t\r" or letter in ENDS:
            words.end(line)
            if letter in ENDS and words.done:
                yield words.take()
        else:
            words.add(letter)
        line += text.count("\n", at, after)
        at = after
    words.end(line)
    if words.done:
        yield words.take()


def _quoted(text: str, at: int) -> tuple[str, int]:
    """What stands in the quotes that open at `at`, and where the text goes on; an unclosed quote runs to the end."""
    mark, inside, at = text[at], "", at + 1
    while at < len(text) and text[at] != mark:
        if mark == '"' and text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
            inside += "" if text[at + 1] == "\n" else text[at + 1]
            at += 2
            continue
        inside += text[at]
        at += 1
    return inside, at + 1
