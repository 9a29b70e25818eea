"""`pdctl trace-room` and `pdctl rooms` as whole commands, beside a bare Python and `rg -F`, in turns.

    python tests/bench/room_verbs.py --dir DIR                   # 320 MB, made once and kept
    python tests/bench/room_verbs.py --dir DIR --mb 1000 --rounds 9

small     one room of a recording (tests/data/rooms), as a multiple of `python -c pass`
list      every room of large logs as TSV, as a multiple of `rg -F -c ROOM` on the same files
large     one room of the large logs: what it costs more than the small question, as a multiple of rg; `again`: the
          same room once more, `remembered` answers and all

The large logs are that recording over and over, each time with other rooms and request ids and a minute later. Every
command runs once a round, in turns. `cpu` is user and system time, children included; `wall` is elapsed time. A ratio
is taken within each round, and the median of the rounds is printed, of CPU and of elapsed time. rg uses as many threads
as there are cores and files, so its elapsed time is that of several threads: `rg -j 1` stands beside it. Without rg on
PATH `list` and `large` are left out.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gzip
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "data" / "rooms"
SMALL = "2p1d-missing-ports-debug-sgl0518"
ROOM = re.compile(rb"(?<!\d)\d{15,19}(?!\d)")
RID = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
STAMP = re.compile(rb"(?m)^\[?(20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")


class Cost(NamedTuple):
    """Seconds of one command."""

    cpu: float
    wall: float


def cost(command: list[str], env: dict[str, str]) -> Cost:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1, 4):  # 4: the logs do not tell how the room ended
        sys.exit(f"{' '.join(command)} failed: {done.stderr.decode()}")
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def repeated(data: bytes, at: int) -> bytes:
    """The recording as if it had happened `at` minutes later, to other rooms and requests."""

    def later(found: re.Match[bytes]) -> bytes:
        text = found[1].decode()
        moment = dt.datetime.fromisoformat(text) + dt.timedelta(minutes=at)
        return found[0].replace(found[1], moment.strftime(f"%Y-%m-%d{text[10]}%H:%M:%S").encode())

    data = ROOM.sub(lambda found: b"%d" % (int(found[0]) + at * 1_000_003), data)
    data = RID.sub(lambda found: b"%032x" % (int(found[0], 16) ^ at << 64), data)
    return STAMP.sub(later, data)


def make(directory: Path, size: int) -> None:
    """Write the files of the small recording, repeated until all of them together have `size` bytes."""
    if directory.exists():
        return
    sources = {file.name.removesuffix(".gz"): _read(file) for file in sorted((RECORDINGS / SMALL).glob("*.log*"))}
    times = size // sum(map(len, sources.values()))
    draft = directory.with_name(f"{directory.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    for name, data in sources.items():
        with (draft / name).open("wb") as file:
            for at in range(times):
                file.write(repeated(data, at))
    draft.rename(directory)


def _read(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def measure(small: Path, large: Path | None, rounds: int) -> dict[str, list[Cost]]:
    """What each command cost in each round."""
    truth = json.loads((small / "truth.json").read_text())
    room = int(next(iter(truth.get("rooms", truth))))
    python = [sys.executable]
    costs: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory() as home:
        for at in range(rounds):
            env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": f"{home}/{at}", "PDCTL_HOME": home}
            env.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody compiles pdctl at each start
            commands = {
                "python": [*python, "-c", "pass"],
                "small": [*python, "-m", "pdctl", "trace-room", str(room), str(small)],
            }
            if large is not None:
                other = room + 40 * 1_000_003
                trace = [*python, "-m", "pdctl", "trace-room", str(other), str(large)]
                rg = ["rg", "-F", "--no-config", "--no-ignore", "-c", str(other), str(large)]
                commands |= {"rg": rg, "rg -j 1": [*rg, "-j", "1"]}
                commands["list"] = [*python, "-m", "pdctl", "rooms", "-o", "tsv", str(large)]
                commands |= {"large": trace, "again": trace}
            for name, command in commands.items():
                costs.setdefault(name, []).append(cost(command, env))
    return costs


def ratio(costs: dict[str, list[Cost]], name: str, of: str, less: str | None = None) -> dict[str, float]:
    """The medians of the rounds' ratios; `less`: a command whose cost is first subtracted from that of `name`."""
    nothing = [Cost(0.0, 0.0)] * len(costs[name])
    rounds = list(zip(costs[name], costs[less] if less else nothing, costs[of], strict=True))
    return {
        "cpu": round(statistics.median((one.cpu - spared.cpu) / base.cpu for one, spared, base in rounds), 2),
        "wall": round(statistics.median((one.wall - spared.wall) / base.wall for one, spared, base in rounds), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="where the large logs lie, or are made")
    parser.add_argument("--mb", type=int, default=320, help="their size")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="leave the large logs out")
    args = parser.parse_args()
    large = None
    if not args.small and shutil.which("rg"):
        large = args.dir / f"{args.mb}mb"
        make(large, args.mb * 1_000_000)
        for file in large.iterdir():
            file.read_bytes()  # into the page cache
    found = measure(RECORDINGS / SMALL, large, args.rounds)
    ratios = {"small / python": ratio(found, "small", "python")}
    threads = {}
    if large is not None:
        allowed = len(os.sched_getaffinity(0))
        threads = {"threads": {"rg": min(allowed, len(list(large.iterdir()))), "rg -j 1": 1}}
        for base in ("rg", "rg -j 1"):
            ratios[f"list / {base}"] = ratio(found, "list", base)
            ratios[f"(large - small) / {base}"] = ratio(found, "large", base, "small")
            ratios[f"(again - small) / {base}"] = ratio(found, "again", base, "small")
    ms = {
        name: {
            "cpu": round(1000 * statistics.median(one.cpu for one in each), 1),
            "wall": round(1000 * statistics.median(one.wall for one in each), 1),
        }
        for name, each in found.items()
    }
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"rounds": args.rounds, "load": load, **threads, "ms": ms, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
