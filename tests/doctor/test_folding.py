"""Causes first, consequences after them and named as such; nothing is lost."""

from __future__ import annotations

import dataclasses
import sys
from graphlib import TopologicalSorter

from pdctl.catalogue.book import ENTRIES
from pdctl.catalogue.entry import Needs, Severity
from pdctl.doctor import check_run, explanations
from pdctl.doctor.check import Facts, Finding, finding
from pdctl.fleet.observations import Ended, Holder, SignatureLine
from tests.cases import for_each
from tests.doctor.fixtures import recorded as real
from tests.doctor.fixtures.live import queued, swapped_roles
from tests.doctor.fixtures.recorded import canaried, healthy

NO_ANSWER = "decode-0: no answer within 20 s"


def is_consequence(found: Finding) -> bool:
    return any(line.startswith(explanations.EXPLAINED) for line in found.evidence)


def folded(facts: Facts) -> list[tuple[str, str, bool]]:
    return [(one.code, one.instance, is_consequence(one)) for one in check_run.run(facts).findings]


def test_a_null_port_explains_the_pair_that_failed_and_what_it_left_behind() -> None:
    facts = real.null(healthy(), "prefill-0", "prefill-1")
    left = queued("prefill-1", prefill_bootstrap_queue_reqs=1.0).queues
    facts = canaried(facts, canaries=real.cells({("prefill-1", "decode-0"): NO_ANSWER}), queues=left)
    assert folded(facts) == [
        ("PD201", "prefill-1", False),
        ("PD610", "prefill-1", True),
        ("PD613", "prefill-1", True),
        ("PD605", "prefill-1", True),
        ("PD605", "decode-0", True),
    ]
    said = [one.evidence[0] for one in check_run.run(facts).findings[1:]]
    assert set(said) == {"explained by PD201 bootstrap-port-null at prefill-1"}


def test_who_sent_a_canary_is_not_told_to_send_one() -> None:
    facts = canaried(canaries=real.cells({("prefill-1", "decode-0"): NO_ANSWER}))
    told = {one.code: one.fix for one in check_run.run(facts).findings}
    assert "PD605" in told
    assert told["PD605"] == told["PD610"]
    assert told["PD605"].startswith("pdctl trace-room ")


def test_a_failed_pair_that_nothing_explains_is_a_cause() -> None:
    facts = canaried(canaries=real.cells({("prefill-1", "decode-0"): NO_ANSWER}))
    assert folded(facts)[0] == ("PD610", "prefill-1", False)


def test_the_cause_of_another_pair_explains_nothing() -> None:
    """prefill-0's wrong port, and prefill-1's failed pair."""
    facts = real.worker(healthy(), "prefill-0", bootstrap_port=9999)
    facts = canaried(facts, canaries=real.cells({("prefill-1", "decode-0"): NO_ANSWER}))
    assert ("PD610", "prefill-1", False) in folded(facts)


def test_a_dead_decode_explains_its_column() -> None:
    failed = {
        ("prefill-0", "decode-0"): "decode-0: connection refused",
        ("prefill-1", "decode-0"): "decode-0: connection refused",
    }
    facts = canaried(real.down(healthy(), "decode-0"), canaries=real.cells(failed))
    assert folded(facts)[:2] == [("PD604", "decode-0", False), ("PD610", "decode-0", True)]


def test_open_breakers_are_an_effect() -> None:
    facts = real.routed(real.down(healthy(), "prefill-0"), breakers={real.URLS["prefill-0"]: 1})
    assert folded(facts) == [("PD604", "prefill-0", False), ("PD601", "router", True)]


STOPPED_ROUTER = Holder(4711, "python3 -m pdctl.router", "router", stopped=True)
NOW = 1_795_000_000.0


def silent_router(facts: Facts) -> Facts:
    return real.routed(facts, reached=False, reason="no answer within 4.8 s", ready=None, workers=None, kind="")


def test_a_stopped_router_is_named_as_stopped_and_no_engine_explains_its_silence() -> None:
    facts = real.at_host(silent_router(real.down(healthy(), "prefill-1")), stopped=(STOPPED_ROUTER,))
    found = {(one.code, one.instance): one for one in check_run.run(facts).findings}
    assert found["PD604", "router"].fix == "kill -CONT 4711"
    assert found["PD604", "router"].headline == "router does not answer: its process (pid 4711) is stopped"
    assert found["PD602", "router"].evidence[0] == "explained by PD604 instance-down at router"


def test_a_killed_router_is_named_with_its_recorded_end() -> None:
    ended = Ended("router", "was killed by SIGKILL", NOW, log="router.log", next="; restarts in 1.3 s")
    facts = real.change(silent_router(real.down(healthy(), "prefill-1")), ended=(ended,))
    found = {(one.code, one.instance): one for one in check_run.run(facts).findings}
    said = found["PD604", "router"]
    assert said.headline == "router is not running: it was killed by SIGKILL; restarts in 1.3 s"
    assert said.severity is Severity.ERROR
    assert found["PD602", "router"].evidence[0] == "explained by PD604 instance-down at router"


def test_a_router_that_is_silent_for_an_unknown_reason_is_not_explained_by_an_engine() -> None:
    facts = silent_router(real.down(healthy(), "prefill-1"))
    assert ("PD602", "router", False) in folded(facts)


def of_line(code: str, instance: str, at: float, about: str = "") -> SignatureLine:
    return SignatureLine(instance, code, f"{instance}.log:7", "what it wrote", None, about=about, at=at)


def test_a_line_of_the_router_about_a_worker_is_a_finding_about_that_worker() -> None:
    facts = real.logged(of_line("PD604", "router", NOW, real.URLS["prefill-1"]))
    (found,) = [one for one in check_run.run(facts).findings if one.code == "PD604"]
    assert found.instance == "prefill-1"
    assert found.headline.startswith("the log of router has a line that points to instance-down of prefill-1, at ")
    assert ("PD602", "router", False) in folded(silent_router(facts))


def test_a_line_about_one_instance_explains_nothing_at_another() -> None:
    line = of_line("PD604", "router", NOW, real.URLS["decode-0"])
    facts = real.change(real.silent(healthy(), "prefill-1"), logs=(line,), asked=(*healthy().asked, Needs.LOG))
    assert ("PD205", "prefill-1", False) in folded(facts)


@for_each(
    ("cause_at", "explains"),
    [(NOW, True), (NOW + 20, True), (NOW + 43, False), (NOW - 50, True), (NOW - 300, False)],
)
def test_a_line_explains_only_what_was_seen_at_its_time(cause_at: float, explains: bool) -> None:
    line = of_line("PD604", "router", cause_at, real.URLS["prefill-1"])
    facts = real.logged(line, of_line("PD715", "router", NOW), names=("router",))
    assert ("PD715", "router", explains) in folded(facts)


def test_an_end_does_not_explain_what_was_seen_before_it_nor_through_what_it_explains() -> None:
    """PD706 follows from PD205, and that from PD604: still not if the instance died later."""
    dead = real.down(healthy(), "prefill-1")
    ended = Ended("prefill-1", "was killed by SIGKILL", NOW + 43, log="prefill-1.log")
    unreachable = dataclasses.replace(of_line("PD205", "decode-0", NOW), seconds=60.0, count=9)
    for at, explained in ((NOW, False), (NOW + 60, True)):
        lines = (unreachable, of_line("PD706", "prefill-0", at))
        facts = real.change(dead, ended=(ended,), logs=lines, asked=(*dead.asked, Needs.LOG))
        (found,) = [one for one in check_run.run(facts).findings if one.code == "PD706"]
        assert any("PD604" in line for line in found.evidence) is explained


def test_roles_come_before_what_follows_from_them() -> None:
    assert [one[:2] for one in folded(swapped_roles()) if not one[2]] == [("PD301", "prefill-1"), ("PD301", "decode-0")]


def test_an_accepted_cause_explains_nothing() -> None:
    from pdctl.doctor import selection

    facts = canaried(
        real.null(healthy(), "prefill-0", "prefill-1"), canaries=real.cells({("prefill-1", "decode-0"): NO_ANSWER})
    )
    accepted = selection.read(suppressions=[selection.suppression("PD201", "being rolled out")])
    report = check_run.run(facts, accepted)
    assert {one.code: is_consequence(one) for one in report.findings}["PD610"] is False


def test_a_crowd_with_one_fix_is_one_finding_that_names_them() -> None:
    facts = real.change(healthy(), router=None)
    one: Finding = check_run.run(real.null(healthy(), "prefill-0", "prefill-1")).findings[0]
    many = [dataclasses.replace(one, instance=f"prefill-{number}") for number in range(20)]
    (told,) = explanations.fold(many, facts)
    assert told.instance == ""
    assert told.headline.endswith("(and 19 more alike)")
    assert "prefill-0, prefill-1, " in told.evidence[0]
    assert "prefill-19" in told.evidence[0]
    assert len(explanations.fold(many[:8], facts)) == 8


def test_thousands_of_servers_that_are_down_are_told_in_time_that_grows_with_their_number() -> None:
    """Counted in calls: a pair of a cause and an effect each would be four times as many for twice the servers."""

    def calls(servers: int) -> int:
        facts, found = healthy(), []
        for number in range(servers):
            name = f"prefill-{number}"
            told = (finding(code, name, observed="refused") for code in ("PD604", "PD409"))
            found += [dataclasses.replace(one, fix=name) for one in told]
        count = 0

        def counted(_frame: object, event: str, _arg: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(counted)
        try:
            told = explanations.fold(found, facts)
        finally:
            sys.setprofile(None)
        assert len(told) == 2 * servers
        named = "explained by PD604 instance-down at prefill-0, PD604 instance-down at prefill-1 and"
        assert told[servers + 1].evidence[0] == f"{named} {servers - 2} more"
        return count

    assert calls(400) < 3 * calls(200)


def test_rows_name_known_codes_and_go_round_in_no_circle() -> None:
    known = {entry.code for entry in ENTRIES}
    graph: dict[str, set[str]] = {}
    for row in explanations.ROWS:
        graph.setdefault(row.effect, set()).update(row.causes)
    assert {code for row in explanations.ROWS for code in (row.effect, *row.causes)} <= known
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def exception(at: float, rooms: frozenset[int] = frozenset()) -> SignatureLine:
    """One wrong request among thousands that were answered."""
    return dataclasses.replace(of_line("PD206", "decode-0", at), answered=1000, rooms=rooms)


@for_each("aborted_at", [NOW - 240, NOW - 25, NOW - 1, NOW + 10])
def test_one_stray_request_explains_no_abort_of_another_room(aborted_at: float) -> None:
    aborts = [dataclasses.replace(of_line("PD706", name, aborted_at), rooms=frozenset({7})) for name in real.URLS]
    report = check_run.run(real.logged(exception(NOW), *aborts))
    found = [one for one in report.findings if one.code == "PD706"]
    assert len(found) == len(real.URLS)
    assert not any(map(is_consequence, found))


@for_each(("room", "aborted_at", "explained"), [(7, NOW + 1, True), (8, NOW + 1, False), (7, NOW - 25, False)])
def test_a_stray_request_explains_what_became_of_its_own_room(room: int, aborted_at: float, explained: bool) -> None:
    abort = dataclasses.replace(of_line("PD706", "prefill-0", aborted_at), rooms=frozenset({room}))
    facts = real.logged(exception(NOW, frozenset({7})), abort, names=("decode-0", "prefill-0"))
    assert ("PD706", "prefill-0", explained) in folded(facts)


@for_each(("aborted_at", "explained"), [(NOW - 25, False), (NOW, True), (NOW + 600, True)])
def test_a_wrong_setting_explains_nothing_that_came_before_its_line(aborted_at: float, explained: bool) -> None:
    facts = real.logged(of_line("PD206", "decode-0", NOW), of_line("PD706", "prefill-0", aborted_at))
    assert ("PD706", "prefill-0", explained) in folded(facts)


def test_a_cause_explains_no_room_but_its_own_where_both_name_theirs() -> None:
    cause = dataclasses.replace(of_line("PD205", "decode-0", NOW), rooms=frozenset({7}), count=9)
    for room, explained in ((7, True), (8, False)):
        abort = dataclasses.replace(of_line("PD706", "prefill-0", NOW + 5), rooms=frozenset({room}))
        assert ("PD706", "prefill-0", explained) in folded(real.logged(cause, abort))
