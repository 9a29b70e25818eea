"""Logs of several processes as collectors merge them into one stream."""

from __future__ import annotations

import datetime as dt
import gzip
import heapq
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

STAMP = re.compile(rb"(20\d\d-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")


class Line(NamedTuple):
    """stamp: of the line, or of the one above it. number: in its own file."""

    stamp: str
    source: str
    number: int
    text: str


def read(paths: Sequence[str]) -> dict[str, list[str]]:
    """Lines by the name of the log; bytes that are no UTF-8 are replaced, as JSON collectors do."""
    found = {}
    for path in map(Path, paths):
        data = path.read_bytes()
        data = gzip.decompress(data) if path.name.endswith(".gz") else data
        name = path.name.removesuffix(".gz").removesuffix(".log")
        found[name] = data.decode("utf-8", "replace").removesuffix("\n").split("\n")
    return found


def stamped(name: str, lines: Sequence[str]) -> Iterator[Line]:
    """A line without a time has that of the line above it; those above the first that has one, that one's."""
    found = [STAMP.search(text.encode(), 0, 60) for text in lines]
    times = [f"{one[1].decode()}T{one[2].decode()}" if one is not None else "" for one in found]
    last = next(filter(None, times), "2026-11-21T00:00:00")
    for number, (text, time) in enumerate(zip(lines, times, strict=True), 1):
        last = max(last, time)
        yield Line(last, name, number, text)


def interleaved(logs: Mapping[str, Sequence[str]]) -> list[Line]:
    """As a collector sees them: by time, each process's own lines in their order."""
    return list(heapq.merge(*(list(stamped(*each)) for each in logs.items()), key=lambda line: line.stamp))


def kubectl(logs: Mapping[str, Sequence[str]]) -> str:
    return "".join(f"[pod/{line.source}/engine] {line.text}\n" for line in interleaved(logs))


def stern(logs: Mapping[str, Sequence[str]]) -> str:
    return "".join(f"{line.source} engine {line.text}\n" for line in interleaved(logs))


def tagged(logs: Mapping[str, Sequence[str]]) -> str:
    """`sed s/^/NAME /`, one file behind the other."""
    return "".join(f"{name} {line}\n" for name, lines in logs.items() for line in lines)


def pdsh(logs: Mapping[str, Sequence[str]]) -> str:
    return "".join(f"{line.source}: {line.text}\n" for line in interleaved(logs))


def compose(logs: Mapping[str, Sequence[str]]) -> str:
    width = max(map(len, logs))
    return "".join(f"{line.source:{width}}  | {line.text}\n" for line in interleaved(logs))


def coloured(logs: Mapping[str, Sequence[str]]) -> str:
    return "".join(f"\x1b[36m{line.source}  | \x1b[0m{line.text}\n" for line in interleaved(logs))


def journal(logs: Mapping[str, Sequence[str]]) -> str:
    return _journal(logs, lambda name: name)


def journal_of_pythons(logs: Mapping[str, Sequence[str]]) -> str:
    """Every unit starts python3: only the process tells them apart."""
    return _journal(logs, lambda name: "python3")


def _journal(logs: Mapping[str, Sequence[str]], called: Callable[[str], str]) -> str:
    pids = {name: 4000 + 17 * at for at, name in enumerate(logs)}
    out = []
    for line in interleaved(logs):
        when = dt.datetime.fromisoformat(line.stamp)
        out.append(f"{when:%b %d %H:%M:%S} node1 {called(line.source)}[{pids[line.source]}]: {line.text}\n")
    return "".join(out)


def journal_of_children(logs: Mapping[str, Sequence[str]], called: Callable[[str], str]) -> str:
    """Each engine is two processes: its server, and a scheduler that writes every line that names a batch or a room."""
    pids = {name: 4000 + 17 * at for at, name in enumerate(logs)}
    out = []
    for line in interleaved(logs):
        when = dt.datetime.fromisoformat(line.stamp)
        named = " batch" in line.text or "room=" in line.text
        child = named and "router" not in line.source and "server_args" not in line.text
        pid = pids[line.source] + child
        out.append(f"{when:%b %d %H:%M:%S} node1 {called(line.source)}[{pid}]: {line.text}\n")
    return "".join(out)


def journal_json(logs: Mapping[str, Sequence[str]]) -> str:
    out = []
    for line in interleaved(logs):
        when = dt.datetime.fromisoformat(line.stamp).replace(tzinfo=dt.timezone.utc)
        record = {
            "_SYSTEMD_UNIT": f"{line.source}.service", "_PID": "4711", "_HOSTNAME": "node1", "MESSAGE": line.text,
            "__REALTIME_TIMESTAMP": str(int(when.timestamp()) * 1_000_000),
        }  # fmt: skip
        out.append(json.dumps(record) + "\n")
    return "".join(out)


def loki(logs: Mapping[str, Sequence[str]]) -> str:
    """`logcli query -o jsonl`: the newest line first."""
    records = [
        {"labels": {"container": "engine", "pod": line.source}, "line": line.text, "timestamp": f"{line.stamp}Z"}
        for line in interleaved(logs)
    ]
    return "".join(json.dumps(record) + "\n" for record in reversed(records))


def logcli(logs: Mapping[str, Sequence[str]]) -> str:
    out = [f'{line.stamp}Z {{container="engine", pod="{line.source}"}} {line.text}\n' for line in interleaved(logs)]
    return "".join(out)


def fluent_bit(logs: Mapping[str, Sequence[str]]) -> str:
    out = []
    for line in interleaved(logs):
        pod = {"pod_name": line.source, "container_name": "engine", "namespace_name": "serving"}
        out.append(json.dumps({"log": line.text + "\n", "time": f"{line.stamp}Z", "kubernetes": pod}) + "\n")
    return "".join(out)


def cat(logs: Mapping[str, Sequence[str]]) -> str:
    return "".join(f"{text}\n" for lines in logs.values() for text in lines)


def cat_docker(logs: Mapping[str, Sequence[str]]) -> str:
    """`cat /var/lib/docker/containers/*/*-json.log`: no record names its container."""
    out = []
    for name, lines in logs.items():
        out += [
            json.dumps({"log": line.text + "\n", "stream": "stderr", "time": f"{line.stamp}.000000000Z"}) + "\n"
            for line in stamped(name, lines)
        ]
    return "".join(out)


def nameless(logs: Mapping[str, Sequence[str]]) -> str:
    """`docker compose logs --no-log-prefix`, `journalctl -o cat`: by time, and nothing says whose."""
    return "".join(f"{line.text}\n" for line in interleaved(logs))


NAMED: tuple[Callable[[Mapping[str, Sequence[str]]], str], ...] = (
    kubectl, stern, tagged, pdsh, compose, coloured, journal, journal_of_pythons, journal_json, loki, logcli,
    fluent_bit,
)  # fmt: skip
PASTED = (cat, cat_docker)
