"""Logs of several processes in one file without names on the lines: `cat *.log`, `kubectl logs -l …` without --prefix.

Logs one after the other can be separated: where the next one begins, time jumps back or a start line names another
role or port. Interleaved lines cannot; such a file stays one log, and its reader says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.prefix import COLOUR
from pdctl.logs.blocks import LineNumbers
from pdctl.logs.merged_stream import LIMIT, SourceLines, StreamSource, lines_of
from pdctl.logs.part import open_part
from pdctl.quick_definitions import NamedTuple, compile_late

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator, Sequence

    from pdctl.engines.identify import Identity
    from pdctl.logs.part import LogPart

WHOLE = 1 << 23  # bytes of a file up to which all of it is searched for roles; a longer one is sampled in WINDOWS
WINDOWS, WINDOW = 16, 1 << 16
SEGMENTS = 128  # more jumps than concatenated logs have: the lines are interleaved
BACK = 2.0  # seconds by which one process's lines may be out of order
HEAD = 400  # lines at a segment's beginning used to identify it
TAIL = 100
# Words that only one role writes: enough to suspect several, never to decide.
_WORDS = (
    (b"disaggregation_mode='prefill'", b"'disaggregation_mode': 'prefill'", b"Prefill batch"),
    (b"disaggregation_mode='decode'", b"'disaggregation_mode': 'decode'", b"Decode batch"),
    (b"Starting router on ", b"smg::", b"pdctl.router "),
)
_STARTS = (b"server_args=", b"Starting router on ", b" generation ")
_MOST = 1000  # start lines examined at most
_STAMP = compile_late(rb"(20\d\d)-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_BANNER = compile_late(rb"server_args=|Starting router on | generation \d+: ")
# Each begins with letters, for which the library searches quickly: a choice of them takes a hundred times as long, and
# a start line has many kilobytes.
_PORTS = (
    compile_late(rb"port(?<!\wport)(?:=|': |(?<=--port) )(\d{1,5})"),
    compile_late(rb"router on [^\s|]*?:(\d{1,5})"),
)
_MODES = (
    compile_late(rb"disaggregation_mode(?:=|': )'(\w+)'"),
    compile_late(rb"--disaggregation-mode[ =](\w+)"),
    compile_late(rb"Starting (router)"),
    compile_late(rb"pdctl\.(router)"),
)
_NEAR = 96  # bytes of a line that contain its stamp


class _Segment(NamedTuple):
    """Lines [first, last] of a file, and who wrote them."""

    first: int
    last: int
    identity: Identity


def may_hold_several(part: LogPart) -> bool:
    """Whether it contains words of two roles, or start lines of two processes: a cheap test, not a proof."""
    roles: set[int] = set()
    owners: set[bytes] = set()
    for data in _windows(part):
        roles.update(at for at, words in enumerate(_WORDS) if at not in roles and any(word in data for word in words))
        if len(roles) > 1:
            return True
        owners.update(_owner(line) for line in _starts(data))
    return len(owners - {b""}) > 1


def _starts(data: bytes) -> Iterator[bytes]:
    for word in _STARTS:
        at = data.find(word)
        for _ in range(_MOST):
            if at < 0:
                break
            begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            line = data[begin : end if end >= 0 else len(data)]
            if _BANNER.search(line):
                yield line
            at = data.find(word, begin + len(line))


def _windows(part: LogPart) -> list[bytes]:
    if not part.plain:
        return [_read(part, 0, WHOLE // 4)]  # reading the rest would mean decompressing it
    if part.size <= WHOLE:
        return [_read(part, 0, part.size)]
    step = (part.size - WINDOW) // (WINDOWS - 1)
    return [_read(part, step * at, WINDOW) for at in range(WINDOWS)]


def _read(part: LogPart, start: int, size: int) -> bytes:
    stream = open_part(part, start)
    data = bytearray(size)
    view, got = memoryview(data), 0
    try:
        while got < size and (more := stream.readinto(view[got:])):
            got += more
    finally:
        stream.close()
    return bytes(data[:got])


def split_by_speaker(part: LogPart, note: Callable[[str], None]) -> tuple[StreamSource, ...]:
    """The logs that a file is a concatenation of; () if it is one log, or if they cannot be separated."""
    segments = _joined(_segments(part))
    owners = {_key(segment.identity) for segment in segments}
    if len(segments) < 2 or len(owners) < 2 or any(_mixed(segment.identity) for segment in segments):
        return ()
    names = _names([segment.identity for segment in segments])
    sinks = {name: SourceLines() for name in names}
    numbers = LineNumbers(part)
    at = 0
    for number, line in lines_of(part, LIMIT, note):
        while at + 1 < len(segments) and number >= segments[at + 1].first:
            at += 1
        sinks[names[at]].add(numbers.told(number), line)
    said = ", ".join(f"lines {one.first}-{one.last} {name}" for one, name in zip(segments, names, strict=True))
    note(f"{part.path}: several logs one behind the other, without names: {said}")
    return tuple(StreamSource(name, sink.part(name, part)) for name, sink in sinks.items())


def _segments(part: LogPart) -> list[_Segment]:
    """Cut where time jumps back and at another process's start line; [] if there are too many segments."""
    from pdctl.engines.identify import identify  # late: a file with one log needs no dialect yet
    from pdctl.engines.row_matching import speech

    speaker = speech()
    found: list[_Segment] = []
    first, number = 1, 0
    head: list[bytes] = []
    tail: list[bytes] = []
    last, owner = 0.0, b""

    def close(end: int) -> None:
        if end >= first:
            found.append(_Segment(first, end, identify((*head, *tail), speaker)))

    for number, line in lines_of(part):
        stamp = _seconds(line)
        banner = _owner(line) if _BANNER.search(line, 0, 4096) else b""
        jumped = stamp is not None and last and stamp < last - BACK
        if jumped or (banner and owner and banner != owner):
            if len(found) >= SEGMENTS:
                return []
            close(number - 1)
            first, head, tail, last, owner = number, [], [], 0.0, b""
        owner = banner or owner
        last = stamp if stamp is not None else last
        if len(head) < HEAD:
            head.append(line[: 1 << 15])
        else:
            tail.append(line[: 1 << 15])
            del tail[:-TAIL]
    close(number)
    return found


def _seconds(line: bytes) -> float | None:
    """Seconds in a simplified calendar: only differences count, and only their sign if they exceed a day."""
    found = _STAMP.search(line, 0, _NEAR)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups())
    return ((year * 372.0 + month * 31 + day) * 86400) + hour * 3600 + minute * 60 + second


def _owner(line: bytes) -> bytes:
    """Role and port of a start line, b"" if it names no role."""
    line = COLOUR.sub(b"", line)
    role, port = _first(_MODES, line), _first(_PORTS, line)
    return role + b":" + port if role and port else role


def _first(patterns: Sequence[re.Pattern[bytes]], line: bytes) -> bytes:
    """The group of the match that begins first, b"" without one."""
    found = [match for match in (pattern.search(line) for pattern in patterns) if match is not None]
    return min(found, key=lambda match: match.start())[1] if found else b""


def _joined(segments: Sequence[_Segment]) -> list[_Segment]:
    """Join unidentified segments to the one before them, which a clock set back or a late line caused."""
    found: list[_Segment] = []
    for each in segments:
        before = found[-1] if found else None
        same = before is not None and _key(before.identity) == _key(each.identity)
        if before is not None and (same or each.identity.speaker is None or not each.identity.role):
            found[-1] = before._replace(last=each.last)
        else:
            found.append(each)
    return found


def _key(identity: Identity) -> tuple[str, int | None]:
    return identity.role, identity.port


def _mixed(identity: Identity) -> bool:
    return not identity.role and any(reason.startswith("several roles") for reason in identity.reasons)


def _names(identities: Sequence[Identity]) -> list[str]:
    """`decode`, or `prefill:30000` if several logs have the role. The same role and port is the same instance."""
    roles: dict[str, set[int | None]] = {}
    for each in identities:
        roles.setdefault(each.role, set()).add(each.port)
    seen: dict[str, int] = {}
    names = []
    for each in identities:
        name = each.role or "unnamed"
        if len(roles[each.role]) > 1 and each.port is not None:
            name = f"{name}:{each.port}"
        elif each.port is None:  # two such logs may belong to two instances
            seen[name] = seen.get(name, 0) + 1
            name = f"{name}#{seen[name]}" if seen[name] > 1 or len(roles[each.role]) > 1 else name
        names.append(name)
    return names
