"""Logs with holes, garbage and cut ends: less is known of a room, nothing else; whatever the bytes, nothing breaks."""

from __future__ import annotations

import gzip
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.trace import summary
from pdctl.trace.assemble import Tracer
from tests.trace import pasted
from tests.trace.recordings import SCENARIOS, library, logs, truth

if TYPE_CHECKING:
    from collections.abc import Mapping

FULL = [scenario for scenario in SCENARIOS if truth(scenario)]
SLOW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
SOME = 4  # rooms of each damaged recording


@cache
def contents(scenario: str) -> Mapping[str, bytes]:
    return {
        Path(path).name.removesuffix(".gz"): gzip.open(path).read() if path.endswith(".gz") else Path(path).read_bytes()
        for path in logs(scenario)
    }


def holes(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    return [line for line in lines if chance.random() > share]


def cut_front(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    return lines[chance.randrange(len(lines) + 1) :] if chance.random() < share else lines


def cut_end(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    return lines[: chance.randrange(len(lines) + 1)] if chance.random() < share else lines


def garbage(lines: list[bytes], chance: random.Random, share: float) -> list[bytes]:
    return [line if chance.random() > share else chance.randbytes(chance.randrange(99)) + b"\n" for line in lines]


@SLOW
@given(
    scenario=st.sampled_from(FULL), damage=st.sampled_from([holes, holes, cut_front, cut_end, garbage]),
    share=st.sampled_from([0.02, 0.1, 0.3, 0.6, 0.9]), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_lost_lines_make_no_room_go_elsewhere(scenario: str, damage: object, share: float, seed: int) -> None:
    """The instances a room met are those it met, or not known."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in contents(scenario).items():
            lines = damage(content.splitlines(keepends=True), chance, share)  # type: ignore[operator]
            (Path(folder) / name).write_bytes(b"".join(lines))
        tracer = Tracer(library([folder]))
        rooms = list(truth(scenario).items())
        for number, happened in chance.sample(rooms, min(SOME, len(rooms))):
            found = tracer.trace(int(number))
            assert found.prefill_requested in (happened["prefill_requested"], None)
            assert found.prefill_contacted in (happened["prefill_contacted"], None)
            assert found.decode in (happened["decode"], None)


@SLOW
@given(data=st.data())
def test_no_line_is_too_strange(data: st.DataObject) -> None:
    """Lines of all recordings shuffled into each other, cut, doubled, with bytes changed."""
    scenario = data.draw(st.sampled_from(FULL))
    pool = [line for content in contents(scenario).values() for line in content.splitlines()]
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    files: dict[str, bytes] = {}
    for name in ("one", "two", "three"):
        lines = [chance.choice(pool) for _ in range(chance.randrange(60))]
        lines = [line[: chance.randrange(len(line) + 1)] if chance.random() < 0.2 else line for line in lines]
        lines = [_altered(line, chance) if chance.random() < 0.2 else line for line in lines]
        files[name] = chance.choice([b"\n", b"\r\n"]).join(lines)
    with tempfile.TemporaryDirectory() as folder:
        logs = pasted.library(Path(folder), **files)
        tracer = Tracer(logs)
        for number in chance.sample(list(truth(scenario)), min(2, len(truth(scenario)))):
            assert tracer.trace(int(number)).room == int(number)
        if chance.random() < 0.2:
            assert all(one.lines > 0 for one in summary.summaries(logs))


def _altered(line: bytes, chance: random.Random) -> bytes:
    changed = bytearray(line)
    for _ in range(chance.randrange(1, 6)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("content", [b"", b"\n\n\n", b"\x00" * 4096, b"room=5" * 20_000, bytes(range(256)) * 64])
def test_files_that_are_no_logs(tmp_path: Path, content: bytes) -> None:
    found = pasted.room(tmp_path, 5, one=content, two=content)
    assert (found.prefill_requested, found.prefill_contacted, found.decode, found.cause) == (None, None, None, None)


def test_no_logs_at_all(tmp_path: Path) -> None:
    found = pasted.room(tmp_path, 7707449254856086911, empty=b"")
    assert found.events == ()
    assert found.missing_evidence
    assert summary.summaries(pasted.library(tmp_path, empty=b"")) == ()
