"""Streams in which a collector merged several sources: what it writes around each line, and which source that names.

`kubectl logs --prefix`, stern, pdsh, `srun --label`, `sed s/^/NAME /`, `docker compose logs` (swarm and pdctl's own
`logs` too), journalctl, Loki (`logcli`, its JSON lines) and JSON lines of collectors such as Fluent Bit, Vector,
Filebeat, and of cloud consoles. The formats are the tools' documented defaults of 2025 and 2026; docker's own
json-file contains no name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines import prefix
from pdctl.engines.prefix import COLOUR
from pdctl.quick_definitions import NamedTuple, compile_late

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SAMPLE = 1 << 16  # bytes of a file from which its format is detected
LINES = 200  # lines of them to examine
FEW = 8  # lines that suffice to rule most formats out
SHARE = 2  # at least one in this many lines must have the format; the others may be the tool's own messages
_POD = compile_late(rb"\[pod/(?P<group>[a-z0-9.-]{1,253})/(?P<part>[a-z0-9.-]{1,63})\] ")
_NAMED = compile_late(rb"(?P<group>[A-Za-z0-9][A-Za-z0-9_.@-]{0,160}) {0,64}(?:\xe2\x94\x82|\|) ?")
_SYSLOG = compile_late(
    rb"(?P<stamp>(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ 0-3]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) "
    rb"(?P<host>\S{1,253}) (?P<group>[^\s:\[]{1,128})(?:\[(?P<pid>\d{1,10})\])?: "
)
# short-iso, short-iso-precise; short-full and with-unit have the day of the week and a zone by name.
_JOURNAL = compile_late(
    rb"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(?P<stamp>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?)"
    rb"(?P<zone>[+-]\d\d:?\d\d| UTC| [A-Z]{2,5})? (?P<host>\S{1,253}) (?P<group>[^\s:\[]{1,128})"
    rb"(?:\[(?P<pid>\d{1,10})\])?: "
)
_LABELS = compile_late(rb"(?P<stamp>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,16}) (?P<labels>\{[^{}\n]{2,2048}\}) +")
_LABEL = compile_late(rb'([A-Za-z_]\w{0,63})="((?:[^"\\]|\\.){0,512})"')
_STERN = compile_late(rb"(?P<group>[a-z0-9][a-z0-9.-]{0,252}) (?P<part>[a-z0-9][a-z0-9-]{0,62}) ")
# One name in front, as pdsh (`host: `), `srun --label` (` 3: `) and sed write it; a level or a stamp is not a name.
_TAGGED = compile_late(
    rb" {0,8}(?!(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b|\d{4}-\d\d-\d\d)"
    rb"(?P<group>[A-Za-z0-9][A-Za-z0-9_.@/-]{0,252})(?P<part>):? "
)
_ISO = compile_late(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?")
# Where collectors put the line and the names of its source; dots lead into objects. The first one present counts.
TEXT = ("log", "message", "MESSAGE", "line", "msg", "textPayload", "body")
POD = (
    "kubernetes.pod_name", "kubernetes.pod.name", "pod", "pod_name", "podName", "k8s_pod_name", "k8s.pod.name",
    "labels.pod", "labels.pod_name", "labels.k8s_pod_name", "stream.pod", "resource.labels.pod_name",
    "attributes.k8s.pod.name", "resources.k8s.pod.name",
)  # fmt: skip
CONTAINER = (
    "kubernetes.container_name", "kubernetes.container.name", "container", "container_name", "containerName",
    "k8s_container_name", "labels.container", "labels.container_name", "stream.container",
    "resource.labels.container_name", "CONTAINER_NAME", "container.name", "attrs.name",
)  # fmt: skip
UNIT = (
    "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER", "labels.unit", "unit", "labels.instance", "labels.service_name", "instance",
    "service", "service_name", "labels.job", "job", "app", "labels.filename", "filename", "log.file.path", "file",
    "source",
)  # fmt: skip
HOST = ("_HOSTNAME", "labels.host", "host", "hostname", "node")
PID = ("_PID",)
STAMP = ("time", "timestamp", "@timestamp", "ts", "receiveTimestamp")
MICROSECONDS = ("__REALTIME_TIMESTAMP",)
_PLAIN = "-"  # marks JSON lines of one unnamed source, which the dialect does not unpack itself


class CollectorLine(NamedTuple):
    """A line as its process wrote it. group, part: its source, such as pod and container; pid: "" if none is given.

    text: preceded by the collector's stamp if there is one; may hold several lines. stamp: as the collector wrote it.
    """

    group: str
    part: str
    pid: str
    text: bytes
    stamp: str = ""


class CollectorFormat(NamedTuple):
    """read: returns None for a line not in this format. peeled: the dialect strips this format from a line itself."""

    name: str
    read: Callable[[bytes], CollectorLine | None]
    peeled: bool = False


def format_of(head: bytes) -> CollectorFormat | None:
    """The format of a file that begins with `head`; None for a plain log, or docker's nameless json-file."""
    lines = [line for line in head.split(b"\n") if line.strip()][: LINES + 1]
    if len(lines) > 1 and len(lines) <= LINES and not head.endswith(b"\n"):
        lines.pop()  # cut off in the middle
    if not lines or (_unframed(lines[0]) and _unframed(lines[-1])):  # by far the most common
        return None
    for form in (*FORMATS, _unmarked("stern", _STERN, lines), _unmarked("tagged", _TAGGED, lines)):
        if form is None or _share(form, lines[:FEW]) * SHARE < min(len(lines), FEW):
            continue
        found = [framed for line in lines if (framed := form.read(line)) is not None]
        if len(found) * SHARE >= len(lines) and _worth(form, found):
            return form
    return None


def _unframed(line: bytes) -> bool:
    """Whether a line begins as an engine's or a router's own, without anything of a collector."""
    if line[:3] == b"[20":
        return True
    found = prefix.TRACING.match(line) if line[:2] == b"20" else None
    return found is not None and line[found.end() : found.end() + 1].islower()


def _share(form: CollectorFormat, lines: list[bytes]) -> int:
    return sum(form.read(line) is not None for line in lines)


def _worth(form: CollectorFormat, found: list[CollectorLine]) -> bool:
    """Whether to use the format: JSON records that name no source are left alone if the dialect unpacks them itself."""
    return form.name != "json" or any(each.group for each in found) or any(each.pid == _PLAIN for each in found)


def without_colour(line: bytes) -> bytes:
    return COLOUR.sub(b"", line) if b"\x1b" in line else line


def _pod(line: bytes) -> CollectorLine | None:
    line = without_colour(line)
    found = _POD.match(line)
    return (
        None if found is None else CollectorLine(_text(found["group"]), _text(found["part"]), "", line[found.end() :])
    )


def _named(line: bytes) -> CollectorLine | None:
    line = without_colour(line)
    found = _NAMED.match(line)
    return None if found is None else CollectorLine(_text(found["group"]), "", "", line[found.end() :])


def _syslog(line: bytes) -> CollectorLine | None:
    """The line keeps syslog's stamp, because a line of a traceback has no other."""
    found = _SYSLOG.match(line)
    if found is None:
        return None
    group, host = _text(found["group"]), _text(found["host"])
    return CollectorLine(group, host, _text(found["pid"] or b""), line)


def _journal(line: bytes) -> CollectorLine | None:
    found = _JOURNAL.match(line)
    if found is None:
        return None
    stamp = found["stamp"].replace(b" ", b"T")
    zone = found["zone"] or b""
    zone = b"Z" if zone == b" UTC" else b"" if zone[:1] == b" " else zone
    text = line[found.end() :]
    text = stamp + zone + b" " + text if zone else text
    group, host = _text(found["group"]), _text(found["host"])
    return CollectorLine(group, host, _text(found["pid"] or b""), text, _text(stamp))


def _labels(line: bytes) -> CollectorLine | None:
    found = _LABELS.match(line)
    if found is None:
        return None
    labels = {_text(name): _text(value) for name, value in _LABEL.findall(found["labels"])}
    group, part, pid = _names(labels)
    if not group:
        return None
    stamp = _text(found["stamp"])
    return CollectorLine(group, part, pid, found["stamp"] + b" " + line[found.end() :], stamp)


def _record(line: bytes) -> CollectorLine | None:
    if line[:1] != b"{":
        line = line.strip(b"[], \t\r")  # an element of an array, as cloud consoles export
        if line[:1] != b"{":
            return None
    line = line.rstrip(b", \r")
    try:
        import json  # late: most logs have none

        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if {"timestamp", "level"} <= record.keys() and ("target" in record or "fields" in record):
        return CollectorLine(
            _at(record, POD), _at(record, CONTAINER), "", line
        )  # a router's own record, whatever tool passed it on
    text = next((record[key] for key in TEXT if isinstance(record.get(key), (str, list))), None)
    if isinstance(text, list):  # journald: bytes that are not UTF-8
        text = bytes(each for each in text if isinstance(each, int) and 0 <= each < 256).decode("utf-8", "replace")
    if not isinstance(text, str):
        return None
    group, part, pid = _names(record)
    if not group and "log" in record:
        return CollectorLine("", "", "", line)  # docker's
    stamp = _stamp(record)
    inner = text.rstrip("\r\n")
    data = (f"{stamp} {inner}" if stamp else inner).encode("utf-8", "replace")
    return CollectorLine(group, part, pid or ("" if group else _PLAIN), data, stamp)


def _names(record: Mapping[str, object]) -> tuple[str, str, str]:
    pod = _at(record, POD)
    if pod:
        return pod, _at(record, CONTAINER), ""
    container = _at(record, CONTAINER)
    if container:
        return container.lstrip("/"), "", ""
    unit = _at(record, UNIT).rsplit("/", 1)[-1]
    unit = unit.removesuffix(".service").removesuffix(".log")
    return unit, _at(record, HOST) if unit else "", _at(record, PID) if unit else ""


def _at(record: Mapping[str, object], paths: tuple[str, ...]) -> str:
    for path in paths:
        found = _walk(record, path)
        if isinstance(found, str) and found:
            return found[:253]
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
    return ""


def _walk(record: object, path: str) -> object:
    """The value at `a.b.c`, where each key may itself contain dots; None if absent."""
    if isinstance(record, dict):
        if path in record:
            return record[path]
        head, dot, rest = path.partition(".")
        if dot and head in record:
            return _walk(record[head], rest)
    return None


def _stamp(record: Mapping[str, object]) -> str:
    """The record's time in RFC 3339, as the dialect reads it in front of a line; "" if there is none."""
    for key in STAMP:
        found = record.get(key)
        if isinstance(found, str) and _ISO.fullmatch(found):
            text = found.replace(" ", "T")
            return text if text[-1] == "Z" or re.search(r"[+-]\d\d:?\d\d$", text) else text + "Z"
    for key in MICROSECONDS:
        found = record.get(key)
        if isinstance(found, str) and found.isdigit() and len(found) <= 17:
            return _rfc3339(int(found))
    return ""


def _rfc3339(microseconds: int) -> str:
    import datetime as dt  # late: only journalctl -o json needs it

    try:
        moment = dt.datetime.fromtimestamp(microseconds // 1_000_000, dt.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{microseconds % 1_000_000:06d}Z"


def _unmarked(name: str, layout: re.Pattern[bytes], lines: list[bytes]) -> CollectorFormat | None:
    """Detect `POD CONTAINER message` or `NAME message`, which have no marker, by a known layout after the names."""
    few = lines[:FEW]
    if sum(layout.match(without_colour(line)) is not None for line in few) * SHARE < len(few):
        return None
    pairs: set[bytes] = set()
    for line in map(without_colour, lines):
        found = layout.match(line)
        if found is not None and _laid_out(line[found.end() :]):
            pairs.add(found[0])
    if not pairs:
        return None

    def read(line: bytes) -> CollectorLine | None:
        line = without_colour(line)
        found = layout.match(line)
        if found is None:
            return None
        if found[0] not in pairs:
            if len(pairs) >= LINES or not _laid_out(line[found.end() :]):
                return None
            pairs.add(found[0])
        return CollectorLine(_text(found["group"]), _text(found["part"]), "", line[found.end() :])

    return CollectorFormat(name, read)


def _laid_out(text: bytes) -> bool:
    """Whether an engine's or a router's line begins like this."""
    if prefix.cut(text).layout is not None:
        return True
    return prefix.RFC3339.match(text) is not None or text.startswith((b"INFO:  ", b"WARNING:  ", b"ERROR:  "))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


FORMATS = (
    CollectorFormat("kubectl --prefix", _pod, peeled=True),
    CollectorFormat("json", _record),
    CollectorFormat("journalctl", _syslog, peeled=True),
    CollectorFormat("journalctl", _journal),
    CollectorFormat("logcli", _labels),
    CollectorFormat("compose", _named, peeled=True),
)
