"""Releases that the catalogue's texts name are those of the tables, which were read from the wheels."""

from __future__ import annotations

import re

from pdctl.catalogue import book
from pdctl.catalogue.entry import Entry
from pdctl.engines import versions
from pdctl.engines.base import Speaker
from pdctl.engines.row_matching import ROWS
from pdctl.engines.sglang import behaviour
from pdctl.engines.sglang.arguments import argument, choices
from pdctl.engines.sglang.endpoints import ANSWERS
from pdctl.engines.sglang.faults import FAULTS, KnownFault
from pdctl.engines.sglang.refusals import RULES
from pdctl.engines.versions import SGLANG, Span, Version, spell
from tests.cases import for_each


def fault(name: str) -> KnownFault:
    return next(each for each in FAULTS if each.id == name)


def until(what: KnownFault | Span) -> str:
    assert what.until is not None
    return spell(what.until)


def last(what: KnownFault) -> str:
    return spell(max(version for version in SGLANG if version < what.until and len(version) == 3))


def first(has: object) -> str:
    """The first release for which a table has something."""
    assert callable(has)
    return spell(next(version for version in SGLANG if has(version)))


def counted(version: Version) -> bool:
    return any(each.status == 503 and each.question == "shape" and each.span.holds(version) for each in ANSWERS)


def first_row(words: str) -> str:
    """The first release with this line of SGLang's."""
    found = [row.span.since for row in ROWS if row.speaker is Speaker.SGLANG and words in row.pattern.replace("\\", "")]
    return spell(min(found))


def until_row(name: str) -> str:
    (row,) = (row for row in ROWS if row.id == name)
    return until(row.span)


def since_row(name: str) -> str:
    (row,) = (row for row in ROWS if row.id == name)
    return spell(row.span.since)


def before(what: Span) -> str:
    assert what.until is not None
    return spell(max(version for version in SGLANG if version < what.until and len(version) == 3))


CHECKSUM, BACKEND = "disaggregation-enable-kv-checksum", "disaggregation-transfer-backend"
DEADLINE, LONG = fault("deadline-before-completion"), fault("long-prompt-unwritten-pages")
ABORT = fault("abort-kills-bootstrap-thread")
(STAGING,) = versions.spans("environment", "SGLANG_DISAGG_STAGING_BUFFER")
(DEFERRED,) = versions.spans("environment", "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE")
PAIR_TP = next(rule.span for rule in RULES if rule.code == "pair-tp-divides")
(RUST,) = versions.spans("environment", "SGLANG_RUST_SERVER")
NAMED = [
    ("PD209", f'not fully registered yet" ({first(counted)} and later'),
    ("PD209", f"the count is in the answer from {first(counted)}"),
    ("PD209", f"before {until(fault('one-registration-attempt'))}: one attempt only"),
    ("PD211", f"From {until(behaviour.STALE_RANKS_KEPT_BEHIND_A_SERVICE)} a decode also drops"),
    ("PD212", f"Before {until(behaviour.WILDCARD_REGISTERS_ITSELF)} a wildcard"),
    ("PD212", f"SGLang before {until(behaviour.WILDCARD_REGISTERS_ITSELF)}"),
    ("PD219", f"SGLang {spell(RUST.since)} and later"),
    ("PD406", f"mooncake_tcp ({first(lambda version: 'mooncake_tcp' in choices(BACKEND, version))} and later)"),
    ("PD407", f"From {spell(behaviour.NIXL_READS_IB_DEVICE.since)} on UCX_NET_DEVICES, if set,"),
    ("PD409", f"before {until(fault('one-failure-blacklists'))} for good; later releases probe it again"),
    ("PD411", f"before {spell(behaviour.NIXL_READS_IB_DEVICE.since)}, with NIXL"),
    ("PD505", f"From {spell(LONG.since)} to {last(LONG)} prefill aborted it"),
    ("PD611", f"--{CHECKSUM} on both ({first(lambda version: argument(CHECKSUM, version))} and later)"),
    ("PD611", f"From {until(fault('pages-reused-under-write'))} on decode keeps the pages"),
    ("PD612", f"With NIXL before {until(fault('failure-not-told'))} decode is not told"),
    ("PD612", f"SGLang with NIXL before {until(fault('failure-not-told'))}"),
    ("PD613", f"With NIXL before {until(fault('bootstrap-waits-for-ever'))} prefill has no bootstrap timeout"),
    ("PD708", f"NIXL before {until(fault('failure-not-told'))}"),
    ("PD708", f"NIXL from {spell(DEADLINE.since)} to {last(DEADLINE)} the deadline"),
    ("PD710", f"From {spell(ABORT.since)} to {last(ABORT)} decode's own abort"),
    ("PD710", f"update SGLang to {until(ABORT)} or later"),
    ("PD711", f"compared since {spell(behaviour.ROOM_ZERO_IS_UNWRITTEN.since)}"),
    ("PD711", f"since {until(fault('pages-reused-under-write'))}"),
    ("PD711", f"Releases before {first_row('Context corruption detected')} do not compare"),
    ("PD711", f"SGLang {until(fault('pages-reused-under-write'))} or newer"),
    ("PD711", f"in {spell(DEFERRED.since)} and 0.5.20 if SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE is set"),
    ("PD211", f"from {until(behaviour.STALE_RANKS_KEPT_BEHIND_A_SERVICE)} on it recovers"),
    ("PD302", f"Releases before {spell(behaviour.PAGE_SIZES_COMPARED.since)} do not compare"),
    ("PD302", f"compared since {spell(behaviour.PAGE_SIZES_COMPARED.since)}"),
    ("PD303", f"From {first_row('KV cache dtype mismatch')} decode refuses"),
    ("PD303", f"up to {before(behaviour.KV_DTYPE_COMPARED_BY_WORD)} it compares the flag as written"),
    ("PD303", f"Before {first_row('KV cache dtype mismatch')} nothing is compared"),
    ("PD303", f"compared since {first_row('KV cache dtype mismatch')}"),
    ("PD304", f"{since_row('kv-layout-mismatch')} compares a layout name"),
    ("PD304", f"compared in {since_row('kv-layout-mismatch')} for models"),
    ("PD305", f"gathers the heads first ({spell(STAGING.since)} and later)"),
    ("PD306", f"sliced from {spell(behaviour.RECURRENT_STATE_CUT_BY_MOONCAKE.since)} (Mooncake)"),
    ("PD306", f"and {spell(behaviour.RECURRENT_STATE_CUT_BY_NIXL.since)} (NIXL)"),
    ("PD306", f"sliding windows from {spell(behaviour.WINDOW_STATE_CUT.since)}"),
    ("PD310", f'{first_row("Generation-less ABORT_ACK")} and later warn of a "Generation-less'),
    ("PD313", f"before {until(behaviour.ONLY_ROUND_ROBIN_FOLLOWS_ROOM)} it alone followed the room"),
    ("PD313", f"effect on decode before {until(behaviour.ONLY_ROUND_ROBIN_FOLLOWS_ROOM)} only"),
    ("PD316", f"since {until(PAIR_TP)} nothing checks it"),
    ("PD316", f"checked up to {before(PAIR_TP)} only"),
    ("PD319", f"before {until(fault('samples-end-prefill'))} with NIXL"),
    ("PD319", f"every SGLang up to {spell(versions.NEWEST)}"),
    ("PD324", f"--dcp-size itself is in {first(lambda version: argument('dcp-size', version))} and later"),
    ("PD325", f"{first(lambda version: argument('disaggregation-decode-allocation-policy', version))} and later"),
    ("PD326", f"With {first(lambda version: argument(CHECKSUM, version))} and 0.5.22 a decode"),
    ("PD326", f"From {first_row('metadata buffers')} on the prefill logs"),
    ("PD326", f"{first(lambda version: argument(CHECKSUM, version))} and later"),
    ("PD505", f"SGLang {spell(LONG.since)} to {last(LONG)}; a workload"),
    ("PD611", f"protections came with {until(fault('pages-reused-under-write'))}"),
    ("PD613", f"NIXL before {until(fault('bootstrap-waits-for-ever'))} worst"),
    ("PD617", f'before {until_row("prefill-losing")} also "Losing connection"'),
    ("PD710", f"common from {spell(ABORT.since)} to {last(ABORT)}"),
    ("PD710", f"From {first_row('bootstrap_thread died')} on it says so"),
    ("PD716", f"from {spell(behaviour.ROOM_ZERO_IS_UNWRITTEN.since)} decode takes a zero"),
]


# Dates in texts that no table holds: what was read in the source of that release, or measured with it.
READ_THERE = [
    ("PD306", "reported for 0.5.16 and nightlies"),
    ("PD312", "up to 0.5.17"),
    ("PD502", "pools of Mamba models since 0.5.3.post3"),
    ("PD315", "on the first request (0.5.8 and later)"),
    ("PD324", "topology`, from 0.5.17 on"),
    ("PD324", "0.5.17 and later; --dcp-size"),
    ("PD326", "0.5.22 a decode"),
    ("PD401", "Releases before 0.5.9 accept a wrong name"),
    ("PD401", "silent before 0.5.9, refused since"),
    ("PD604", "sglang 0.5.23 that keeps a prefix cache"),
    ("PD711", "0.5.20 if SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"),
    ("PD712", "from 0.5.4 on it can end the DP controller"),
]
RELEASE = re.compile(r"(?<![\w.-])0\.[5-9]\.\d+(?:\.post\d+)?")
WHOLE = re.compile(rf"{spell(versions.OLDEST)} to {spell(versions.NEWEST)}")  # all that was read


def undated(text: str, known: list[str]) -> list[str]:
    """The releases that the text names outside of the words in `known`."""
    spans = [match.span() for words in (*map(re.escape, known), WHOLE.pattern) for match in re.finditer(words, text)]
    return [
        text[max(0, found.start() - 40) : found.end() + 20]
        for found in RELEASE.finditer(text)
        if not any(start <= found.start() and found.end() <= end for start, end in spans)
    ]


@for_each("entry", book.ENTRIES, ids=lambda entry: entry.code)
def test_no_text_names_a_release_that_neither_a_table_nor_a_reading_stands_for(entry: Entry) -> None:
    known = [words for code, words in (*NAMED, *READ_THERE) if code == entry.code]
    for text in (entry.headline, entry.explain, entry.fix, entry.versions):
        assert undated(text, known) == []
    names = {spell(version) for version in SGLANG}
    assert {found for text in (entry.explain, entry.fix, entry.versions) for found in RELEASE.findall(text)} <= names


@for_each(("code", "words"), READ_THERE, ids=[f"{code}-{words[:24]}" for code, words in READ_THERE])
def test_a_reading_stands_for_a_text_that_is_there(code: str, words: str) -> None:
    entry = book.find_entry(code)
    assert any(words in text for text in (entry.explain, entry.versions, entry.fix)), words


@for_each(("code", "words"), NAMED, ids=[f"{code}-{words[:24]}" for code, words in NAMED])
def test_a_text_names_the_release_of_the_table(code: str, words: str) -> None:
    entry = book.find_entry(code)
    assert any(words in text for text in (entry.explain, entry.versions, entry.fix)), (words, entry.explain)
