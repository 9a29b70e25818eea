"""HTTP routes, bootstrap words and keys, settings that must agree and metrics: one answer for every known release."""

from __future__ import annotations

from collections import Counter

import pytest

from pdctl.catalogue import book
from pdctl.engines.sglang import agreement, endpoints, metrics
from pdctl.engines.versions import SGLANG, V0_5_3, V0_5_8, V0_5_13, V0_5_18, V0_5_23, Version, spell
from tests.cases import for_each

CODES = {entry.code for entry in book.ENTRIES}


@for_each("version", SGLANG, ids=spell)
def test_every_release_has_one_answer(version: Version) -> None:
    assert len([row for row in endpoints.QUERIES if row.span.holds(version)]) == 1
    for names in (
        [key.name for key in endpoints.shape_keys(version)],
        [sent.name for sent in endpoints.REGISTERED if sent.span.holds(version)],
        [row.key for row in agreement.settings(version)],
        [row.name for row in metrics.METRICS if row.span.holds(version)],
        [row.name for row in endpoints.BODY if row.span.holds(version)],
    ):
        assert [name for name, count in Counter(names).items() if count > 1] == []
    for purpose in ("health", "server_info", "model_info", "generate", "metrics", "abort"):
        assert endpoints.paths(purpose, version)


def test_every_row_holds_for_some_release() -> None:
    rows = (
        *endpoints.ROUTES, *endpoints.BODY, *endpoints.QUERIES, *endpoints.SHAPE_KEYS, *endpoints.REGISTERED,
        *endpoints.ANSWERS, *agreement.SETTINGS, *metrics.METRICS,
    )  # fmt: skip
    for row in rows:
        assert any(row.span.holds(version) for version in SGLANG), row


@for_each(
    ("purpose", "version", "paths"),
    [
        ("server_info", V0_5_3, ("/get_server_info",)),
        ("server_info", V0_5_8, ("/server_info", "/get_server_info")),
        ("server_info", None, ("/server_info", "/get_server_info")),
        ("loads", V0_5_3, ("/get_load",)),
        ("loads", V0_5_13, ("/v1/loads", "/get_load")),
        ("loads", V0_5_23, ("/v1/loads",)),
        ("ready", V0_5_18, ()),
        ("role_switch", V0_5_23, ("/pd_role_switch",)),
    ],
)
def test_paths(purpose: str, version: Version | None, paths: tuple[str, ...]) -> None:
    assert endpoints.paths(purpose, version) == paths


@pytest.mark.parametrize(
    ("version", "style", "first"), [(V0_5_8, "old", "engine_rank"), (V0_5_13, "new", "prefill_dp_rank")]
)
def test_bootstrap_words(version: Version, style: str, first: str) -> None:
    query = endpoints.query(version)
    assert (query.style, query.names[0]) == (style, first)


def test_bootstrap_keys_only_grow() -> None:
    """Keys of the new style were added, never removed: an older decode refuses a newer prefill, not the reverse."""
    known = [{key.name for key in endpoints.shape_keys(version)} for version in (V0_5_13, V0_5_18, V0_5_23)]
    assert known[0] < known[1] < known[2]
    assert "prefill_http_port" in known[1] - known[0]
    assert {key.meaning for key in endpoints.shape_keys(V0_5_3)} == {"attn_tp_size", "dp_size", "pp_size"}


def test_the_renamed_queue_has_one_meaning() -> None:
    old, new = metrics.queues("prefill", V0_5_8), metrics.queues("prefill", V0_5_13)
    names = {row.name for row in old} ^ {row.name for row in new}
    assert names == {"sglang:num_prefill_prealloc_queue_reqs", "sglang:num_prefill_bootstrap_queue_reqs"}
    assert {row.meaning for row in old} == {row.meaning for row in new}
    assert "decode prealloc queue" not in {row.meaning for row in old}


def test_every_code_of_a_row_is_in_the_catalogue() -> None:
    assert {row.code for row in agreement.SETTINGS if row.code} - CODES == set()
