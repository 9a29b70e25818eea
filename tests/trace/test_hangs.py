"""Logs of peers that hung or were cut off, from tests/e2e/test_hangs_by_state.py: who did it is known from what it did.

A folder of tests/data/hangs is named after the state of the rooms and the fault.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path

from pdctl.trace.room import RoomOutcome
from pdctl.trace.tracer import Tracer
from tests.cases import for_each
from tests.trace.recordings import library

HANGS = Path(__file__).parent.parent / "data" / "hangs"
CASES = sorted(path.name for path in HANGS.iterdir())
FAULTS = {
    "SIGSTOP-prefill": {"prefill-0"},
    "SIGSTOP-decode": {"decode-0"},
    "prefill-frames-to-decode-lost": {"prefill-0", "decode-0"},
    "decode-frames-to-prefill-lost": {"prefill-0", "decode-0"},
}
ENDED = re.compile(r" Finish room=(\d+) .* outcome=(\w+) ")  # the router's own word, without the dialect


def ends(case: str) -> dict[int, str]:
    """Room → how it ended for its client."""
    text = gzip.decompress((HANGS / case / "router.log.gz").read_bytes()).decode()
    return {int(room): how for room, how in ENDED.findall(text)}


@for_each("case", CASES)
def test_the_peer_that_hung_is_named_and_nobody_else(case: str) -> None:
    (right,) = (who for fault, who in FAULTS.items() if case.endswith(fault))
    tracer = Tracer(library([str(path) for path in sorted((HANGS / case).iterdir())]))
    named: Counter[tuple[str, str]] = Counter()
    for room, how in ends(case).items():
        found = tracer.trace(room)
        if how == "ok":
            assert found.outcome is RoomOutcome.OK
            assert found.cause is None or found.cause.code != "PD717"
        else:
            assert found.outcome is RoomOutcome.FAILED
            named[(found.cause.code, found.cause.instance) if found.cause else ("", "")] += 1
    assert set(named) <= {("", ""), *(("PD717", name) for name in right)}
    assert named["", ""] <= 0.1 * named.total()


def test_the_recordings_show_every_kind_of_hang() -> None:
    assert {fault for case in CASES for fault in FAULTS if case.endswith(fault)} == set(FAULTS)
    assert any("failed" not in ends(case).values() for case in CASES)  # rooms that needed the peer no more
    assert all((HANGS / case / f"{name}.log.gz").exists() for case in CASES for name in ("decode-0", "router"))
