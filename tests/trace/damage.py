"""Recorded logs with lines lost, and what trace then says of their rooms: the truth or nothing, never another instance.

    python -m tests.trace.damage --copies 20000           # half an hour on one core; --seed N: other copies

A copy is known by recording, kind of damage, share and seed, and is the same in every run: a case that was found is
kept by these four (test_lossy_logs.py).
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.row_matching import speech
from pdctl.trace.tracer import Tracer
from tests.trace.recordings import SCENARIOS, library, logs, truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Damage = Callable[[list[bytes], random.Random, float], list[bytes]]

FULL = tuple(scenario for scenario in SCENARIOS if truth(scenario))
SHARES = (0.02, 0.1, 0.3, 0.6, 0.9)
FIELDS = ("prefill_requested", "prefill_contacted", "decode")
ROOM = re.compile(rb"\d{15,20}")
REQUEST = re.compile(rb"request_id[\x1b\[0-9m\"=: ]+([\w-]+)|rid[=':\" ]+([0-9a-f]{8,})")
ROOMS = 6  # of each copy


class Copy(NamedTuple):
    scenario: str
    damage: str
    share: float
    seed: int


class Wrong(NamedTuple):
    room: str
    field: str
    told: str
    happened: str | None


def holes(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    return [line for line in lines if chance.random() > share]


def cut_front(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    return lines[chance.randrange(len(lines) + 1) :] if chance.random() < share else lines


def cut_end(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    return lines[: chance.randrange(len(lines) + 1)] if chance.random() < share else lines


def garbage(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    return [line if chance.random() > share else chance.randbytes(chance.randrange(99)) + b"\n" for line in lines]


def half_lines(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    return [line if chance.random() > share else line[: chance.randrange(len(line))] + b"\n" for line in lines]


def gaps(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    """A collector that was away for a while, up to five times."""
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(lines) + 1)
        lines = lines[:at] + lines[at + chance.randrange(1, 2 + int(len(lines) * share)) :]
    return lines


def kinds(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    """As a filter does: every line of some kinds."""
    gone = {kind for kind in sorted({_kind(line) for line in lines}) if chance.random() < share}
    return [line for line in lines if _kind(line) not in gone]


def rooms(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    """Every line of some rooms."""
    return _without(lines, chance, share, lambda line: ROOM.findall(line))


def requests(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    """Every line of some requests: what a log leaves no trace of."""
    return _without(lines, chance, share, lambda line: [one or other for one, other in REQUEST.findall(line)])


def each(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    """Every file has a damage of its own, or none, or is not there."""
    del share
    one = chance.choice([*ALONE.values(), _nothing, _everything])
    return one(lines, chance, chance.choice(SHARES))


def twice(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    return each(each(lines, chance, share), chance, share)


def _nothing(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    del chance, share
    return lines


def _everything(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    del lines, chance, share
    return []


def _without(
    lines: list[bytes], chance: random.Random, share: float, named: Callable[[bytes], list[bytes]]
) -> list[bytes]:
    gone = {name for name in sorted({name for line in lines for name in named(line)}) if chance.random() < share}
    return [line for line in lines if not gone.intersection(named(line))]


@cache
def _kind(line: bytes) -> str:
    said = speech().match(line)
    return said.row.id if said else re.sub(rb"[\W\d]+", b" ", line)[:40].decode("latin-1")


ALONE: dict[str, Damage] = {
    one.__name__: one for one in (holes, cut_front, cut_end, garbage, half_lines, gaps, kinds, rooms, requests)
}
DAMAGES: dict[str, Damage] = {**ALONE, "each": each, "twice": twice}


@cache
def contents(scenario: str) -> Mapping[str, bytes]:
    return {
        Path(path).name.removesuffix(".gz"): gzip.open(path).read() if path.endswith(".gz") else Path(path).read_bytes()
        for path in logs(scenario)
    }


def wrong(copy: Copy, most: int = ROOMS) -> list[Wrong]:
    """What trace says of `most` rooms of this copy that is neither the truth nor null."""
    chance = random.Random(copy.seed)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in contents(copy.scenario).items():
            lines = DAMAGES[copy.damage](content.splitlines(keepends=True), chance, copy.share)
            (Path(folder) / name).write_bytes(b"".join(lines))
        tracer = Tracer(library([folder]))
        happened = truth(copy.scenario)
        chosen = chance.sample(list(happened), min(most, len(happened)))
        return list(_compared(tracer, {room: happened[room] for room in chosen}))


def _compared(tracer: Tracer, happened: Mapping[str, Mapping[str, str | None]]) -> Iterator[Wrong]:
    for room, facts in happened.items():
        found = tracer.trace(int(room))
        for field in FIELDS:
            told = getattr(found, field)
            if told not in (facts[field], None):
                yield Wrong(room, field, told, facts[field])


def copies(seed: int, count: int) -> Iterator[Copy]:
    for number in range(seed, seed + count):
        chance = random.Random(number)
        yield Copy(chance.choice(FULL), chance.choice(list(DAMAGES)), chance.choice(SHARES), number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trace.damage", description=__doc__)
    parser.add_argument("--copies", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first copy; the next ones follow")
    options = parser.parse_args()
    found = 0
    for number, copy in enumerate(copies(options.seed, options.copies), 1):
        for each_ in wrong(copy):
            found += 1
            print(f"{copy}: {each_}", flush=True)
        if number % 1000 == 0:
            print(f"{number} copies, {found} wrong", file=sys.stderr, flush=True)
    print(f"{options.copies} damaged copies, {ROOMS} rooms of each at most: {found} wrong")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
