"""What precedes a log line's message: the collector's prefix, the time, the ranks, the level, the request.

Knows the layouts of sglang 0.5.3 to 0.5.23, uvicorn inside them, tracing-subscriber (sglang-router, smg, also with
--log-json), NIXL and glog (mooncake); and around all these, what a collector prepends: pdctl's own `name │ `, docker
compose, `kubectl logs --prefix`, CRI, RFC 3339 timestamps, syslog, docker's json-file. Collectors' prefixes and colour
codes are removed.
Pure: independent of the reader's clock and time zone. The work is at most linear in the line's length.
"""

from __future__ import annotations

import re
from functools import lru_cache

from pdctl.quick_definitions import NamedTuple, compile_late

COLOUR = compile_late(rb"\x1b\[[0-9;:]{0,32}[A-Za-z]")
# `prefill-0  │ …` (pdctl), `pdctl-prefill-1  | …` (docker compose)
_NAMED = compile_late(rb"[A-Za-z0-9][A-Za-z0-9_.-]{0,127} {0,64}(?:\xe2\x94\x82|\|) ")
# `[pod/prefill-0/engine] …` (kubectl logs --prefix)
_NAME_BYTES = 256  # that hold the longest of them
_POD = compile_late(rb"\[pod/[a-z0-9.-]{1,253}/[a-z0-9.-]{1,63}\] ")
_LAYERS = 4  # such as a timestamp inside a name inside a timestamp; no collector writes more


def peel(line: bytes) -> tuple[bytes, re.Match[bytes] | None]:
    """The inner line without colour, and the collector's timestamp: the last one that stands before it."""
    if b"\x1b" in line:
        line = COLOUR.sub(b"", line)
    outer: re.Match[bytes] | None = None
    for _ in range(_LAYERS):
        if line[:1] == b"{":
            inner = _unpack(line)
            if inner is None:
                break
            line = COLOUR.sub(b"", inner) if b"\x1b" in inner else inner
            continue
        found = _name_before(line)
        if found is None:
            found = _stamp_before(line)
            if found is None:
                break
            outer = found
        line = line[found.end() :]
    return line, outer


def _name_before(line: bytes) -> re.Match[bytes] | None:
    # A look at a few bytes first, as in the other functions: most logs need none of these patterns.
    if line.startswith(b"[pod/"):
        return _POD.match(line)
    head = line[:_NAME_BYTES]
    return _NAMED.match(line) if b"| " in head or b"\xe2\x94\x82 " in head else None


def _stamp_before(line: bytes) -> re.Match[bytes] | None:
    if line[10:11] == b"T":
        return RFC3339.match(line)
    return SYSLOG.match(line) if line[:3] in _MONTHS else None


def _library_layout(line: bytes) -> re.Match[bytes] | None:
    """The layout of a line of NIXL or glog."""
    if line[:1] in (b"I", b"W", b"E", b"F"):
        return GLOG.match(line)
    return NIXL.match(line) if b" NIXL " in line[:40] else None  # bytes: a date, a time in nanoseconds


def _unpack(line: bytes) -> bytes | None:
    """The line inside docker's json-file record, or a tracing JSON record in the plain layout; None if neither."""
    if not line.startswith((b'{"log":', b'{"timestamp":')):
        return None
    import json  # late, as below: most logs have none

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


# Keys of a tracing record that are not fields of its event.
_FRAME = frozenset(
    {"timestamp", "level", "message", "fields", "target", "filename", "line_number", "span", "spans", "threadName"}
)


def _tracing(record: dict[str, object]) -> bytes | None:
    """smg's `--log-json` record (event fields at top level or under "fields") as tracing-subscriber's plain line."""
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
    import json

    text = value if isinstance(value, str) else json.dumps(value)
    return f'"{text}"' if " " in text else text


class Stamp(NamedTuple):
    """The time as written. A year of 0, or also month and day of 0: the layout leaves them out.

    zone: seconds east of UTC, None if not written (then it is the writer's local time). resolution_s: the step of the
    timestamp; the line was written in [stamp, stamp + resolution_s).
    """

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    micro: int
    zone: int | None
    resolution_s: float


class Prefix(NamedTuple):
    """`ranks`: "DP0 TP1", "" if none. `level`: a value of row.Level, "" if not written (SGLang writes none).

    request: the request id in a tracing span. message: the text without colour codes, as rows' patterns read it.
    span: `key=value …` of the tracing span, as written.
    """

    stamp: Stamp | None
    ranks: str
    level: str
    request: str
    message: str
    span: str = ""


# A stray group of digits of another width is not a timestamp: the width and range of every number are checked here.
_DATE = rb"(?P<y>\d{4})-(?P<mo>0[1-9]|1[0-2])-(?P<d>0[1-9]|[12]\d|3[01])"
_CLOCK = rb"(?P<h>[01]\d|2[0-3]):(?P<mi>[0-5]\d):(?P<s>[0-5]\d|60)(?:[.,](?P<f>\d{1,9}))?"
_ZONE = rb"(?P<z>Z|[+-]\d\d:?\d\d)?"
_RANKS = rb"(?P<ranks>(?: (?:DP|PP|TP|EP|ATTN_CP|MOE_DP)\d{1,6})*)"

SGLANG = re.compile(rb"\[(?:" + _DATE + rb" )?" + _CLOCK + _RANKS + rb"\] ?")
TRACING = re.compile(_DATE + rb"[T ]" + _CLOCK + _ZONE + rb" {1,2}(?P<level>TRACE|DEBUG|INFO|WARN|ERROR) ")
NIXL = compile_late(_DATE + rb" " + _CLOCK + rb" NIXL (?P<level>[A-Z]{4,8}) +(?:\S{1,120}:\d{1,6} )?")
GLOG = compile_late(
    rb"(?P<level>[IWEF])(?P<y>\d{4})?(?P<mo>0[1-9]|1[0-2])(?P<d>0[1-9]|[12]\d|3[01]) " + _CLOCK
    + rb" +\d{1,10} [^\s:\]]{1,200}:\d{1,6}\] "
)  # fmt: skip
# Not a collector's if a level and a target follow: then it is tracing's own.
RFC3339 = compile_late(
    _DATE + rb"T" + _CLOCK + rb"(?P<z>Z|[+-]\d\d:?\d\d) (?! ?(?:TRACE|DEBUG|INFO|WARN|ERROR) [a-z])"
    rb"(?:std(?:out|err) [FP] )?"
)
SYSLOG = compile_late(
    rb"(?P<mon>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) (?P<d>[ 0-3]\d) " + _CLOCK
    + rb" \S{1,253} [^\s:\[]{1,128}(?:\[\d{1,10}\])?: "
)  # fmt: skip

# uvicorn's `INFO:     `, and the level at the start of a message of sglang 0.5.8 (warnings) and pdctl's router.
_LEVEL_WORD = compile_late(
    rb"(?:(?P<uvicorn>DEBUG|INFO|WARNING|ERROR|CRITICAL): +"
    rb"|(?P<plain>WARNING|ERROR|CRITICAL)(?: \w{1,64}\.py:\d{1,6}:)? )"
)
# `http_request{method=POST … request_id="gnt-…"}: smg::request: …/middleware.rs:310: `
_SPANS = compile_late(rb"(?:[a-z_]{1,64}\{(?P<span>[^{}]{0,4096})\}:)+ ")
_TARGET = compile_late(rb"[a-z_][a-z0-9_]{0,63}(?:::[a-z0-9_]{1,64}){0,16}: (?:[^\s:]{1,255}\.rs:\d{1,6}: )?")
# A field follows a space: one in a client's own query (`uri=/?request_id=…`) does not count.
_REQUEST = compile_late(rb'(?<!\S)request_id="?([!-~]{1,128}?)"?(?: |$)')
_LEVELS = {
    b"TRACE": "debug", b"DEBUG": "debug", b"INFO": "info", b"WARN": "warning", b"WARNING": "warning",
    b"ERROR": "error", b"CRITICAL": "critical", b"I": "info", b"W": "warning", b"E": "error", b"F": "critical",
}  # fmt: skip
_MONTHS = {name: at for at, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}


class LineParts(NamedTuple):
    """The positions of a line's parts: what a search for the message needs, before anything is decoded."""

    line: bytes  # without collector, colour and line end
    at: int  # the message's first byte in `line`
    layout: re.Match[bytes] | None
    outer: re.Match[bytes] | None
    level: bytes
    span: bytes


def split(raw: bytes) -> Prefix:
    """The parts of any line; one of no known layout is all message."""
    return spell(cut(raw))


def cut(raw: bytes) -> LineParts:
    """The cheap half of `split`. Small logs are read several times, for several reasons, so lines are remembered."""
    return _remembered(raw) if len(raw) <= _SHORT else cut_once(raw)


def cut_once(raw: bytes) -> LineParts:
    """As `cut`, for a line that is not read again: remembering it costs as much as cutting it."""
    line = raw.rstrip(b"\r\n")
    if b"\x1b" in line:
        line = COLOUR.sub(b"", line)
    if line[:1] == b"[":  # by far the most common: SGLang's own, without a collector's prefix
        layout = SGLANG.match(line)
        if layout is not None:
            return _behind(line, layout, None)
    elif line[:2] == b"20":
        # A level and a target after the time mean that it is tracing's own and not a collector's.
        layout = TRACING.match(line)
        if layout is not None and line[layout.end() : layout.end() + 1].islower():
            return _behind_target(line, layout, None)
    line, outer = peel(line)
    layout = SGLANG.match(line)
    if layout is not None:
        return _behind(line, layout, outer)
    layout = TRACING.match(line)
    if layout is not None:
        return _behind_target(line, layout, outer)
    layout = _library_layout(line)
    if layout is not None:
        return LineParts(line, layout.end(), layout, outer, layout["level"], b"")
    return _behind(line, None, outer)


_SHORT = 1024  # bytes of a line that is remembered
_remembered = lru_cache(maxsize=4096)(cut_once)


def _behind(line: bytes, layout: re.Match[bytes] | None, outer: re.Match[bytes] | None) -> LineParts:
    at = layout.end() if layout is not None else 0
    word = _LEVEL_WORD.match(line, at)
    if word is None:
        return LineParts(line, at, layout, outer, b"", b"")
    return LineParts(line, word.end(), layout, outer, word["uvicorn"] or word["plain"], b"")


def _behind_target(line: bytes, layout: re.Match[bytes], outer: re.Match[bytes] | None) -> LineParts:
    at, span = layout.end(), b""
    spans = _SPANS.match(line, at)
    if spans is not None:
        at, span = spans.end(), spans["span"]
    target = _TARGET.match(line, at)
    if target is not None:
        at = target.end()
    return LineParts(line, at, layout, outer, layout["level"], span)


def spell(parts: LineParts) -> Prefix:
    """The expensive half of `split`: numbers and text."""
    layout, span = parts.layout, parts.span
    ranks = layout["ranks"].strip().decode("ascii") if layout is not None and layout.re is SGLANG else ""
    request = _REQUEST.search(span) if span else None
    return Prefix(
        stamp_of(parts), ranks, _LEVELS.get(parts.level, ""), request[1].decode("ascii") if request else "",
        parts.line[parts.at :].decode("utf-8", "replace"), span.decode("utf-8", "replace"),
    )  # fmt: skip


def stamp_of(parts: LineParts) -> Stamp | None:
    """The line's timestamp, without the rest of `spell`."""
    layout, outer = parts.layout, parts.outer
    # The collector's timestamp has a zone and a finer resolution, and was written as the line arrived.
    if outer is not None and (outer.re.pattern == RFC3339.pattern or layout is None):
        return _stamp(outer)
    return _stamp(layout) if layout is not None else None


def _stamp(match: re.Match[bytes]) -> Stamp:
    if match.re is not SGLANG:
        return _stamp_of(match)
    text = match[0]  # includes the ranks: a few processes write many lines per second
    stamp = _STAMPS.get(text)
    if stamp is None:
        if len(_STAMPS) >= _MOST_STAMPS:
            _STAMPS.clear()
        stamp = _STAMPS[text] = _stamp_of(match)
    return stamp


_STAMPS: dict[bytes, Stamp] = {}
_MOST_STAMPS = 4096


def _stamp_of(match: re.Match[bytes]) -> Stamp:
    found = match.groupdict()
    fraction = found["f"] or b""
    month = _MONTHS[found["mon"]] if found.get("mon") else int(found.get("mo") or 0)
    return Stamp(
        int(found.get("y") or 0), month, int(found.get("d") or 0), int(found["h"]), int(found["mi"]), int(found["s"]),
        int(fraction[:6].ljust(6, b"0")) if fraction else 0, _zone(found.get("z")),
        max(10.0 ** -len(fraction), 1e-6) if fraction else 1.0,
    )  # fmt: skip


def _zone(text: bytes | None) -> int | None:
    if text is None:
        return None
    if text == b"Z":
        return 0
    seconds = int(text[1:3]) * 3600 + int(text[-2:]) * 60
    return -seconds if text[:1] == b"-" else seconds
