"""A merged stream of a recorded deployment gives the verdicts its separate files give, or says that it cannot."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from pdctl.trace.deployment_report import SourceKind
from pdctl.trace.diagnose import diagnose
from pdctl.trace.room import RoomOutcome
from pdctl.trace.tracer import Tracer
from tests.cases import for_each
from tests.logs import merged
from tests.trace.recordings import SCENARIOS, diagnosis, library, logs, tracer, truth

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pdctl.trace.deployment_report import Diagnosis

FORMS = (*merged.NAMED, *merged.PASTED)
# Each form over one recording, a recording of each course in some form; all pairs:
# `pytest -m heavy tests/trace/test_merged.py`.
BROAD = ("1p1d-decode-killed-debug-sgl058", "1p1d-page-size-debug-sgl0523")
NAMELESS = (*BROAD, "2p1d-healthy-debug-sgl058", "2p1d-swapped-ports-info-log-requests-sgl0523")
PAIRS = [(BROAD[0], form) for form in FORMS]
COURSES = {re.split("-(?:debug|info)", scenario)[0]: scenario for scenario in SCENARIOS if scenario != BROAD[0]}
PAIRS += [(scenario, FORMS[at % len(FORMS)]) for at, scenario in enumerate(COURSES.values())]
ALL = [(scenario, form) for scenario in SCENARIOS for form in FORMS if (scenario, form) not in PAIRS]


def told(tracer: Tracer, found: Diagnosis, scenario: str) -> dict[str, Any]:
    """Everything that is said, with each instance called by its role and port."""
    who = {name: (one.role, one.port) for name, one in tracer.deployment.instances.items()}
    rooms = {}
    for room in truth(scenario):
        one = tracer.trace(int(room))
        pair = (one.prefill_requested, one.prefill_contacted, one.decode)
        rooms[room] = (
            *(who.get(name or "") for name in pair), one.outcome, one.phase_reached, one.cause and one.cause.code,
            one.cause and who.get(one.cause.instance),
        )  # fmt: skip
    return {
        "instances": sorted(map(str, who.values())),
        # collectors keep whole seconds, which order rooms otherwise
        "deaths": sorted((who[one.instance], one.code, int(one.at), sorted(one.rooms)) for one in found.deaths),
        "findings": sorted((one.code, str(who.get(one.instance)), len(one.rooms)) for one in found.findings),
        "tally": (dict(found.tally.rooms), found.tally.unexplained),
        "rooms": rooms,
    }


@cache
def apart(scenario: str) -> dict[str, Any]:
    return told(tracer(scenario), diagnosis(scenario), scenario)


def together(stream: Path, scenario: str) -> dict[str, Any]:
    read = library([str(stream)])
    return told(Tracer(read), diagnose(read), scenario)


def check(scenario: str, form: Callable[..., str], folder: Path) -> None:
    stream = folder / "all.log"
    stream.write_text(form(merged.read(logs(scenario))))
    assert together(stream, scenario) == apart(scenario)


@pytest.mark.parametrize(("scenario", "form"), PAIRS, ids=lambda each: getattr(each, "__name__", each))
def test_a_merged_stream_gives_the_verdicts_of_the_separate_files(
    scenario: str, form: Callable[..., str], tmp_path: Path
) -> None:
    check(scenario, form, tmp_path)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@for_each(("scenario", "form"), ALL, ids=lambda each: getattr(each, "__name__", each))
def test_every_recording_in_every_form(scenario: str, form: Callable[..., str], tmp_path: Path) -> None:
    check(scenario, form, tmp_path)


def test_what_the_next_process_prints_first_is_no_sign_of_life_of_the_one_before(tmp_path: Path) -> None:
    """Lines without a time, older than the death: the dead prefill's last word is not among them."""
    check("2p1d-prefill-killed-info-sgl0522", merged.cat_docker, tmp_path)


def test_the_processes_of_a_unit_are_one_instance(tmp_path: Path) -> None:
    for scenario in BROAD[:2]:
        stream = tmp_path / f"{scenario}.log"
        stream.write_text(merged.journal_of_children(merged.read(logs(scenario)), lambda name: name))
        assert together(stream, scenario) == apart(scenario)


def test_processes_of_two_prefills_under_one_name_give_no_verdict(tmp_path: Path) -> None:
    """A scheduler of either could be the other one's: no pair is named, least of all a wrong one."""
    scenario = "2p1d-swapped-ports-info-log-requests-sgl0523"
    stream = tmp_path / "all.log"
    stream.write_text(merged.journal_of_children(merged.read(logs(scenario)), lambda name: "python3"))
    read = library([str(stream)])
    found = diagnose(read)
    assert not found.findings
    assert not found.deaths
    assert any(one.kind is SourceKind.MIXED for one in found.sources)
    reader = Tracer(read)
    for room in truth(scenario):
        assert reader.trace(int(room)).cause is None
        assert reader.trace(int(room)).wrong_prefill is None


@pytest.mark.parametrize("scenario", NAMELESS)
def test_lines_that_alternate_without_names_give_no_verdict(scenario: str, tmp_path: Path) -> None:
    stream = tmp_path / "all.log"
    stream.write_text(merged.nameless(merged.read(logs(scenario))))
    read = library([str(stream)])
    found = diagnose(read)
    assert [one.kind for one in found.sources] == [SourceKind.MIXED]
    assert any("kubectl logs --prefix" in one.enable_with for one in found.unknowns)
    assert not found.findings
    assert all("one of the processes" in one.why for one in found.deaths)
    reader = Tracer(read)
    for room in truth(scenario):
        one = reader.trace(int(room))
        if not one.events:
            continue
        assert one.outcome in (RoomOutcome.FAILED, RoomOutcome.UNKNOWN)
        assert (one.cause, one.prefill_requested, one.prefill_contacted, one.decode) == (None, None, None, None)
        assert any("kubectl logs --prefix" in missing.enable_with for missing in one.missing_evidence)
