"""Prefill against decode: every row of the table, which side is the odd one, and what cannot be told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pdctl.catalogue.entry import Severity
from pdctl.doctor import check_run, server_info
from pdctl.doctor.check import CheckStatus, Facts, Finding
from pdctl.doctor.live.pair_agreement import ROWS
from pdctl.engines.sglang.agreement import Comparison, breaks
from pdctl.engines.versions import SGLANG, Version, spell
from tests.cases import for_each
from tests.doctor.fixtures import recorded as real
from tests.doctor.fixtures.live import dp_attention, hybrid, mla
from tests.doctor.fixtures.recorded import healthy


def found(facts: Facts, code: str) -> list[Finding]:
    return [one for one in check_run.run(facts).findings if one.code == code]


def status(facts: Facts, code: str) -> CheckStatus:
    return {one.code: one.status for one in check_run.run(facts).checks}[code]


def test_no_two_rows_with_one_code_and_every_must_has_one() -> None:
    codes = [row.code for row in ROWS if row.code]
    assert len(codes) == len(set(codes))
    assert all(bool(row.code) is (row.setting.rule is not Comparison.MAY_DIFFER) for row in ROWS)
    assert all(row.why for row in ROWS)


def test_two_prefills_against_one_decode_make_the_decode_odd() -> None:
    (one,) = found(real.info(healthy(), "decode-0", page_size=16), "PD302")
    assert (one.instance, one.observed, one.expected) == ("decode-0", "16", "1")
    assert one.headline.startswith("page size is 16 on decode-0 and 1 on prefill-0 and prefill-1")


def test_one_prefill_that_differs_is_odd_itself() -> None:
    (one,) = found(real.info(healthy(), "prefill-1", page_size=16), "PD302")
    assert (one.instance, one.observed, one.expected) == ("prefill-1", "16", "1")


def test_a_side_that_could_not_be_read_is_unknown() -> None:
    facts = real.down(healthy(), "decode-0")
    assert found(facts, "PD302") == []
    assert status(facts, "PD302") is CheckStatus.UNKNOWN
    without_key = real.on(
        healthy(),
        "decode-0",
        do=lambda one: dataclasses.replace(one, info={k: v for k, v in one.info.items() if k != "page_size"}),
    )
    assert status(without_key, "PD302") is CheckStatus.UNKNOWN


def test_what_was_read_is_judged_though_another_side_was_not() -> None:
    facts = real.info(real.down(healthy(), "prefill-0"), "decode-0", page_size=16)
    (one,) = found(facts, "PD302")
    assert one.instance == "decode-0"


@for_each(
    ("prefill", "decode", "version", "expected"),
    [
        ("auto", "auto", "0.5.23", CheckStatus.OK),
        ("fp8_e4m3", "fp8_e4m3", "0.5.23", CheckStatus.OK),
        ("auto", "fp8_e4m3", "0.5.23", CheckStatus.FINDING),
        ("auto", "bfloat16", "0.5.23", CheckStatus.UNKNOWN),
        ("auto", "bfloat16", "0.5.13", CheckStatus.FINDING),  # this release compares the words
    ],
)
def test_kv_types(prefill: str, decode: str, version: str, expected: CheckStatus) -> None:
    facts = real.info(healthy(), version=version, kv_cache_dtype=prefill)
    assert status(real.info(facts, "decode-0", kv_cache_dtype=decode), "PD303") is expected


def test_a_quantized_checkpoint_may_make_auto_the_same() -> None:
    facts = real.info(healthy(), quantization="fp8")
    assert status(real.info(facts, "decode-0", kv_cache_dtype="fp8_e4m3"), "PD303") is CheckStatus.UNKNOWN


@for_each(
    ("make", "code", "expected"),
    [
        (lambda facts: facts, "PD305", CheckStatus.FINDING),
        (mla, "PD305", CheckStatus.OK),
        (hybrid, "PD306", CheckStatus.FINDING),
        (hybrid, "PD305", CheckStatus.OK),
        (lambda facts: real.model(facts, architectures=None), "PD305", CheckStatus.UNKNOWN),
    ],
)
def test_unequal_widths_by_family(make: Any, code: str, expected: CheckStatus) -> None:
    assert status(make(real.info(healthy(), "decode-0", tp_size=2)), code) is expected


def test_the_width_that_counts_is_the_attentions_own() -> None:
    """tp 2 with attention DP 2 is as wide as tp 1, in the words of 0.5.23 and of the releases before it."""
    assert status(dp_attention(healthy(), "decode-0"), "PD305") is CheckStatus.OK
    before = real.info(healthy(), "decode-0", tp_size=2, dp_size=2, enable_dp_attention=True, attn_dp_size=1)
    assert status(before, "PD305") is CheckStatus.OK
    assert status(real.info(healthy(), "decode-0", tp_size=2, dp_size=2), "PD305") is CheckStatus.FINDING


@for_each(
    ("values", "width", "replicas", "ranks"),
    [
        ({"tp_size": 8, "dp_size": 1, "attn_dp_size": 8, "enable_dp_attention": True}, 8, 1, 8),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True, "attn_dp_size": 1}, 8, 1, 8),
        ({"tp_size": 2, "dp_size": 3, "enable_dp_attention": False, "attn_dp_size": 1, "pp_size": 2}, 1, 3, 12),
    ],
)
def test_dp_by_version(values: dict[str, Any], width: int, replicas: int, ranks: int) -> None:
    engine = real.info(healthy(), "prefill-0", **values).engines[0]
    assert (server_info.width(engine), server_info.replicas(engine), server_info.ranks(engine)) == (
        width,
        replicas,
        ranks,
    )


@for_each(
    ("prefill", "decode", "broken"),
    [
        ("0.5.18", "0.5.13", True),  # the decode refuses keys it does not know
        ("0.5.23", "0.5.18", True),
        ("0.5.18", "0.5.23", False),
        ("0.5.8", "0.5.13", True),  # the query's names changed
        ("0.5.13", "0.5.8", True),
        ("0.5.3", "0.5.8", True),
        ("0.5.23", "0.5.24", False),
    ],
)
def test_mixed_versions_are_an_error_where_they_are_known_to_break(prefill: str, decode: str, broken: bool) -> None:
    facts = real.info(real.info(healthy(), version=prefill), "decode-0", version=decode)
    (one,) = found(facts, "PD310")
    assert one.severity is (Severity.ERROR if broken else Severity.WARNING)
    assert one.instance == "decode-0"


@for_each("release", SGLANG, ids=spell)
def test_a_release_goes_with_itself(release: Version) -> None:
    for backend in ("nixl", "mooncake"):
        assert breaks(release, release, backend) is None


def test_mooncake_frames_break_where_nixl_does_not() -> None:
    assert breaks((0, 5, 8), (0, 5, 3), "nixl") is None
    assert breaks((0, 5, 8), (0, 5, 3), "mooncake") is not None


@for_each(
    ("pp", "decode_pp", "expected"), [(4, 1, CheckStatus.OK), (4, 4, CheckStatus.OK), (4, 2, CheckStatus.FINDING)]
)
def test_stages(pp: int, decode_pp: int, expected: CheckStatus) -> None:
    facts = real.info(healthy(), "prefill-0", "prefill-1", pp_size=pp)
    assert status(real.info(facts, "decode-0", pp_size=decode_pp), "PD315") is expected


def test_a_context_length_that_is_the_checkpoints_own_may_be_the_same() -> None:
    assert status(real.info(healthy(), "decode-0", context_length=None), "PD307") is CheckStatus.UNKNOWN
    assert status(real.info(healthy(), context_length=None), "PD307") is CheckStatus.OK


def test_groups_not_pairs_are_compared() -> None:
    """256 prefills alike against 2 decodes that differ are two comparisons."""
    facts = healthy()
    many = tuple(
        dataclasses.replace(
            facts.engines[0], endpoint=dataclasses.replace(facts.engines[0].endpoint, name=f"prefill-{i}")
        )
        for i in range(256)
    )
    odd = real.info(facts, "decode-0", page_size=16).engines[2]
    facts = real.change(facts, engines=(*many, odd, facts.engines[2]), router=None)
    (one,) = found(facts, "PD302")
    assert one.headline.startswith(
        "page size is 16 on decode-0 and 1 on prefill-0, prefill-1, prefill-2, prefill-3 and 252 more"
    )


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    for row in ROWS:
        assert f"| {row.key} | {row.setting.rule.value} | {row.code} | {row.why} |" in page
