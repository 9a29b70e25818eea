"""An engine pdctl has never met, brought as one adapter: rooms, causes and a verdict, and no line changed elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from pdctl.engines import base
from pdctl.engines.row_matching import speech
from tests.engines.invented.adapter import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.engines.invented.adapter"
GOOD, CROSSED, LOST = 5263187212345671, 5263187212345672, 5263187212345673


def at(second: int) -> str:
    return f"2026-11-21 02:{second // 60:02}:{second % 60:02}  INFO heron: "


def prefill(bootstrap: int, port: int, *lines: str) -> list[str]:
    first = [f"{at(0)}nest open on 127.0.0.1:{port}, perch {port}", f"{at(0)}egg exchange on 127.0.0.1:{bootstrap}"]
    return [*first, *lines, f"{at(600)}flies south"]


def decode(*lines: str, end: str = "flies south") -> list[str]:
    return [f"{at(0)}pond open on 127.0.0.1:7003, perch 7003", *lines, f"{at(600)}{end}"]


def good(room: int, second: int) -> tuple[list[str], list[str]]:
    """The prefill's lines, and the decode's."""
    mine = [f"{at(second)}job {room} (p-{room}) taken", f"{at(second)}job {room} list in"]
    theirs = [
        f"{at(second)}job {room} (d-{room}) looks for its egg at 127.0.0.1:7100",
        f"{at(second)}job {room} list out",
        f"{at(second + 1)}job {room} (d-{room}) hatched in 0.25 s, 4096 bytes",
        f"{at(second + 1)}job {room} (d-{room}) flown 'stop'",
    ]
    return mine, theirs


def write(folder: Path, **logs: Sequence[str]) -> None:
    for name, lines in logs.items():
        (folder / f"{name}.log").write_text("".join(f"{line}\n" for line in lines))


def pdctl(*argv: str) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "pdctl", *argv, "-o", "json"], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, base.VARIABLE: MODULE}, cwd=ROOT,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_every_row_reads_its_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(base.VARIABLE, MODULE)
    speech.cache_clear()
    read = [speech().match(row.example.encode()) for row in ROWS]
    speech.cache_clear()
    assert [said and said.row.id for said in read] == [row.id for row in ROWS]


def test_a_room_that_went_well(tmp_path: Path) -> None:
    mine, theirs = good(GOOD, 10)
    write(tmp_path, p0=prefill(7100, 7001, *mine), d0=decode(*theirs))
    _, said = pdctl("rooms", str(tmp_path))
    (room,) = said["rooms"]
    assert (room["room"], room["prefill"], room["decode"], room["outcome"]) == (GOOD, "p0", "d0", "ok")


def test_a_page_list_that_went_to_the_other_prefill(tmp_path: Path) -> None:
    """The router's port is another prefill's: who has the request never hears of it."""
    asked = [f"{at(20)}job {CROSSED} (p-2) taken", f"{at(40)}job {CROSSED} (p-2) dropped after 20.0 s"]
    met = [f"{at(20)}job {CROSSED} list in"]
    lost = [
        f"{at(20)}job {CROSSED} (d-2) looks for its egg at 127.0.0.1:7100",
        f"{at(20)}job {CROSSED} list out",
        f"{at(40)}job {CROSSED} (d-2) went cold after 20.0 s",
    ]
    write(tmp_path, p0=prefill(7100, 7001, *met), p1=prefill(7101, 7002, *asked), d0=decode(*lost))
    code, said = pdctl("trace-room", str(CROSSED), str(tmp_path))
    assert code == 1
    assert said["prefill_requested"] == "p1"
    assert said["prefill_contacted"] == "p0"
    assert said["cause"]["code"] in ("PD202", "PD701")
    assert "p1 waits for a page list that went to p0" in said["cause"]["why"]


def test_a_decode_that_crashed(tmp_path: Path) -> None:
    mine, theirs = good(LOST, 10)
    mine.append(f"{at(40)}job {LOST} (p-{LOST}) dropped after 20.0 s")
    write(tmp_path, p0=prefill(7100, 7001, *mine), d0=[*decode(*theirs[:2])[:-1], f"{at(12)}fell out of the sky: wing"])
    code, said = pdctl("diagnose", str(tmp_path))
    assert code == 1
    (death,) = said["deaths"]
    assert (death["instance"], death["code"], death["room_ids"]) == ("d0", "PD709", [str(LOST)])


class Heron(BaseHTTPRequestHandler):
    """What a heron answers; `about` is set by whoever starts one."""

    about: ClassVar[dict[str, object]] = {}

    def do_GET(self) -> None:
        body = json.dumps(self.about if self.path == "/about" else {}).encode()
        self.send_response(200 if self.path in ("/about", "/alive") else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Into no terminal."""


@contextmanager
def heron(**about: object) -> Iterator[str]:
    kind = type("Told", (Heron,), {"about": {"bird": "heron", "song": "reed", "wings": 1, "down": "bf16", **about}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_doctor_compares_two_that_run() -> None:
    with heron(place="nest", leaf=16) as nest, heron(place="pond", leaf=32) as pond:
        code, said = pdctl("doctor", "--prefill", nest, "--decode", pond)
    found = {one["code"]: one for one in said["findings"]}
    assert code == 1
    assert "PD302" in found
    assert (found["PD302"]["observed"], found["PD302"]["expected"]) == ("32", "16")
    checked = {one["code"]: one["status"] for one in said["checks"]}
    assert checked["PD301"] == "ok"
    assert checked["PD311"] == "ok"
    assert checked["PD801"] == "unknown", "what it does not tell is not taken for false"
    assert not {"PD317", "PD318", "PD310"} & set(found), "no release of SGLang's was read, so none is judged"


BROKEN = {
    "syntax": (b"def (:\n", "cannot be imported: SyntaxError: "),
    "encoding": (b"# coding: nosuch\n", "cannot be imported: SyntaxError: "),
    "bytes": (b"x = '\xff'\n", "cannot be imported: SyntaxError: "),
    "raises": (b"raise ValueError('bad\\nfix: rm -rf /')\n", "cannot be imported: ValueError: bad fix: rm -rf /"),
    "exits": (b"import sys\nsys.exit(0)\n", "cannot be imported: SystemExit: 0"),
    "number": (b"ADAPTER = 1\n", "whose ADAPTER is of type int, not Adapter"),
    "lies": (
        b"class Lies:\n def __getattribute__(self, name): raise OSError(name)\nADAPTER = Lies()\n",
        "whose ADAPTER is of type Lies, not Adapter",
    ),
    "hides": (b"def __getattr__(name): raise OSError(name)\n", "which has no ADAPTER and no SURFACE"),
}


@pytest.mark.parametrize("name", [*BROKEN, "nosuch.module", "tests.engines.invented", ".", "..", "../x", "a..b"])
def test_a_module_that_is_no_adapter(tmp_path: Path, name: str) -> None:
    text, expected = BROKEN.get(name, (b"", ""))
    (tmp_path / f"heron_{name.replace('/', '')}.py").write_bytes(text)
    module = f"heron_{name}" if name in BROKEN else name
    expected = expected or {
        "nosuch.module": "cannot be imported: No module named 'nosuch'",
        "tests.engines.invented": "which has no ADAPTER and no SURFACE",
    }.get(name, "which is not the name of a module")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", base.VARIABLE: f"{MODULE}, {module}"}
    (tmp_path / "some.log").write_text("[2026-01-01 00:00:00] a line\n")
    command = [sys.executable, "-m", "pdctl", "rooms", str(tmp_path / "some.log")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done
    assert f"error: $PDCTL_ENGINES names {module}, " in done.stderr
    assert expected in done.stderr
    fixes = [line for line in done.stderr.splitlines() if line.lstrip().startswith("fix: ")]
    assert len(fixes) == 1, done.stderr
    assert len(done.stderr.splitlines()) == 2
