"""What a log collector puts around a line, and colour codes: taken off, and the way back to the raw line's bytes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

COLOUR = re.compile(rb"\x1b\[[0-9;:]{0,32}[A-Za-z]")
# `prefill-0  │ …` (pdctl), `pdctl-prefill-1  | …` (docker compose)
_NAMED = re.compile(rb"[A-Za-z0-9][A-Za-z0-9_.-]{0,127} {0,64}(?:\xe2\x94\x82|\|) ")
# `[pod/prefill-0/engine] …` (kubectl logs --prefix)
_POD = re.compile(rb"\[pod/[a-z0-9.-]{1,253}/[a-z0-9.-]{1,63}\] ")
_LAYERS = 4  # a stamp inside a name inside a stamp: more than this no collector writes


class Peeled(NamedTuple):
    """outer: the collector's own stamp. dropped: bytes taken off in front, without colour; -1: unpacked from JSON."""

    line: bytes
    outer: re.Match[bytes] | None
    dropped: int


def peel(line: bytes, stamps: Sequence[re.Pattern[bytes]]) -> Peeled:
    """The line inside, without colour. stamps: what a collector may write in front, the last one found is its own."""
    if b"\x1b" in line:
        line = COLOUR.sub(b"", line)
    outer: re.Match[bytes] | None = None
    dropped = 0
    for _ in range(_LAYERS):
        if line[:1] == b"{":
            inner = _unpack(line)
            if inner is None:
                break
            line, dropped = COLOUR.sub(b"", inner) if b"\x1b" in inner else inner, -1
            continue
        found = _NAMED.match(line) or _POD.match(line)
        if found is None:
            found = next((match for match in (stamp.match(line) for stamp in stamps) if match), None)
            if found is None:
                break
            outer = found
        line = line[found.end() :]
        dropped = dropped if dropped < 0 else dropped + found.end()
    return Peeled(line, outer, dropped)


def origin(raw: bytes, at: int) -> int:
    """Where byte `at` of a line without colour stands in `raw`, behind the codes that stand right before it."""
    if b"\x1b" not in raw:
        return at
    plain = end = 0
    for code in COLOUR.finditer(raw):
        if plain + code.start() - end > at:
            break
        plain, end = plain + code.start() - end, code.end()
    return end + at - plain


def _unpack(line: bytes) -> bytes | None:
    """The line inside docker's json-file record, or a tracing JSON record in the plain layout; None: neither."""
    if not line.startswith((b'{"log":', b'{"timestamp":')):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if isinstance(record.get("log"), str):
        return _docker(record)
    return _tracing(record)


def _docker(record: dict[str, object]) -> bytes:
    when = record.get("time")
    stamp = f"{when} " if isinstance(when, str) and "T" in when else ""
    return (stamp + str(record["log"]).rstrip("\r\n")).encode("utf-8", "replace")


# Keys of a tracing record that are no fields of its event.
_FRAME = frozenset(
    {"timestamp", "level", "message", "fields", "target", "filename", "line_number", "span", "spans", "threadName"}
)


def _tracing(record: dict[str, object]) -> bytes | None:
    """smg's `--log-json` record (event fields beside or under "fields") as tracing-subscriber's plain line."""
    fields = record.get("fields")
    if not isinstance(fields, dict):
        fields = {key: value for key, value in record.items() if key == "message" or key not in _FRAME}
    if not isinstance(fields.get("message"), str):
        return None
    head = f"{record['timestamp']} {record.get('level', 'INFO')!s:>5} "
    span = record.get("span")
    if isinstance(span, dict):
        named = " ".join(f"{key}={_value(value)}" for key, value in span.items() if key != "name")
        head += f"{span.get('name') or 'span'}{{{named}}}: "
    rest = "".join(f" {key}={_value(value)}" for key, value in fields.items() if key != "message")
    text = f"{head}{record.get('target') or 'smg'}: {fields['message']}{rest}"
    return text.replace("\n", " ").encode("utf-8", "replace")


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f'"{text}"' if " " in text else text
