"""Makes truth.json and neutral copies of a rehearsed incident's logs: derive_rehearsal.py LOGS TO INCIDENT [OLD=NEW …].

`killed-router` is no rehearsal: SIGKILL to the router of `pdctl launch topologies/2p1d.yaml --on-death stop`.

The truth comes from what the incident does (topologies/incidents/*.yaml) and from the router's own Dispatch and Finish
lines, read here by a few words of their own and not by the dialect.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

DISPATCH = re.compile(r"Dispatch room=(\d+) .*prefill=http://[^:]+:(\d+) ")
OK = re.compile(r"Finish room=(\d+) .*outcome=ok")
# cause, the prefill that got the page list (None: nobody; "other": the other one), phase reached; of the first bad
# room, and of those after it where they differ.
BAD: dict[str, list[tuple[str, str | None, str]]] = {
    "missing-bootstrap-port": [("PD201", "other", "handshake")],
    "swapped-bootstrap-ports": [("PD203", "other", "handshake")],
    "wrong-bootstrap-port": [("PD202", None, "prealloc")],
    "page-size-mismatch": [("PD302", None, "prealloc")],
    "killed-decode": [("PD704", "same", "transfer"), ("PD704", None, "bootstrap")],
    "killed-prefill": [("PD705", "same", "transfer"), ("PD705", None, "prealloc")],
    "slow-transfer": [],
    "killed-router": [("PD720", "same", "decode")],
}


def main(source: Path, target: Path, incident: str, pairs: list[str]) -> None:
    router = (source / "router.log").read_text()
    ports = sorted({port for _, port in DISPATCH.findall(router)}, key=int)
    names = {port: f"prefill-{at}" for at, port in enumerate(ports)}
    fine = set(OK.findall(router))
    rooms: dict[str, dict[str, object]] = {}
    seen = 0
    for room, port in DISPATCH.findall(router):
        asked = names[port]
        if room in fine:
            rooms[room] = _room(asked, asked, "decode-0", "ok", "finished", None)
            continue
        kinds = BAD[incident]
        cause, contacted, phase = kinds[min(seen, len(kinds) - 1)]
        seen += 1
        met = {"same": asked, "other": next((name for name in names.values() if name != asked), None)}
        gone = seen > 1 and contacted is None  # the dead one took nothing any more
        rooms[room] = _room(
            None if gone and incident == "killed-prefill" else asked, met.get(contacted or ""),
            None if gone and incident == "killed-decode" else "decode-0", "failed", phase, cause,
        )  # fmt: skip
    if incident == "slow-transfer":
        for room in _slow((source / "decode-0.log").read_text()):
            rooms[room]["cause"] = "PD412"
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.log")):
        text = path.read_text()
        for pair in pairs:
            old, _, new = pair.partition("=")
            text = text.replace(old, new)
        if text:
            (target / path.name).write_text(text)
    truth = {"level": "info", "versions": {"pdctl": "own engine and router"}, "rooms": rooms}
    (target / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def _room(
    requested: str | None, contacted: str | None, decode: str | None, outcome: str, phase: str, cause: str | None
) -> dict[str, object]:
    return {
        "prefill_requested": requested, "prefill_contacted": contacted, "decode": decode, "outcome": outcome,
        "phase_reached": phase, "cause": cause, "untold": [],
    }  # fmt: skip


def _slow(decode: str) -> list[str]:
    """Rooms whose KV cache took more than two seconds."""
    found = re.findall(r"room=(\d+) KV cache arrived .*seconds=([\d.]+)", decode)
    return [room for room, seconds in found if float(seconds) > 2.0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
