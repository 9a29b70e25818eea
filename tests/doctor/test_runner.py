"""Every code in every report, decided or with the reason why not."""

from __future__ import annotations

from pdctl.catalogue.book import ENTRIES
from pdctl.catalogue.entry import Needs
from pdctl.doctor import check_run
from pdctl.doctor.check import Check, Checked, CheckStatus, Depth, Facts, Skipped, Unknown, finding
from pdctl.doctor.check_run import CHECKS
from pdctl.doctor.selection import EVERYTHING, read
from tests.doctor.fixtures import recorded as real
from tests.doctor.fixtures.live import FIXTURES
from tests.doctor.fixtures.recorded import canaried, healthy

PAGE = "PD302"
ASKED = Facts(asked=(Needs.TOPOLOGY, Needs.ENDPOINT))


def verdict(*checks: Check) -> Checked:
    return {one.code: one for one in check_run.run(ASKED, checks=checks).checks}[PAGE]


def says(*needs: Needs, **outcome: object) -> Check:
    return Check(PAGE, needs or (Needs.TOPOLOGY,), lambda _: outcome["said"])  # type: ignore[arg-type,return-value]


GOOD, SKIPPED, UNKNOWN = [], Skipped("does not arise"), Unknown("decode-0 is down")
BAD = [finding(PAGE, "decode-0", observed="16", expected="1", evidence=("one",))]


def test_every_code_appears_once_whatever_is_known() -> None:
    for facts in (Facts(), healthy(), canaried()):
        assert [one.code for one in check_run.run(facts).checks] == [entry.code for entry in ENTRIES]


def test_a_reason_stands_with_everything_that_was_not_decided() -> None:
    for make, _ in FIXTURES.values():
        for one in check_run.run(make()).checks:
            assert bool(one.reason) is (one.status in (CheckStatus.SKIPPED, CheckStatus.UNKNOWN)), one


def test_what_cannot_be_seen_says_why() -> None:
    checks = {one.code: one for one in check_run.run(canaried()).checks}
    for entry in ENTRIES:
        if entry.unseen:
            why = f"not checkable, because {entry.unseen}"
            assert checks[entry.code] == Checked(entry.code, CheckStatus.SKIPPED, why)


def test_several_checks_of_one_code() -> None:
    for checks, status in (
        ([GOOD, BAD], CheckStatus.FINDING),
        ([GOOD, UNKNOWN], CheckStatus.UNKNOWN),
        ([UNKNOWN, BAD], CheckStatus.FINDING),
        ([SKIPPED, GOOD], CheckStatus.OK),
        ([SKIPPED], CheckStatus.SKIPPED),
    ):
        assert verdict(*(says(said=one) for one in checks)).status is status
    assert verdict(says(said=UNKNOWN), says(said=GOOD)).reason == "decode-0 is down"


def test_what_was_not_asked_for_is_skipped_before_it_is_judged() -> None:
    def never(_: Facts) -> list[object]:
        raise AssertionError

    check = Check(PAGE, (Needs.CANARY,), never)  # type: ignore[arg-type]
    assert verdict(check) == Checked(PAGE, CheckStatus.SKIPPED, "needs real requests: --canary")


def test_one_instance_seen_twice_is_one_finding_with_both_as_evidence() -> None:
    more = [finding(PAGE, "decode-0", observed="sixteen", expected="1", evidence=("two",))]
    checks = (says(said=more), says(Needs.TOPOLOGY, Needs.ENDPOINT, said=BAD))
    (one,) = check_run.run(ASKED, checks=checks).findings
    assert (one.observed, one.evidence) == ("16", ("one", "two")), "the check that looks at more comes first"


def test_two_faults_one_check_sees_at_one_instance_stay_two() -> None:
    faults = [finding("PD317", "decode-0", observed=word, fault=word) for word in ("a", "b")]
    check = Check("PD317", (Needs.TOPOLOGY,), lambda _: faults)
    assert len(check_run.run(ASKED, checks=(check,)).findings) == 2


def test_needs_of_a_selection() -> None:
    assert check_run.needed(EVERYTHING, Depth.STATIC) == {Needs.TOPOLOGY, Needs.LOG}
    assert check_run.needed(EVERYTHING, Depth.LIVE) == set(Needs) - {Needs.CANARY}
    assert check_run.needed(EVERYTHING, Depth.CANARY) == set(Needs)
    assert check_run.needed(read(select=["PD803"]), Depth.LIVE) == {Needs.ENDPOINT, Needs.LOG}
    assert Needs.CANARY not in check_run.needed(read(ignore=["PD319", "PD505", "PD605", "PD61"]), Depth.CANARY)


def test_the_order_is_the_same_each_time() -> None:
    facts = real.info(real.null(healthy(), "prefill-0", "prefill-1"), "decode-0", page_size=16, context_length=512)
    first, second = check_run.run(facts), check_run.run(real.change(facts))
    assert first.findings == second.findings
    assert [one.code for one in first.findings] == ["PD201", "PD302", "PD307"]


def test_codes_of_checks_are_the_catalogues() -> None:
    known = {entry.code: entry for entry in ENTRIES}
    for check in CHECKS:
        assert check.needs, check
        assert not known[check.code].unseen, check.code
