"""Logs too large to be read from end to end: only what lies around the room is, and it says the same or less."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.trace import tracer
from pdctl.trace.tracer import Tracer
from tests.trace import pasted
from tests.trace.engines import at, decode_timed_out, engine, got_info, sending
from tests.trace.recordings import SCENARIOS, library, logs, truth
from tests.trace.routers import P1, answered, came, left, sent, starting

if TYPE_CHECKING:
    from pathlib import Path

ROOM = 7707449254856086911
SILENT = {"outcome": ("unknown", "incomplete")}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_around_the_room_the_same_is_true(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "WHOLE", -1)
    each = Tracer(library(logs(scenario)))
    for number, happened in truth(scenario).items():
        room = each.trace(int(number))
        assert room.prefill_requested in (happened["prefill_requested"], None)
        assert room.prefill_contacted in (happened["prefill_contacted"], None)
        assert room.decode in (happened["decode"], None)
        assert room.outcome.value in (happened["outcome"], *SILENT["outcome"])
        assert (room.cause.code if room.cause else None) in (happened["cause"], None)


def test_a_room_in_the_middle_of_much_traffic(tmp_path: Path) -> None:
    """More than 8 MiB in front of it and behind it; the joined attempt is found all the same."""
    noise = [
        f"{at(second)} Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, x{'y' * 200}"
        for second in (2, 1700)
    ]
    many = [noise[0]] * 20_000
    after = [noise[1]] * 20_000
    router = [came(600, "a"), *sent(600, "a", P1), *answered(621, "a", 500), left(621, "a", 500)]
    room = pasted.room(
        tmp_path, ROOM, router=[starting((None, None)), *router],
        p0=engine("prefill", 30000, 8998, *many, *got_info(601, ROOM), *after),
        p1=engine("prefill", 30001, 8999, *many, *after),
        d0=engine("decode", 30002, 8998, *many, sending(601, ROOM), decode_timed_out(621, ROOM), *after),
    )  # fmt: skip
    assert (room.prefill_requested, room.prefill_contacted, room.decode) == ("p1", "p0", "d0")
    assert room.cause is not None
    assert room.cause.code == "PD201"
