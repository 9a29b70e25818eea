"""`pdctl trace-room` and `pdctl rooms` as whole commands, beside a bare Python and `rg -F`, in turns.

    python tests/bench/room_verbs.py --dir DIR                   # 320 MB, made once and kept
    python tests/bench/room_verbs.py --dir DIR --mb 1000 --rounds 9

small     one room of a recording (tests/data/rooms), as a multiple of `python -c pass`
list      every room of large logs as TSV, as a multiple of `rg -F -c ROOM` on the same files
large     one room of the large logs: what it costs more than the small question, as a multiple of rg; `again`: the
          same room once more, `remembered` answers and all

The large logs are that recording over and over, each time with other rooms and request ids and a minute later. CPU
seconds (user and system, children included), medians of interleaved rounds. Without rg on PATH `list` and `large` are
left out.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "data" / "rooms"
SMALL = "2p1d-missing-ports-debug-sgl0518"
ROOM = re.compile(rb"(?<!\d)\d{15,19}(?!\d)")
RID = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
STAMP = re.compile(rb"(?m)^\[?(20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")


def cpu(command: list[str], env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1, 4):  # 4: the logs do not tell how the room ended
        sys.exit(f"{' '.join(command)} failed: {done.stderr.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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


def measure(small: Path, large: Path | None, rounds: int) -> dict[str, float]:
    truth = json.loads((small / "truth.json").read_text())
    room = int(next(iter(truth.get("rooms", truth))))
    python = [sys.executable]
    costs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as home:
        for at in range(rounds):
            env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": f"{home}/{at}", "PDCTL_HOME": home}
            commands = {
                "python": [*python, "-c", "pass"],
                "small": [*python, "-m", "pdctl", "trace-room", str(room), str(small)],
            }
            if large is not None:
                other = room + 40 * 1_000_003
                trace = [*python, "-m", "pdctl", "trace-room", str(other), str(large)]
                commands["rg"] = ["rg", "-F", "--no-config", "--no-ignore", "-c", str(other), str(large)]
                commands["list"] = [*python, "-m", "pdctl", "rooms", "-o", "tsv", str(large)]
                commands |= {"large": trace, "again": trace}
            for name, command in commands.items():
                costs.setdefault(name, []).append(cpu(command, env))
    return {name: statistics.median(each) for name, each in costs.items()}


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
    ratios = {"small / python": found["small"] / found["python"]}
    if large is not None:
        ratios["list / rg"] = found["list"] / found["rg"]
        ratios["(large - small) / rg"] = (found["large"] - found["small"]) / found["rg"]
        ratios["(again - small) / rg"] = (found["again"] - found["small"]) / found["rg"]
    answer = {"ms": {name: round(each * 1000, 1) for name, each in found.items()}}
    print(json.dumps({**answer, "ratios": {name: round(each, 2) for name, each in ratios.items()}}, indent=2))


if __name__ == "__main__":
    main()
