"""Read aloud at 3 am: every fix is a command or one imperative sentence, every headline an observation.

The catalogue's own words, and every finding that the checks make of the cases which raise each code.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pdctl.catalogue import book
from pdctl.catalogue.entry import Entry, fill
from pdctl.doctor import check_run
from pdctl.doctor.check import Facts, Finding, Skipped, Unknown
from pdctl.doctor.check_run import CHECKS
from tests.cases import for_each
from tests.catalogue import shape
from tests.doctor.fixtures import live, static_bootstrap, static_pairing, static_upkeep

MODULES = (live, static_bootstrap, static_pairing, static_upkeep)
CASES = [(code, module) for module in MODULES for code in module.FIXTURES]


def made(facts: Facts) -> Iterator[Finding]:
    for check in CHECKS:
        if set(check.needs) <= set(facts.asked):
            verdict = check.judge(facts)
            if not isinstance(verdict, (Skipped, Unknown)):
                yield from verdict
    yield from check_run.run(facts).findings


@for_each("entry", book.ENTRIES, ids=lambda entry: entry.code)
def test_the_words_of_an_entry(entry: Entry) -> None:
    assert not shape.of_fix(fill(entry.fix, {})), fill(entry.fix, {})
    assert not shape.of_headline(fill(entry.headline, {})), fill(entry.headline, {})


@for_each(("code", "module"), CASES, ids=[f"{m.__name__.rpartition('.')[2]}-{c}" for c, m in CASES])
def test_the_words_of_every_finding(code: str, module: object) -> None:
    facts = module.FIXTURES[code][0]()  # type: ignore[attr-defined]
    for one in made(facts):
        for said, problem in (
            (one.fix, shape.of_fix(one.fix)),
            (one.headline, shape.of_headline(one.headline)),
            (one.expected, shape.of_expected(one.expected)),
        ):
            assert not problem, f"{one.code}: {said!r}: {problem}"


@for_each(
    "fix",
    [
        "",
        "for example --page-size left to the engine",
        "--max-running-requests 8 or more",
        "set the same --page-size on both roles, for example --page-size 64",
        "leave a gap: end pid 4711",
        "restart prefill-0; then find the room that stays: pdctl rooms",
        "pdctl doctor --canary, with the same arguments",
        "update both roles to SGLang 0.5.23, which keeps pages",
        "did you mean SGLANG_X?",
        "terminationGracePeriodSeconds: 180",
        "set --page-size {size} on both",
        "remove it. It does nothing",
        "remove OBSERVED",
        "start prefill-0 with --host <its own address>",
        "pip install nixl-cu12==<version of the other role>",
    ],
)
def test_what_is_no_fix_is_told_so(fix: str) -> None:
    assert shape.of_fix(fix)


@for_each(
    "headline",
    [
        "decode-0 serves m, prefill-0 serves n",
        "decode-0 has EAGLE, null, null, prefill-0 has null",
        "prefill-1 cannot feed decode-0: decode-0: no answer",
        "SGLANG_X=60s is no whole number",
        "the log of decode-0 has 3 lines that mean decode died",
        "1,691.1 Gb/s of KV cache are needed",
    ],
)
def test_what_is_no_headline_is_told_so(headline: str) -> None:
    assert shape.of_headline(headline)


@for_each("entry", book.ENTRIES, ids=lambda entry: entry.code)
def test_the_prose_of_an_entry(entry: Entry) -> None:
    for said in (fill(entry.headline, {}), entry.explain, entry.versions, entry.unseen):
        assert not shape.of_prose(said), said


@pytest.mark.parametrize(
    "prose",
    [
        "null is replaced by its own port without a word",
        "a flag belongs into the other one",
        "Beside its HTTP port it takes another",
        "it corrupts the cache in silence",
        "an unknown flag ends the start with an error",
        "a typing error",
        "the page list, `pdctl plan` prints it",
    ],
)
def test_what_is_no_plain_english_is_told_so(prose: str) -> None:
    assert shape.of_prose(prose)


@pytest.mark.parametrize("expected", ["", "more room is", "its KV pool holds 8", "GLOO_SOCKET_IFNAME is not set"])
def test_half_a_sentence_is_no_expectation(expected: str) -> None:
    assert shape.of_expected(expected)


@pytest.mark.parametrize("code", ["PD710"])
def test_what_pdctls_own_engine_can_have_asks_for_no_release_of_sglang(code: str) -> None:
    assert "SGLang" not in book.find_entry(code).fix
