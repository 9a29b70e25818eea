"""Makes one scenario under tests/data/rooms out of a recording: `derive_truth.py RECORDING NAME [FROM=TO …]`.

A recording has the logs and what really happened: README.md and wire.jsonl (a passive capture of the loopback: which
HTTP request named which room, which rank port got a TransferInfo), or truth.txt (the same, summed up per room). What no
capture tells, the cause, stands in CAUSES. The logs are copied; every path that begins with FROM begins with TO there,
and large router logs are packed.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOMS = Path(__file__).parent.parent / "data" / "rooms"
PACKED = 40_000  # bytes; larger router logs are stored gzipped

# Scenario → (cause of a room whose request and page list went to different prefills, of any other that failed).
CAUSES = {
    "2p1d-missing-ports": ("PD201", "PD201"),
    "2p1d-swapped-ports": ("PD203", "PD203"),
    "1p1d-wrong-port": (None, "PD202"),
    "1p1d-decode-killed": (None, "PD704"),
    "2p1d-prefill-killed": (None, "PD705"),
    "1p1d-page-size": (None, "PD302"),
    "1p1d-tp2-tp1": (None, "PD305"),
    "1p1d-duplicate-room": (None, None),
}
# Rooms whose story the capture alone does not tell (README's words).
TOLD: dict[str, dict[str, dict[str, Any]]] = {
    "1p1d-healthy-debug-sgl058": {
        room: {
            "prefill_requested": "prefill0", "prefill_contacted": "prefill0", "decode": "decode0", "outcome": "ok",
            "phase_reached": "finished", "cause": None,
        }
        for room in (
            "2144653258749356528", "7628999673666339890", "8634463497043387472", "1545320514115149861",
            "1287521360280025823", "3664533967408567787", "5084255246788345164", "7739742425326132440",
            "6233755949299863991", "3593515503703829279",
        )
    },
    "1p1d-decode-killed-debug-sgl058": {
        "7179054193972827371": {"outcome": "failed", "cause": "PD704", "phase_reached": "decode"},
        "6100653398910201160": {"outcome": "hung", "cause": "PD704"},
        "6725837119734241726": {"outcome": "hung", "cause": "PD704"},
        "8633089731948350745": {"outcome": "hung", "cause": "PD704"},
    },
    # The decode was stopped when the request came: only its kernel took it.
    "1p1d-decode-killed-info-sgl0523": {"3392169506759347915": {"phase_reached": "bootstrap"}},
    "1p1d-duplicate-room-debug-sgl058": {
        "777001": {"outcome": "failed", "cause": "PD707", "phase_reached": "transfer"},
        "778001": {"outcome": "failed", "cause": "PD705"},
    },
    "1p0d-prefill-alone-debug-sgl058": {
        "11111111": {"outcome": "hung", "cause": "PD703"},
        "22222222": {"outcome": "hung", "cause": "PD703"},
    },
    "1p1d-page-size-debug-sgl0523": {"3896826970203387824": {"phase_reached": "bootstrap"}},
    "2p1d-healthy-info-log-requests-sgl0523": {
        # The client left after two seconds, in the middle of the answer.
        "1482288733883066936": {"outcome": "aborted", "cause": "PD706", "phase_reached": "decode"},
    },
    "2p1d-missing-ports-spawn-debug-sgl058": {
        "1986147538845602196": {
            "prefill_requested": "prefill0", "prefill_contacted": "prefill0", "decode": "decode0",
            "outcome": "ok", "phase_reached": "finished", "cause": None,
        },
        "5477357111555017937": {
            "prefill_requested": "prefill1", "prefill_contacted": "prefill0", "decode": "decode0",
            "outcome": "hung", "phase_reached": "handshake", "cause": "PD201",
        },
    },
    # The prefill was stopped when the room came, and killed.
    "2p1d-prefill-killed-debug-sgl0523": {
        "4307975559179341209": {"outcome": "failed", "cause": "PD705", "phase_reached": "handshake"},
    },
}  # fmt: skip


def main(recording: Path, name: str, neutral: dict[bytes, bytes]) -> None:
    out = ROOMS / name
    out.mkdir(parents=True, exist_ok=True)
    for log in sorted(recording.glob("*.log")):
        data = log.read_bytes()
        for found, written in neutral.items():
            data = data.replace(found, written)
        if log.stem.startswith("router") and len(data) > PACKED:
            (out / f"{log.name}.gz").write_bytes(gzip.compress(data, 9, mtime=0))
        else:
            (out / log.name).write_bytes(data)
    seen = summed(recording) if (recording / "truth.txt").exists() else captured(recording)
    kept = json.loads((out / "truth.json").read_text())["rooms"] if (out / "truth.json").exists() else {}
    rooms = {room: told(name, room, story) for room, story in seen.items()}
    for room, more in TOLD.get(name, {}).items():
        rooms[room] = {**rooms.get(room, {}), **more}
    for room, truth in rooms.items():
        truth["untold"] = kept.get(room, {}).get("untold", [])
    document = {"level": level(name), "versions": [version(name)], "rooms": rooms}
    (out / "truth.json").write_text(json.dumps(document, indent=1) + "\n")


def told(name: str, room: str, story: dict[str, Any]) -> dict[str, Any]:
    """One room's truth. `story`: who got its HTTP request, who its TransferInfo, and the decode's answer."""
    prefills = sorted({who for who in story["http"] if who.startswith("prefill")})
    decodes = sorted({who for who in story["http"] if who.startswith("decode")})
    requested, decode = (prefills or [None])[0], (decodes or [None])[0]
    contacted = (sorted(set(story["zmq"])) or [None])[0]
    fine = story["status"] == "200" and requested == contacted is not None
    outcome = "ok" if fine else "failed"
    crossed, other = next((found for key, found in CAUSES.items() if name.startswith(key)), (None, None))
    phase = "finished" if fine else "handshake" if contacted else "prealloc" if decode else "bootstrap"
    return {
        "prefill_requested": requested, "prefill_contacted": contacted, "decode": decode, "outcome": outcome,
        "phase_reached": phase, "cause": None if fine else crossed if contacted not in (None, requested) else other,
    }  # fmt: skip


def captured(recording: Path) -> dict[str, dict[str, Any]]:
    """README lists who got what; the answers stand in the capture."""
    rooms: dict[str, dict[str, Any]] = {}
    room = ""
    for line in (recording / "README.md").read_text().splitlines():
        if found := re.match(r"- room (\d+)$", line):
            room = found[1] if found[1] != "0" else ""
            rooms.update({room: {"http": [], "zmq": [], "status": ""}} if room else {})
        elif line.startswith("- room"):
            room = ""  # a warm-up's list
        elif room and (found := re.match(r"  - HTTP \S+ -> (\w+) ", line)):
            rooms[room]["http"].append(found[1])
        elif room and (found := re.match(r"  - ZMQ TransferInfo \S+ -> rank_port \d+ of (\w+)", line)):
            rooms[room]["zmq"].append(found[1])
    for name, status in answers(recording):
        if name in rooms:
            rooms[name]["status"] = status
    return rooms


def answers(recording: Path) -> Iterator[tuple[str, str]]:
    """Room → what its decode answered."""
    wire = recording / "wire.jsonl"
    ports = components((recording / "README.md").read_text())
    waiting: dict[tuple[int, int], str] = {}
    for line in wire.read_text().splitlines() if wire.exists() else ():
        event = json.loads(line)
        at, by = event.get("dport", 0), event.get("sport", 0)
        if "bootstrap_room" in event and ports.get(at, "").startswith("decode"):
            waiting[by, at] = event["bootstrap_room"]
        elif "resp" in event and (at, by) in waiting:
            yield waiting.pop((at, by)), event["resp"].split()[1]


def components(readme: str) -> dict[int, str]:
    """HTTP and bootstrap port → component, from the commands README repeats."""
    ports: dict[int, str] = {}
    for who, command in re.findall(r"start (prefill\d+|decode\d+) pid=\d+: (.*)", readme):
        for flag in ("--port", "--disaggregation-bootstrap-port"):
            found = re.search(rf"{flag} (\d+)", command)
            if found and (flag == "--port" or who.startswith("prefill")):
                ports[int(found[1])] = who
    return ports


def summed(recording: Path) -> dict[str, dict[str, Any]]:
    """`ROOM port P http [('prefill0', t), …] zmq [('prefill0', t), …]`: who got what, but no answers."""
    rooms: dict[str, dict[str, Any]] = {}
    for line in (recording / "truth.txt").read_text().splitlines():
        room, _, rest = line.partition(" ")
        http, _, zmq = rest.partition(" zmq ")
        rooms[room] = {
            "http": re.findall(r"'(\w+)'", http), "zmq": re.findall(r"'(\w+)'", zmq), "status": "",
        }  # fmt: skip
        if not rooms[room]["http"]:
            del rooms[room]  # somebody else's, on the same machine
            continue
        crossed = set(rooms[room]["zmq"]) - set(rooms[room]["http"])
        if not crossed and len(set(rooms[room]["http"])) == 2 and rooms[room]["zmq"]:
            rooms[room]["status"] = "200"
    return rooms


def level(name: str) -> str:
    return "debug" if "debug" in name else "info"


def version(name: str) -> str:
    digits = re.search(r"sgl05(\d+)", name)
    return f"0.5.{int(digits[1])}" if digits else ""


if __name__ == "__main__":
    pairs = (pair.split("=", 1) for pair in sys.argv[3:])
    main(Path(sys.argv[1]), sys.argv[2], {found.encode(): written.encode() for found, written in pairs})
