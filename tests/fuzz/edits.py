"""How a real input is broken: a list of small edits, each a row of four numbers.

Applying them is pure, so a driver only has to choose numbers: a seeded generator here, hypothesis in the tests, which
then shrinks what it finds. An input of several parts (answers of one server, logs of one run) has SEPARATOR between.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

SEPARATOR = b"\x1e"
LONGEST = 1 << 16  # bytes an input is stretched to
STAMPED = 22  # bytes of a line that hold its time
MOST = 4  # edits of one case
NUMBER = re.compile(rb"\d+")
WORD = re.compile(rb"[A-Za-z_]{3,}")

ODD: tuple[object, ...] = (
    None, True, -1, 0, 1, 65536, 2**63, 10**400, 1e308, float("nan"), "", "\ud800", "x" * 5000, "²", "8998", "None",
    "\x00", "\x1b[31m", [], {}, [[]], {"": {}}, [None, 1, "a"], [{}] * 70, "http://[::1]:8998", "prefill", "decode",
)  # fmt: skip
DIGITS = (b"", b"0", b"-1", b"65536", b"99999", b"9" * 30, b"9" * 5000, b"1e400", b"nan", "²".encode(), "٣".encode())
SCRAPS = (
    b"\x00", b"\xff", b"\r\n", b"\n", b"\n\n", b"\t", b"{", b"}", b"[", b"]", b"(", b")", b'"', b"'", b"\\", b"\\u",
    b":", b",", b"=", b"-", b"/", b"#", b"%", b"&", b"*", b"|", b"<", b">", b" ", b"  ", b"None", b"null", b"true",
    b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xc2\x85", b"data: ", b"\x1b[31m", b"\x1b", b"[2026-11-21 01:34:20] ",
    b"[2026-11-21 01:34:20 TP0] ", b"[04:46:19 DP1 TP3] ", b"2026-11-21 02:06:44  INFO smg::x: ", b"room=0 ", b"room: ",
    b"prefill-0  \xe2\x94\x82 ", b"[pod/prefill-0/engine] ", b'{"log":"', b"INFO:     ", b"http://127.0.0.1:8998", b"http://[",
    b"HTTP/1.1 200 OK\r\n\r\n", b"transfer-encoding: chunked\r\n", b"0\r\n\r\n", b"api_key=", b"token: ", b"--api-key ",
    b"text='", b"://", b"@", b"sglang_worker_cb_state{", b'le="', b"!!python/object:", b"&a [*a, *a]", b"- id: ",
    b"---\n", b"NaN", b"\\ud800", SEPARATOR,
)  # fmt: skip


class Edit(NamedTuple):
    """`at`: where, counted around the end of what there is; `size`, `pick`: how much, and which of several."""

    kind: int
    at: int
    size: int
    pick: int


def apply(data: bytes, edits: Sequence[Edit], seeds: Sequence[bytes]) -> bytes:
    """`data` after the edits, in order; `seeds` lend their parts."""
    for edit in edits:
        data = KINDS[edit.kind % len(KINDS)](data, edit, seeds[edit.pick % len(seeds)])
    return data


def chosen(chance: random.Random) -> list[Edit]:
    """Some edits; the dear ones (STRETCHED) are rare."""
    found = []
    for _ in range(chance.randint(1, MOST)):
        kind = chance.randrange(len(KINDS))
        if KINDS[kind] is _stretched and chance.randrange(12):
            kind = 0
        found.append(Edit(kind, chance.getrandbits(24), chance.getrandbits(6), chance.getrandbits(16)))
    return found


def _place(data: bytes, edit: Edit) -> int:
    return edit.at % (len(data) + 1)


def _flipped(data: bytes, edit: Edit, _: bytes) -> bytes:
    at = _place(data, edit)
    return data[:at] + bytes([edit.pick % 256]) + data[at + 1 :]


def _cut(data: bytes, edit: Edit, _: bytes) -> bytes:
    at = _place(data, edit)
    return data[:at] + data[at + edit.size :]


def _ended(data: bytes, edit: Edit, _: bytes) -> bytes:
    return data[: _place(data, edit)]


def _scrap(data: bytes, edit: Edit, _: bytes) -> bytes:
    at = _place(data, edit)
    return data[:at] + SCRAPS[edit.pick % len(SCRAPS)] + data[at + (edit.size % 4 and edit.size) :]


def _doubled(data: bytes, edit: Edit, _: bytes) -> bytes:
    at = _place(data, edit)
    return data[:at] + data[at : at + edit.size] + data[at:]


def _stretched(data: bytes, edit: Edit, _: bytes) -> bytes:
    """A short piece again and again: what takes time in proportion to more than the length shows here."""
    at = _place(data, edit)
    unit = data[at : at + 1 + edit.size % 8] or b"a"
    count = (LONGEST >> (edit.pick % 8)) // len(unit)
    return data[:at] + unit * count + data[at:]


def _spliced(data: bytes, edit: Edit, other: bytes) -> bytes:
    return data[: _place(data, edit)] + other[edit.size * len(other) // 64 :]


def _inserted(data: bytes, edit: Edit, other: bytes) -> bytes:
    at, start = _place(data, edit), edit.size * len(other) // 64
    return data[:at] + other[start : start + 200] + data[at:]


def _number(data: bytes, edit: Edit, _: bytes) -> bytes:
    """A number exchanged for an odd one."""
    return _exchanged(data, edit, NUMBER, DIGITS[edit.pick % len(DIGITS)])


def _sprinkled(data: bytes, edit: Edit, _: bytes) -> bytes:
    """One odd number in every few lines: what one line says is often believed only if another agrees."""
    new, every = DIGITS[edit.pick % len(DIGITS)], 2 + edit.size % 7
    lines = data.split(b"\n")
    for at in range(edit.at % every, len(lines), every):
        found = list(NUMBER.finditer(lines[at], STAMPED))
        if found:
            one = found[(edit.at + at) % len(found)]
            lines[at] = lines[at][: one.start()] + new + lines[at][one.end() :]
    return b"\n".join(lines)


def _word(data: bytes, edit: Edit, other: bytes) -> bytes:
    """A word exchanged for one of another input."""
    words = WORD.findall(other[:4000])
    return _exchanged(data, edit, WORD, words[edit.size % len(words)]) if words else data


def _exchanged(data: bytes, edit: Edit, pattern: re.Pattern[bytes], new: bytes) -> bytes:
    found = pattern.search(data, _place(data, edit)) or pattern.search(data)
    return data if found is None else data[: found.start()] + new + data[found.end() :]


def _value(data: bytes, edit: Edit, _: bytes) -> bytes:
    """One value somewhere inside a part's JSON, exchanged for an odd one."""
    parts = data.split(SEPARATOR)
    at = edit.at % len(parts)
    head, brace, rest = parts[at].partition(b"{")
    try:
        tree = json.loads(brace + rest)
    except (ValueError, RecursionError):
        return data
    parts[at] = head + json.dumps(_replaced(tree, edit.at // len(parts), edit)).encode()
    return SEPARATOR.join(parts)


def _replaced(value: object, way: int, edit: Edit) -> object:
    """`way` says into which member, and how deep, by its digits."""
    if isinstance(value, dict) and value and (edit.size % 8 or way):
        key = list(value)[way % len(value)]
        return {**value, key: _replaced(value[key], way // len(value), edit)}
    if isinstance(value, list) and value and edit.size % 2:
        at = way % len(value)
        return [*value[:at], _replaced(value[at], way // len(value), edit), *value[at + 1 :]]
    return ODD[edit.pick % len(ODD)]


def _scattered(data: bytes, edit: Edit, _: bytes) -> bytes:
    """Many values of every part's JSON exchanged for odd ones, each for another."""
    every, count = 2 + edit.size, edit.at

    def leaves(value: object) -> object:
        nonlocal count
        if isinstance(value, dict):
            return {key: leaves(each) for key, each in value.items()}
        if isinstance(value, list):
            return [leaves(each) for each in value]
        count += 1
        return value if count % every else ODD[(count + edit.pick) % len(ODD)]

    parts = data.split(SEPARATOR)
    for at, part in enumerate(parts):
        head, brace, rest = part.partition(b"{")
        try:
            parts[at] = head + json.dumps(leaves(json.loads(brace + rest))).encode()
        except (ValueError, RecursionError):
            continue
    return SEPARATOR.join(parts)


def _dropped(data: bytes, edit: Edit, _: bytes) -> bytes:
    parts = data.split(SEPARATOR)
    del parts[edit.at % len(parts)]
    return SEPARATOR.join(parts)


def _swapped(data: bytes, edit: Edit, _: bytes) -> bytes:
    """Two parts, or two lines, in each other's place."""
    mark = SEPARATOR if SEPARATOR in data and edit.size % 2 else b"\n"
    parts = data.split(mark)
    one, two = edit.at % len(parts), edit.pick % len(parts)
    parts[one], parts[two] = parts[two], parts[one]
    return mark.join(parts)


KINDS: tuple[Callable[[bytes, Edit, bytes], bytes], ...] = (
    _flipped, _cut, _ended, _scrap, _scrap, _doubled, _spliced, _inserted, _number, _sprinkled, _word, _value, _value,
    _value, _scattered, _dropped, _swapped, _stretched,
)  # fmt: skip
