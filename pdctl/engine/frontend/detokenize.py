"""Tokens to text as they arrive: whole characters only, and never a character of a stop string that will be cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.frontend.tokenizer import Tokenizer

UNFINISHED = "\ufffd"  # what the tokenizer shows for a character whose last bytes have not arrived


class Detokenizer:
    """Decodes a window, not the whole answer, for each new token.

    `_done` marks tokens already in `text`; `_context` the tokens before them that are decoded again, because a
    tokenizer may join a word with the one before it (leading spaces).
    """

    __slots__ = ("_context", "_done", "_ids", "_skip_special", "_tokenizer", "text")

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._context = 0
        self._done = 0
        self.text = ""

    def push(self, ids: Sequence[int]) -> None:
        """Take tokens; `text` grows by every character that is complete."""
        self._ids.extend(ids)
        fresh = self._fresh()
        if fresh and not fresh.endswith(UNFINISHED):
            self._settle(fresh)

    def flush(self) -> None:
        """No more tokens will come: an unfinished character stays visible as U+FFFD."""
        self._settle(self._fresh())

    def _fresh(self) -> str:
        window = self._tokenizer.decode(self._ids[self._context :], self._skip_special)
        known = self._tokenizer.decode(self._ids[self._context : self._done], self._skip_special)
        return window[len(known) :]

    def _settle(self, fresh: str) -> None:
        self.text += fresh
        self._context = self._done
        self._done = len(self._ids)


class StopStrings:
    """Finds the first of several strings in a growing text, looking at each part of it once."""

    __slots__ = ("_longest", "_searched", "_stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._searched = 0

    def find(self, text: str) -> tuple[int, str] | None:
        """Where the earliest stop string begins, and which it is."""
        start = max(0, self._searched - self._longest + 1)
        self._searched = len(text)
        found = [(at, stop) for stop in self._stops if (at := text.find(stop, start)) >= 0]
        return min(found, key=lambda hit: hit[0]) if found else None

    def held(self, text: str) -> int:
        """How many characters at the end might be the beginning of a stop string: not to be sent yet."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
