"""Releases that the catalogue's texts name are those of the tables, which were read from the wheels."""

from __future__ import annotations

from pdctl.catalogue import book
from pdctl.engines import versions
from pdctl.engines.sglang import behaviour
from pdctl.engines.sglang.arguments import argument, choices
from pdctl.engines.sglang.endpoints import ANSWERS
from pdctl.engines.sglang.faults import FAULTS, KnownFault
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


CHECKSUM, BACKEND = "disaggregation-enable-kv-checksum", "disaggregation-transfer-backend"
DEADLINE, LONG = fault("deadline-before-completion"), fault("long-prompt-unwritten-pages")
ABORT = fault("abort-kills-bootstrap-thread")
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
    ("PD407", f"From {spell(behaviour.NIXL_READS_IB_DEVICE.since)} a set UCX_NET_DEVICES"),
    ("PD409", f"before {until(fault('one-failure-blacklists'))} for good, later it probes"),
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
    ("PD716", f"from {spell(behaviour.ROOM_ZERO_IS_UNWRITTEN.since)} decode takes a zero"),
]


@for_each(("code", "words"), NAMED, ids=[f"{code}-{words[:24]}" for code, words in NAMED])
def test_a_text_names_the_release_of_the_table(code: str, words: str) -> None:
    entry = book.find_entry(code)
    assert any(words in text for text in (entry.explain, entry.versions, entry.fix)), (words, entry.explain)
