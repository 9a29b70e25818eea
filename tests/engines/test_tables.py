"""The tables read from released wheels: every row of a dialect that names an item names one they have."""

from __future__ import annotations

import pytest

from pdctl.engines import versions
from pdctl.engines.identify import MARKED
from pdctl.engines.kinds import PREFILL_ONLY, ROUTERS
from pdctl.engines.routers import router_flags as routers
from pdctl.engines.sglang import agreement, endpoints, metrics
from pdctl.engines.sglang.endpoints import SHAPE_KEYS
from pdctl.engines.versions import SGLANG, Span, parse, spell
from tests.cases import for_each


@for_each("kind", ["flags", "environment", "routes", "metrics", "records"])
def test_every_line_stands_between_releases_that_were_read(kind: str) -> None:
    read = {source.version for source in versions.sources()}
    for item in versions.items(kind):
        assert item.since in read, item
        assert not item.until or (item.until in read and parse(item.since) < parse(item.until)), item


def test_a_table_holds_every_release() -> None:
    for version in SGLANG:
        assert len(versions.names("flags", version)) > 250, spell(version)
        assert len(versions.names("environment", version)) > 150, spell(version)
        assert len(versions.names("metrics", version)) > 50, spell(version)


def test_rows_that_are_dated_by_a_table_are_in_it() -> None:
    for route in endpoints.ROUTES:
        assert route.path == "/metrics" or versions.spans("routes", "server", route.path, route.method), route
    for metric in metrics.METRICS:
        assert not metric.name.startswith("sglang:") or versions.spans("metrics", metric.name, metric.type), metric
    for row in agreement.SETTINGS:
        derived = not row.key.isidentifier() or row.key == "model"
        assert derived or row.key in agreement.OTHERS or versions.spans("records", "ServerArgs", row.key), row
        for flag in row.flags:
            assert versions.spans("flags", flag), (row.key, flag)
    for name in MARKED:
        assert versions.spans("records", "ServerArgs", name), name


def test_the_keys_of_a_topology_answer_are_those_of_the_record_that_reads_them() -> None:
    for key in SHAPE_KEYS:
        if not key.name.startswith("prefill_") or key.name == "prefill_http_port":
            assert versions.spans("records", "common/conn.py PrefillServerInfo", key.name) == (key.span,), key


@pytest.mark.parametrize("package", ["sglang-router", "smg"])
def test_the_flags_of_the_routers(package: str) -> None:
    read = [source.version for source in versions.sources(package)]
    assert len(read) >= 18
    for item in versions.items("flags", package):
        assert item.since in read, item
        assert not item.until or read.index(item.since) < read.index(item.until), item


@pytest.mark.parametrize("kind", ["sglang-router", "smg"])
def test_the_policies_of_a_topology_are_those_of_the_router(kind: str) -> None:
    """The schema keeps them so that a topology is read without the tables."""
    for flag in ("policy", "prefill-policy", "decode-policy"):
        only = () if flag == "prefill-policy" else PREFILL_ONLY
        assert {name for name in ROUTERS[kind].policies if name not in only} == set(routers.choices(flag, kind)), flag


@for_each(
    ("kind", "cells", "expected"),
    [
        ("flags", ("disaggregation-decode-tp",), (Span((0, 5, 3), (0, 5, 10)),)),
        ("flags", ("attn-dp-size",), (Span((0, 5, 22)),)),
        ("environment", ("SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE",), (Span((0, 5, 19)),)),
        ("routes", ("server", "/pd_role_switch"), (Span((0, 5, 21)),)),
        ("metrics", ("sglang:kv_transfer_latency_ms", "gauge"), (Span((0, 5, 3), (0, 5, 10)),)),
        ("records", ("nixl/conn.py KVArgsRegisterInfo", "gpu_id", "8"), (Span((0, 5, 9)),)),
        ("flags", ("warp-drive",), ()),
    ],
)
def test_when_an_item_came_and_went(kind: str, cells: tuple[str, ...], expected: tuple[Span, ...]) -> None:
    assert versions.spans(kind, *cells) == expected
