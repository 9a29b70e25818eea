"""Fuzz one target, or all: `python -m tests.fuzz line --cases 1000000 --seed 7`.

With atheris installed the cases are chosen by the coverage they reach; without it, or with --plain, by a seeded
generator, whose case can be had again by its number (--only). Exit code 1: something broke; the case is printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from tests.fuzz.judge import Broken, Target, case, judge, kept, survive
from tests.fuzz.targets import TARGETS

ALL = "all"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=[*TARGETS, ALL])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="the seeded generator even where atheris is installed")
    parser.add_argument("--most", type=int, default=1, metavar="N", help="go on to the Nth finding (with --plain)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this case of the seed alone (of the generator)")
    parser.add_argument("--file", type=Path, help="this case, as a file, alone")
    parser.add_argument("--corpus", type=Path, help="keep what atheris found worth keeping there")
    args = parser.parse_args()
    broken = 0
    for target in TARGETS.values() if args.target == ALL else [TARGETS[args.target]]:
        if args.only is not None or args.file is not None:
            data = args.file.read_bytes() if args.file else case(target.seeds(), args.seed, args.only)
            broken += _one(target, data)
        elif args.plain or importlib.util.find_spec("atheris") is None:
            broken += _plain(target, args.cases, args.seed, args.most)
        else:
            from tests.fuzz import guided

            broken += guided.run(target, args.cases, args.seed, args.corpus)
    return min(broken, 1)


def _one(target: Target, data: bytes) -> int:
    try:
        took = judge(target, data)
    except Broken as broken:
        print(broken)
        return 1
    print(f"{target.name}: {len(data)} bytes in {took * 1e3:.1f} ms")
    return 0


def _plain(target: Target, cases: int, seed: int, most: int) -> int:
    def told(done: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{target.name}: {done} of {cases}\x1b[K")

    found = survive(target, cases, seed, most=most, told=told)
    rate = found.cases / max(found.seconds, 1e-9)
    slowest, data = found.slowest
    sys.stderr.write("\r\x1b[K" if sys.stderr.isatty() else "")
    print(
        f"{target.name}: {found.cases} cases of seed {seed} in {found.seconds:.0f} s ({rate:.0f}/s), "
        f"{len(found.broken) or 'no'} findings; the slowest took {slowest * 1e3:.0f} ms CPU for {len(data)} bytes",
        flush=True,
    )
    for broken in found.broken:
        print(f"{broken}\nkept as {kept(broken)}")
    return len(found.broken)


if __name__ == "__main__":
    sys.exit(main())
