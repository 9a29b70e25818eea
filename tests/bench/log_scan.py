"""One room among gigabytes of logs, beside `rg -F` on the same files, in turns; prints medians and ratios as JSON.

    python tests/bench/log_scan.py --dir DIR --gb 4              # makes the files once, keeps them
    python tests/bench/log_scan.py --dir DIR --gb 4 --mix dense --rounds 5
    python tests/bench/log_scan.py --dir DIR --gb 0.2 --cli      # `pdctl trace-room` as a whole, too

Every measurement is a process of its own; its CPU seconds (user and system, children included) and wall seconds include
the interpreter's start, `inside` is the question alone. Ratios are medians divided by the median of rg. The files are
read once before, so that all find them in the page cache. Without rg on PATH there is nothing to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from log_scan_files import FAILED_EVERY, File, files, room_of, write

ROOT = Path(__file__).resolve().parents[2]
ASK = """
import sys, time, json, resource
from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
began = time.perf_counter(), time.process_time()
library = Library(open_logs([sys.argv[1]]), environ={"XDG_CACHE_HOME": sys.argv[3]}, index=sys.argv[3] != "")
QUESTION
inside = time.perf_counter() - began[0], time.process_time() - began[1]
rss = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps({"found": found, "inside": inside, "rss": rss, "scanned": library.stats.scanned}))
"""
QUESTIONS = {
    "find": "found = len(library.of_room(int(sys.argv[2])))",
    "find-alone": "from pdctl.logs import ripgrep\nripgrep.program = lambda: None\n"
    "found = len(library.of_room(int(sys.argv[2])))",
    "rooms": "found = sum(1 for room in library.rooms())",
    "index": "found = int(not library.build_index())",
}


class Cost(NamedTuple):
    """Seconds of the whole process; `inside` those of the question alone. found: what it found.

    rss: KiB at most of any one of its processes.
    """

    wall: float
    cpu: float
    inside: float = 0.0
    rss: int = 0
    found: int = 0


def run(command: list[str], env: dict[str, str] | None = None) -> tuple[Cost, str]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1, 4):  # 4: the logs do not tell how the room ended
        sys.exit(f"{command[0]} failed: {done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu), done.stdout


def rg(room: int, directory: Path) -> Cost:
    cost, out = run(["rg", "-F", "--no-config", "--no-ignore", "-c", str(room), *map(str, sorted(directory.iterdir()))])
    return cost._replace(found=sum(int(line.rsplit(":", 1)[1]) for line in out.splitlines()))


def ask(question: str, room: int, directory: Path, cache: str) -> Cost:
    script = Path(tempfile.gettempdir()) / f"pdctl-bench-{os.getpid()}.py"
    # A real file with a guard: the processes of `rooms` import it again.
    script.write_text("if __name__ == '__main__':\n" + indent(ASK.replace("QUESTION", QUESTIONS[question])))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    cost, out = run([sys.executable, str(script), str(directory), str(room), cache], env)
    script.unlink()
    said = json.loads(out)
    return cost._replace(inside=said["inside"][0], rss=said["rss"], found=said["found"])


def indent(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def trace(room: int, directory: Path, cache: str) -> Cost:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": cache}
    command = [sys.executable, "-m", "pdctl", "trace-room", str(room), str(directory), "-o", "json"]
    return run(command, env)[0]


def make(directory: Path, mix: str, total: int) -> None:
    wanted = [file for file in files(mix) if not (directory / file.name).exists()]
    if not wanted:
        return
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if free < 2 * total:
        sys.exit(f"{directory} has {free >> 30} GiB free; {2 * total >> 30} GiB are wanted")
    print(f"writing {len(wanted)} files to {directory}", file=sys.stderr)
    with ProcessPoolExecutor() as pool:
        for done in [pool.submit(write, directory / file.name, file, total // 12) for file in wanted]:
            done.result()


def rooms_to_find(directory: Path, mix: str, count: int) -> list[int]:
    """Rooms in the middle of the files that a DEBUG prefill and a DEBUG decode both name."""
    debug = [file for file in files(mix) if file.debug and file.kind != "router"][:2]
    middle = smallest_range(directory, debug) // 2
    numbers = [number for number in range(middle, middle + 100_000) if number % 5 == 0 and number // 5 % 5 == 0]
    return [room_of(number) for number in numbers if number % FAILED_EVERY][:count]


def smallest_range(directory: Path, wanted: list[File]) -> int:
    """Requests that fit the smaller of the files, from the bytes of the first 100 000 of them."""
    from log_scan_files import lines, takes

    ends = []
    for file in wanted:
        size = sum(len(lines(file, n, b"2026-11-21 02:00:00")) for n in range(100_000) if takes(file, n))
        ends.append((directory / file.name).stat().st_size * 100_000 // size)
    return min(ends)


def rounds(directory: Path, mix: str, count: int, cli: bool) -> dict[str, list[Cost]]:
    wanted = rooms_to_find(directory, mix, count)
    costs: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory() as indexed:
        costs["index, built"] = [ask("index", 0, directory, indexed)]
        size = sum(file.stat().st_size for file in Path(indexed).rglob("*.rooms"))
        print(f"the index is {size / 1e6:.1f} MB on disk", file=sys.stderr)
        costs["index, on disk"] = [Cost(0, 0, found=size)]
        for room in wanted:
            with tempfile.TemporaryDirectory() as cache:
                expected = rg(room, directory)
                turns = {
                    "rg": expected,
                    "find, cold, without rg's help": ask("find-alone", room, directory, cache + "/alone"),
                    "find, cold": ask("find", room, directory, cache),
                    "find, repeated": ask("find", room, directory, cache),
                    "find, another room with the index": ask("find", room, directory, indexed),
                    "rooms": ask("rooms", room, directory, ""),
                }
                if cli:
                    turns["trace-room, cold"] = trace(room, directory, cache + "/cli")
                    turns["trace-room, repeated"] = trace(room, directory, cache + "/cli")
            for name, cost in turns.items():
                costs.setdefault(name, []).append(cost)
                if name.startswith("find") and cost.found != expected.found:
                    sys.exit(f"{name}: {cost.found} lines of room {room}, rg {expected.found}")
    return costs


def report(costs: dict[str, list[Cost]]) -> dict[str, object]:
    base = {field: statistics.median(getattr(cost, field) for cost in costs["rg"]) for field in ("wall", "cpu")}
    out: dict[str, object] = {"index_bytes": costs.pop("index, on disk")[0].found}
    for name, each in costs.items():
        middle = {field: statistics.median(getattr(cost, field) for cost in each) for field in Cost._fields}
        out[name] = {
            "wall_s": round(middle["wall"], 3),
            "cpu_s": round(middle["cpu"], 3),
            "inside_s": round(middle["inside"], 3),
            "rss_mb": round(middle["rss"] / 1024, 1),
            "found": middle["found"],
            "wall_x_rg": round(middle["wall"] / base["wall"], 3),
            "cpu_x_rg": round(middle["cpu"] / base["cpu"], 3),
            "inside_x_rg_wall": round(middle["inside"] / base["wall"], 3),
        }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="where the files are, or are made")
    parser.add_argument("--gb", type=float, default=4.0, help="size of all twelve files together")
    parser.add_argument("--mix", choices=["mixed", "dense"], default="mixed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cli", action="store_true", help="measure `pdctl trace-room` as a whole as well")
    args = parser.parse_args()
    directory = args.dir / f"{args.mix}-{args.gb:g}"
    make(directory, args.mix, int(args.gb * 1e9))
    if shutil.which("rg") is None:
        sys.exit("rg is not on PATH: there is nothing to compare with (apt-get install ripgrep)")
    for file in sorted(directory.iterdir()):
        with file.open("rb") as stream:
            while stream.read(1 << 20):
                pass
    load = os.getloadavg()[0]
    costs = rounds(directory, args.mix, args.rounds, args.cli)
    version = run(["rg", "--version"])[1].split("\n")[0]
    about = {
        "mix": args.mix,
        "gb": args.gb,
        "rounds": args.rounds,
        "rg": version,
        "cores": os.cpu_count(),
        "load": load,
    }
    print(json.dumps({**about, **report(costs)}, indent=1))


if __name__ == "__main__":
    main()
