"""`python -m tools.record_release VERSION`: run a release with faults, compare what pdctl says with what happened."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tools.record_release.deployment import ROOT, Preloaded, RecordError, Running, plan
from tools.record_release.judge import judge, keep
from tools.record_release.scenarios import NAMES, play, prefills, truth
from tools.record_release.wire import CaptureError, Wire

ROOMS = ROOT / "tests" / "data" / "rooms"

# Where a published router was built, which it logs, in colour too.
BUILT = re.compile(rb"(?:(?<=\x1b\[\dm)|(?<![\w/]))/home/\w+/\w+/sglang\b")


def record(home: Path, version: str, scenario: str, out: Path, traceable: bool, preloaded: Preloaded | None) -> None:
    """Record one deployment: its logs, truth.json, and doctor's output while it ran."""
    out.mkdir(parents=True, exist_ok=True)
    planned = plan(home, version, traceable)
    running = Running(planned, prefills(scenario, planned), out, preloaded)
    wire = Wire(running.ports("http_port"), running.ports("bootstrap_port"))
    began = time.monotonic()
    wire.start()
    try:
        running.start()
        ready = time.monotonic()
        print(f"{out.name}: serving after {ready - began:.0f} s", flush=True)
        answers = play(scenario, running, wire.rooms)
        tell(["doctor", "--router", running.url, "--timeout", "60s"], out / "doctor-live.txt")
    finally:
        running.end()
        rooms = wire.stop()
    document = {"level": "info", "versions": [version], "rooms": truth(scenario, rooms, answers)}
    (out / "truth.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    neutral(home, version, out)
    print(f"{out.name}: {len(document['rooms'])} rooms recorded in {time.monotonic() - ready:.0f} s", flush=True)


def neutral(home: Path, version: str, out: Path) -> None:
    """Replace this machine's paths in the logs."""
    python = home / version / "bin" / "sglang-python"
    asked = subprocess.run(
        [python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, encoding="utf-8", check=True
    )
    paths = {
        str(home / version): f"/srv/venv/{version}", str(home / "model"): "/srv/sglang/model",
        asked.stdout.strip(): "/usr", str(ROOT): "/srv/pdctl",
    }  # fmt: skip
    for log in (*out.glob("*.log"), out / "run.sh"):
        data = log.read_bytes()
        for found, written in paths.items():
            data = data.replace(found.encode(), written.encode())
        log.write_bytes(BUILT.sub(b"/srv/build", data))


def tell(argv: list[str], path: Path) -> None:
    """Run pdctl; write its output to a file and print its exit code."""
    command = [sys.executable, "-m", "pdctl", *argv]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, env=os.environ, check=False
    )
    path.write_bytes(done.stdout)
    print(f"  pdctl {argv[0]} left with {done.returncode}: {path}", flush=True)


def look(out: Path) -> bool:
    """Save what pdctl says about a recording; return whether nothing in it is wrong."""
    logs = sorted(map(str, out.glob("*.log")))
    tell(["doctor", "--static", str(out / "run.sh")], out / "doctor-static.txt")
    tell(["diagnose", *logs], out / "diagnose.txt")
    tell(["rooms", *logs], out / "rooms.txt")
    tell(["dialect", "check", *logs], out / "dialect.txt")
    said = judge(out)
    for one in said:
        if one.verdict == "wrong":
            print(f"  WRONG room {one.room} {one.field}: pdctl says {one.said}, but it was {one.happened}")
    count = Counter(one.verdict for one in said)
    print(f"{out.name}: {count['right']} right, {count['silent']} silent, {count['wrong']} wrong", flush=True)
    return not count["wrong"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.record_release", description=__doc__)
    parser.add_argument("version", metavar="VERSION", help="a release that PDCTL_TEST_SGLANG_HOME has")
    parser.add_argument("--out", type=Path, required=True, help="where the recordings go, a directory each")
    parser.add_argument("--only", choices=NAMES, action="append", help="this scenario; repeatable (default: all)")
    parser.add_argument("--traceable", action="store_true", help="with the request log and time stats")
    parser.add_argument("--preload", action="store_true", help="import SGLang once for all starts: faster, not as real")
    parser.add_argument("--look", action="store_true", help="record nothing: judge what is recorded already")
    parser.add_argument("--keep", action="store_true", help="pack what has nothing wrong under tests/data/rooms")
    given = parser.parse_args()
    home = Path(os.environ.get("PDCTL_TEST_SGLANG_HOME", "")).resolve()
    preloaded = None
    try:
        if given.preload and not given.look:
            preloaded = Preloaded(home / given.version / "bin" / "sglang-python")
        right = [record_and_look(home, scenario, given, preloaded) for scenario in given.only or NAMES]
    except (RecordError, CaptureError, TimeoutError) as error:
        print(f"record_release: {error}", file=sys.stderr)
        return 2
    finally:
        if preloaded:
            preloaded.end()
    return 0 if all(right) else 1


def record_and_look(home: Path, scenario: str, given: argparse.Namespace, preloaded: Preloaded | None) -> bool:
    ending = f"info{'-log-requests' if given.traceable else ''}-sgl{given.version.replace('.', '', 2)}"
    out = given.out.resolve() / f"2p1d-{scenario}-{ending}"
    if not given.look:
        record(home, given.version, scenario, out, given.traceable, preloaded)
    right = look(out)
    if right and given.keep:
        keep(out, ROOMS / out.name)
    return right


if __name__ == "__main__":
    sys.exit(main())
