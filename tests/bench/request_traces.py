"""CPU seconds and memory of reading and making a trace of many requests, beside a bare `csv.reader` over the same rows.

Usage: python -m tests.bench.request_traces [--rows 1000000]
"""

from __future__ import annotations

import argparse
import csv
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from pdctl.simulation.synthetic import make_request_trace
from pdctl.simulation.trace_files import read_request_trace, write_request_trace

MOONCAKE = "steady:rate={rate},duration=1000,prompt=8596,output=182,prefix=0.6"  # lengths as in its toolagent trace
ONE = """
import re, sys, time
from tests.bench.request_traces import {what} as work
peak = lambda: int(re.search("VmHWM:[^0-9]*([0-9]+)", open("/proc/self/status").read())[1])
before, begin = peak(), time.process_time()
work(sys.argv[1])
print(time.process_time() - begin, (peak() - before) / 1024)
"""


def azure(rows: int, draw: random.Random) -> Iterator[str]:
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    when = datetime(2024, 5, 10, tzinfo=timezone.utc)
    for _ in range(rows):
        when += timedelta(seconds=draw.random() / 22)  # 27 million in a week
        yield f"{when},{draw.randrange(1, 4000)},{draw.randrange(1, 500)}\n"


def burst(rows: int, draw: random.Random) -> Iterator[str]:
    yield "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    for at in range(rows):
        prompt, answer = draw.randrange(1, 4000), draw.randrange(1, 500)
        begin = f"{19440110 + at}.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4"
        yield f"{begin},{prompt},{answer},{prompt + answer},Conversation log\n"


def parse_csv(path: str) -> None:
    with open(path, newline="") as file:
        for _ in csv.reader(file):
            pass


def read(path: str) -> None:
    read_request_trace(path)


def make(spec: str) -> None:
    make_request_trace(spec, 1)


def measure(what: str, argument: str) -> tuple[float, float]:
    """CPU seconds and the MiB by which its memory grows, in a process of its own."""
    code = [sys.executable, "-c", ONE.format(what=what), argument]
    seconds, grown = subprocess.run(code, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), float(grown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**6)
    rows = parser.parse_args().rows
    print(f"{rows:,} requests; CPU s, × csv.reader over the Azure rows, MiB")
    with tempfile.TemporaryDirectory() as directory:
        files = {name: Path(directory) / name for name in ("azure", "burst", "mooncake")}
        for name, lines in (("azure", azure), ("burst", burst)):
            with files[name].open("w") as file:
                file.writelines(lines(rows, random.Random(name)))
        write_request_trace(files["mooncake"], make_request_trace(MOONCAKE.format(rate=rows / 1000), 1))
        works = [("parse_csv", str(files["azure"]), "csv.reader")]
        works += [("read", str(path), f"read {name}") for name, path in files.items()]
        works.append(("make", f"steady:rate={rows / 1000},duration=1000", "make steady"))
        floor = 0.0
        for what, argument, name in works:
            seconds, grown = measure(what, argument)
            floor = floor or seconds
            print(f"{name:14} {seconds:6.2f} s {seconds / floor:6.1f} × {grown:6.0f} MiB")


if __name__ == "__main__":
    main()
