"""Every room of every recording: what trace says is what happened, or nothing where no line tells."""

from __future__ import annotations

from tests.cases import for_each
from tests.trace.recordings import SCENARIOS, tracer, truth

CASES = [(scenario, room) for scenario in SCENARIOS for room in truth(scenario)]
FIELDS = ("prefill_requested", "prefill_contacted", "decode", "outcome", "phase_reached", "cause")
SILENT = {"outcome": "unknown"}  # how a field says that nothing is known; None else


def told(scenario: str, room: str, without: str = "") -> dict[str, str | None]:
    found = tracer(scenario, without).trace(int(room))
    return {
        "prefill_requested": found.prefill_requested,
        "prefill_contacted": found.prefill_contacted,
        "decode": found.decode,
        "outcome": found.outcome.value,
        "phase_reached": found.phase_reached.value if found.phase_reached else None,
        "cause": found.cause.code if found.cause else None,
    }


@for_each(("scenario", "room"), CASES)
def test_what_is_said_is_what_happened(scenario: str, room: str) -> None:
    happened = truth(scenario)[room]
    said = told(scenario, room)
    wanted = {field: SILENT.get(field) if field in happened.get("untold", ()) else happened[field] for field in FIELDS}
    assert said == wanted


@for_each(("scenario", "room"), CASES)
def test_what_is_not_said_is_missed_aloud(scenario: str, room: str) -> None:
    found = tracer(scenario).trace(int(room))
    happened = truth(scenario)[room]
    for field in ("prefill_requested", "prefill_contacted", "decode"):
        if happened[field] and getattr(found, field) is None:
            assert found.missing_evidence
            assert all(one.enable_with for one in found.missing_evidence)


@for_each(("scenario", "room"), CASES)
def test_without_the_routers_log_less_is_said_and_nothing_else(scenario: str, room: str) -> None:
    happened = truth(scenario)[room]
    said = told(scenario, room, without="router")
    for field in ("prefill_requested", "prefill_contacted", "decode"):
        assert said[field] in (happened[field], None)
    assert said["outcome"] in (happened["outcome"], "unknown", "incomplete")


def test_every_recording_has_rooms_of_which_something_is_known() -> None:
    """Recordings without a single room have none on the wire either; they are there to be read without harm."""
    assert {scenario for scenario in SCENARIOS if not truth(scenario)} == {
        "1p1d-dp-attention-crash-debug-sgl058", "1p1d-spawn-mixed-sgl058", "2p1d-hicache-crash-info-sgl0522",
    }  # fmt: skip
