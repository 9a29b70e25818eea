"""The tables as tables: no release has two answers to one question, and no question goes unanswered by mistake."""

from __future__ import annotations

from collections import Counter

from pdctl.engines.sglang.arguments import SPELLINGS, words
from pdctl.engines.sglang.endpoints import BASE_FALLBACK, PORTS
from pdctl.engines.sglang.refusals import RULES, rule
from pdctl.engines.versions import SGLANG, V0_5_3, V0_5_8, V0_5_13, V0_5_18, V0_5_23, Version, spell
from tests.cases import for_each


@for_each("version", SGLANG, ids=spell)
def test_one_row_per_release(version: Version) -> None:
    for rows in (
        [row.meaning for row in SPELLINGS if row.span.holds(version)],
        [row.code for row in RULES if row.span.holds(version)],
        [row.purpose for row in PORTS if row.span.holds(version)],
    ):
        assert [name for name, count in Counter(rows).items() if count > 1] == []
    assert len([row for row in BASE_FALLBACK if row.span.holds(version)]) <= 1


def test_every_row_holds_for_some_release() -> None:
    for row in (*SPELLINGS, *RULES, *PORTS, *BASE_FALLBACK):
        assert any(row.span.holds(version) for version in SGLANG), row


@for_each(
    ("meaning", "version", "said"),
    [
        ("attn_dp", V0_5_3, ("--dp-size", "8", "--enable-dp-attention")),
        ("attn_dp", V0_5_18, ("--dp-size", "8", "--enable-dp-attention")),
        ("attn_dp", V0_5_23, ("--attn-dp-size", "8")),
        ("replicas", V0_5_18, ("--dp-size", "8")),
        ("replicas", V0_5_23, ("--dp-size", "8")),
        ("attn_cp", V0_5_8, ()),
        ("attn_cp", V0_5_13, ("--attn-cp-size", "8")),
        ("decode_tp", V0_5_8, ("--disaggregation-decode-tp", "8")),
        ("decode_tp", V0_5_13, ()),
        ("decode_follows_room", V0_5_3, ("--prefill-round-robin-balance",)),
        ("decode_follows_room", V0_5_8, ()),
    ],
)
def test_flags_by_release(meaning: str, version: Version, said: tuple[str, ...]) -> None:
    assert words(meaning, version, 8) == said


def test_rules_come_and_go() -> None:
    assert rule("pair-tp-divides", V0_5_8) is not None
    assert rule("pair-tp-divides", V0_5_13) is None
    assert rule("attn-cp-divides-tp", V0_5_8) is None
    old, new = rule("attn-dp-divides-tp", V0_5_18), rule("attn-dp-divides-tp", V0_5_23)
    assert old is not None
    assert new is not None
    assert (old.terms, new.terms) == ("tp_size % dp_size == 0", "tp_size % attn_dp_size == 0")
