"""Every live, host, canary and log code: raised by the smallest change to real answers, and quiet without it."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING

from pdctl.doctor import check_run
from pdctl.doctor.check import CheckStatus, Skipped, Unknown
from pdctl.doctor.check_run import CHECKS
from tests.cases import for_each
from tests.doctor.fixtures import recorded
from tests.doctor.fixtures.live import FIXTURES, FULL, LOGGED, limited
from tests.doctor.fixtures.recorded import canaried, healthy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.doctor.check import Facts, Finding, Report

    Pair = tuple[Callable[[], Facts], Callable[[], Facts]]

CASES = [*FIXTURES.items(), *((f"{code}-log", pair) for code, pair in LOGGED.items() if FIXTURES[code] is not pair)]


@cache
def report(make: Callable[[], Facts]) -> Report:
    """What all checks say of a case's facts, which many codes share as their clean side."""
    return check_run.run(make())


def found(code: str, facts: Facts) -> list[Finding]:
    return found_in(check_run.run(facts), code)


def found_in(report: Report, code: str) -> list[Finding]:
    return [one for one in report.findings if one.code == code]


@for_each(("code", "pair"), CASES, ids=[code for code, _ in CASES])
def test_raises_and_stays_quiet(code: str, pair: Pair) -> None:
    code = code.removesuffix("-log")
    raised = found_in(report(pair[0]), code)
    assert raised
    for one in raised:
        assert one.headline
        assert one.fix
        assert one.evidence or code == "PD902"
        assert "{" not in one.headline
        assert one.observed != ""
    assert not found_in(report(pair[1]), code)


@for_each(("code", "pair"), list(FIXTURES.items()), ids=list(FIXTURES))
def test_quiet_means_that_it_looked(code: str, pair: Pair) -> None:
    """The clean side is decided as well, not merely skipped; but for what only trace-room can tell, room by room."""
    status = {check.code: check for check in report(pair[1]).checks}[code]
    assert status.status is CheckStatus.OK or "pdctl trace-room decides it" in status.reason, status


def test_every_live_check_has_a_fixture() -> None:
    judges = [(check.code, getattr(check.judge, "func", check.judge).__module__) for check in CHECKS]
    mine = {code for code, module in judges if module.startswith("pdctl.doctor.live") and not module.endswith(".logs")}
    assert mine <= set(FIXTURES)


def test_a_healthy_deployment_has_no_finding_above_info() -> None:
    assert [one for one in check_run.run(healthy()).findings if one.severity.value != "info"] == []
    assert [one for one in check_run.run(canaried()).findings if one.severity.value != "info"] == []


class Recorder:
    """Facts that remember which of their fields were read."""

    FREE = frozenset({"endpoints", "depth", "asked"})

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> object:
        if name not in self.FREE:
            self.read.add(name)
        return getattr(self._facts, name)


USES = {
    "topology": "topology", "plan": "topology", "manifest": "topology",
    "engines": "endpoint", "bootstraps": "endpoint", "ended": "endpoint", "elsewhere": "endpoint",
    "router": "router", "host": "host", "canaries": "canary", "queues": "canary", "logs": "log", "logged": "log",
}  # fmt: skip


FREE = {"proxy_variable"}  # known without a look at anything


def test_checks_use_what_they_declare_and_nothing_else() -> None:
    used: dict[int, set[str]] = {number: set() for number in range(len(CHECKS))}
    for pair in (*FIXTURES.values(), *LOGGED.values()):
        for make in pair:
            facts = make()
            for number, check in enumerate(CHECKS):
                if all(need in facts.asked for need in check.needs):
                    recorder = Recorder(facts)
                    verdict = check.judge(recorder)  # type: ignore[arg-type]
                    if not isinstance(verdict, Skipped | Unknown):
                        list(verdict)
                    used[number] |= {USES[name] for name in recorder.read - FREE}
    for number, check in enumerate(CHECKS):
        declared = {need.value for need in check.needs}
        assert used[number] <= declared, check
        assert used[number] == declared or not used[number], check


def test_no_look_at_the_embedded_engine_ends_in_a_doubt_of_its_own() -> None:
    """Its release is pdctl's: what is asked of SGLang's releases alone does not apply, and is not unknown."""
    sglang, embedded = canaried(), recorded.info(canaried(), sglang_compat="0.5.23")
    status = {each.code: (each.status, each.reason) for each in check_run.run(sglang).checks}
    for each in check_run.run(embedded).checks:
        assert each.status is not CheckStatus.UNKNOWN or status[each.code][0] is CheckStatus.UNKNOWN, each
    found = next(each for each in check_run.run(embedded).checks if each.code == "PD323")
    assert (found.status, found.reason.partition("; ")[0]) == (
        CheckStatus.SKIPPED,
        "the embedded engine has no such fault",
    )


def test_a_release_that_nobody_told_is_unknown_by_the_instances_name() -> None:
    checks = check_run.run(recorded.info(healthy(), version="nightly")).checks
    told = next(each for each in checks if each.code == "PD323")
    assert told.status is CheckStatus.UNKNOWN
    assert "decode-0" in told.reason


def test_the_limits_of_a_shell_say_nothing_about_those_of_an_engine() -> None:
    facts = recorded.at_host(healthy(), processes=())
    status = {each.code: (each.status, each.reason) for each in check_run.run(facts).checks}
    assert status["PD804"][0] is CheckStatus.UNKNOWN
    assert "prefill-0" in status["PD804"][1]
    assert "pdctl doctor --run RUN" in status["PD804"][1]


def test_descriptors_are_told_by_the_worst_process_of_each_instance() -> None:
    def told(**limits: int) -> list[tuple[str, str, str]]:
        facts = limited(healthy(), files=1000, **limits)
        return [(one.instance, one.observed, one.severity.value) for one in found("PD806", facts)]

    assert told(open=799, closing=127) == []
    assert told(open=800)[0] == ("prefill-0", "800 of 1000 files open", "warning")
    assert told(open=950)[1] == ("prefill-1", "950 of 1000 files open", "error")
    assert told(open=300, closing=128)[2] == ("decode-0", "128 sockets in CLOSE_WAIT", "warning")
    assert [name for name, _, _ in told(open=950)] == ["prefill-0", "prefill-1", "decode-0"]


def test_a_disk_is_full_without_files_left_and_nearly_full_with_little_space() -> None:
    def told(**left: object) -> list[tuple[str, str]]:
        facts = recorded.at_host(healthy(), disks=(dataclasses.replace(FULL, **left),))
        return [(one.observed, one.severity.value) for one in found("PD807", facts)]

    assert told() == [("0 bytes left", "error")]
    assert told(free=1 << 20) == [("1048576 bytes left", "warning")]
    assert told(free=256 << 20) == []
    assert told(free=256 << 20, free_files=0) == [("no file (inode) left", "error")]
    assert told(free=256 << 20, lost="logs are being lost since 10:00:00: Disk quota exceeded (/x)") == [
        ("268435456 bytes left", "error")
    ]


@for_each(("waiting", "at_prefill", "severity"), [(64, 0, "error"), (8, 0, "warning"), (7, 0, ""), (64, 1, "")])
def test_rooms_that_no_prefill_has_hold_a_decode_s_slots(waiting: int, at_prefill: int, severity: str) -> None:
    """Its health check, its router and its metrics say nothing of it."""
    facts = recorded.loads(healthy(), "decode-0", {"decode_transfer_queue_reqs": waiting}, max_running_requests=64)
    for name in ("prefill-0", "prefill-1"):
        facts = recorded.loads(facts, name, {"prefill_inflight_queue_reqs": at_prefill})
    found = [one for one in check_run.run(facts).findings if one.code == "PD703"]
    assert [(one.instance, one.severity.value) for one in found] == ([("decode-0", severity)] if severity else [])
