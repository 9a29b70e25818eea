"""The recorder of a release: what it takes from the wire, what it makes of it, and that a wrong word is found."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from tests.cases import for_each
from tests.trace.recordings import ROOMS, truth
from tools.record_release.__main__ import BUILT
from tools.record_release.deployment import Answer
from tools.record_release.judge import judge, keep
from tools.record_release.scenarios import play, prefills
from tools.record_release.scenarios import truth as happened
from tools.record_release.wire import CaptureError, Seen, Wire, tcp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOM, OTHER = "1234567890123456789", "8234567890123456789"
SERVERS = [
    {"role": "prefill", "url": "http://127.0.0.1:1", "bootstrap_port": 8998},
    {"role": "prefill", "url": "http://127.0.0.1:2", "bootstrap_port": 8999},
    {"role": "decode", "url": "http://127.0.0.1:3", "bootstrap_port": None},
]


class Silent(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

    do_PUT = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Of a prefill, its bootstrap server, a decode and the prefill's rank."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Silent) for _ in range(4)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_address[1] for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


def send(port: int, method: str, body: dict[str, object]) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    client.request(method, "/", json.dumps(body))
    assert client.getresponse().status == 200
    client.close()


def test_the_wire_tells_who_got_what(ports: list[int]) -> None:
    prefill, bootstrap, decode, rank = ports
    try:
        wire = Wire({prefill: "prefill0", decode: "decode0"}, {bootstrap: "prefill0"})
    except CaptureError as error:
        pytest.skip(str(error))
    wire.start()
    send(bootstrap, "PUT", {"rank_ip": "127.0.0.1", "rank_port": rank})
    for port in (prefill, decode):
        send(port, "POST", {"text": "number 7", "bootstrap_room": int(ROOM)})
    send(prefill, "POST", {"text": "number 8", "bootstrap_room": int(OTHER)})
    with socket.create_connection(("127.0.0.1", rank)) as client:
        client.sendall(b"\x01\x13" + ROOM.encode() + b"\x00\x05" + b"41234")
        client.sendall(b"\x01\x05ABORT\x01\x13" + OTHER.encode())  # nobody asks for pages with that
    send(rank, "POST", {})  # after it, all that went before has been seen
    assert wire.stop() == {ROOM: Seen(7, ["prefill0", "decode0"], ["prefill0"]), OTHER: Seen(8, ["prefill0"], [])}


@for_each("cut", [0, 13, 14, 33, 53, 54, 57])
def test_a_short_frame_is_no_segment(cut: int) -> None:
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 44, 0, 0, 64, socket.IPPROTO_TCP, 0, 0, 0)
    frame = bytes(12) + b"\x08\x00" + ip + struct.pack(">HHIIBBHHH", 1, 8998, 0, 0, 5 << 4, 0, 0, 0, 0) + b"room"
    assert tcp(frame) == (8998, b"room")
    assert tcp(frame[:cut]) in (None, (8998, b"roo"))


def test_the_routers_ports_are_the_fault() -> None:
    planned = {"instances": SERVERS}
    one, two = "http://127.0.0.1:1", "http://127.0.0.1:2"
    assert prefills("healthy", planned) == ["--prefill", one, "8998", "--prefill", two, "8999"]
    assert prefills("swapped-ports", planned) == ["--prefill", one, "8999", "--prefill", two, "8998"]
    assert prefills("missing-ports", planned) == ["--prefill", one, "--prefill", two]


@for_each("scenario", ["missing-ports", "swapped-ports"])
def test_requests_that_may_all_hang_hang_at_once(scenario: str) -> None:
    """One after the other they took 28 minutes with 0.5.16, whose prefills give up no room."""
    asked: list[tuple[int, int]] = []

    class Asked:
        def ask(self, numbers: range, at_once: int = 1) -> dict[int, Answer]:
            asked.append((len(numbers), at_once))
            return {number: Answer("failed", began=False) for number in numbers}

    assert set(play(scenario, Asked(), {})) == set(range(1, 9))  # type: ignore[arg-type]
    assert asked == [(8, 8)]


def test_the_last_room_of_a_request_has_its_answer() -> None:
    rooms = {"1": Seen(5, ["decode0"], []), "2": Seen(5, ["prefill1", "decode0"], ["prefill1"]), "0": Seen()}
    told = happened("prefill-killed", rooms, {5: Answer("ok", began=True)})
    assert {room: (one["outcome"], one["cause"], one["phase_reached"]) for room, one in told.items()} == {
        "1": ("failed", "PD705", "prealloc"), "2": ("ok", None, "finished"),
    }  # fmt: skip


@for_each("before", [b"\x1b[2m:\x1b[0m \x1b[2m", b"smg::server: ", b""])
def test_where_a_router_was_built_is_kept_in_no_recording(before: bytes) -> None:
    built = b"/home/builder/source/sglang/sglang/src/server.rs"
    assert BUILT.sub(b"/srv/build", before + built) == before + b"/srv/build/sglang/src/server.rs"
    assert BUILT.sub(b"/srv/build", b"/srv" + built) == b"/srv" + built


def test_a_wrong_word_is_found_and_a_silent_one_is_kept_as_such(tmp_path: Path) -> None:
    name = "2p1d-missing-ports-info-sgl0523"
    assert {one.verdict for one in judge(ROOMS / name)} == {"right", "silent"}
    for path in (ROOMS / name).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    keep(tmp_path, tmp_path / "kept")
    kept = json.loads((tmp_path / "kept" / "truth.json").read_text())["rooms"]
    assert {room: set(one["untold"]) for room, one in kept.items()} == {
        room: set(one["untold"]) for room, one in truth(name).items()
    }
    packed = (tmp_path / "kept" / "decode0.log.gz").read_bytes()
    assert gzip.decompress(packed) == (ROOMS / name / "decode0.log").read_bytes()

    document = json.loads((tmp_path / "truth.json").read_text())
    room = next(room for room, one in document["rooms"].items() if one["cause"] == "PD201")
    document["rooms"][room]["prefill_contacted"] = "prefill1"
    (tmp_path / "truth.json").write_text(json.dumps(document))
    assert [(one.room, one.field, one.said) for one in judge(tmp_path) if one.verdict == "wrong"] == [
        (room, "prefill_contacted", "prefill0")
    ]
