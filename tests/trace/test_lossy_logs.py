"""Logs with holes, garbage and cut ends: less is known of a room, nothing else; whatever the bytes, nothing breaks."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.trace import summaries
from pdctl.trace.tracer import Tracer
from tests.cases import for_each
from tests.trace import pasted
from tests.trace.damage import DAMAGES, FULL, SHARES, Copy, contents, copies, wrong
from tests.trace.recordings import truth

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
# The same copies in every run; `python -m tests.trace.damage` makes others, as many as wanted.
SAME = settings(SLOW, derandomize=True, database=None)
# Copies in which trace once named an instance that the room never met, and what was wrong.
FOUND = {
    # The decode's `Fetched bootstrap info` of one room stood in front of `Sending to …` of the next but one.
    "two lines between two rooms": Copy("2p1d-healthy-debug-sgl0518", "holes", 0.3, 3599),
    # The prefill was dead when the router sent the request, and started again since: no line of a start was left.
    "no line of any start": Copy("pdctl-killed-prefill", "kinds", 0.6, 1858),
    # No line says who had the request, while the router's attempts name prefills: a traceback.
    "attempts that name prefills": Copy("2p1d-missing-ports-debug-sgl0518", "holes", 0.6, 1009),
    # The router's list ended within its second prefill: the first one was taken for the only one.
    # The decode's lines of a failure were lost, its word to the prefill was not: its book balanced without them.
    "a book that balances by luck": Copy("2p1d-missing-ports-debug-sgl0518", "holes", 0.6, 63956),
    "half of a list of workers": Copy("2p1d-missing-ports-info-sgl0522", "half_lines", 0.6, 53937),
}


@SAME
@given(
    scenario=st.sampled_from(FULL), damage=st.sampled_from(list(DAMAGES)), share=st.sampled_from(SHARES),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_lost_lines_make_no_room_go_elsewhere(scenario: str, damage: str, share: float, seed: int) -> None:
    """The instances a room met are those it met, or not known."""
    assert wrong(Copy(scenario, damage, share, seed)) == []


@for_each("copy", FOUND.values(), ids=[*FOUND])
def test_copies_that_were_told_wrongly(copy: Copy) -> None:
    assert wrong(copy, most=100) == []


@pytest.mark.heavy
def test_many_copies() -> None:
    """As many as PDCTL_TEST_COPIES says: half an hour for 20 000 on one core."""
    count = int(os.environ.get("PDCTL_TEST_COPIES", "2000"))
    assert [(copy, found) for copy in copies(0, count) if (found := wrong(copy))] == []


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
            assert all(one.lines > 0 for one in summaries.room_summaries(Tracer(logs)))


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
    assert summaries.room_summaries(Tracer(pasted.library(tmp_path, empty=b""))) == ()
