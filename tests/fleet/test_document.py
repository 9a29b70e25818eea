"""JSON and Prometheus text of peers nobody vouches for."""

from __future__ import annotations

import json
import math

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdctl.fleet import peer_json, prober, prometheus_text
from tests.cases import for_each
from tests.fleet.conftest import ANSWERS, ANY_JSON


@given(st.binary(max_size=200) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"a": ' + b"9" * 5000 + b"}")
@example(b'{"\\ud800": ["\\udfff", {"x": "\\uD83D\\uDE00"}]}')
@example(b"NaN")
@settings(max_examples=100, deadline=None)
def test_whatever_a_body_holds_it_can_be_read_and_written(body: bytes) -> None:
    value = peer_json.parse(body)
    json.dumps(value, ensure_ascii=False).encode()
    assert peer_json.complaint(body).isprintable()
    for read in (peer_json.mapping, peer_json.mappings, peer_json.integer, peer_json.number, peer_json.text):
        read(value)


def test_surrogates_become_replacements_and_pairs_stay() -> None:
    assert peer_json.parse(b'{"a": "\\ud800x", "b": "\\ud83d\\ude00"}') == {"a": "?x", "b": "\U0001f600"}


def test_numbers_are_finite_or_none() -> None:
    values: list[object] = [1, 2.5, True, math.nan, math.inf, 10**400, "3", None]
    assert [peer_json.number(value) for value in values] == [1.0, 2.5, None, None, None, None, None, None]
    assert [peer_json.integer(value) for value in values[:3]] == [1, None, None]


def test_the_words_of_an_error_in_the_shapes_servers_use() -> None:
    said = [
        b'{"error": {"message": "no prefill", "type": "x"}}',
        b'{"object": "error", "message": "no prefill", "code": 400}',
        b'{"detail": "no prefill"}',
        b'{"error": "no prefill"}',
        b"  no\x1b[31m\x00prefill\n",
    ]
    assert [peer_json.complaint(one) for one in said[:4]] == ["no prefill"] * 4
    assert peer_json.complaint(said[4]) == "no [31m prefill"
    assert len(peer_json.complaint(b"x" * 5000)) == peer_json.EXCERPT


def test_the_metrics_of_a_real_engine() -> None:
    text = (ANSWERS / "0.5.23-2p1d" / "prefill0.metrics").read_text()
    found = prometheus_text.totals(text)
    assert found["sglang:max_total_num_tokens"] == 4096.0
    assert found["sglang:num_prefill_bootstrap_queue_reqs"] == 0.0
    assert found["sglang:queue_time_seconds_count"] > 0
    assert not [name for name in found if name.endswith("_bucket")]


def test_series_are_summed_and_nonsense_is_passed_over() -> None:
    text = "\n".join(
        [
            "# TYPE a gauge",
            'a{x="1"} 2',
            'a{x="with } and \\"quotes\\" and space"} 3 1700000000000',
            "b 1e3",
            "c NaN",
            "d +Inf",
            "e",
            "f{",
            'g{x="1"} many',
            "1h 1",
            "a{x} 0.5\r",
            "\x00",
        ]
    )
    assert prometheus_text.totals(text) == {"a": 5.5, "b": 1000.0}
    labels = prometheus_text.labels('worker="http://h:1/\\\\",x="a\\nb",y="\\"q\\""')
    assert labels == {"worker": "http://h:1/\\", "x": "a\nb", "y": '"q"'}


@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_text_gives_finite_totals(text: str) -> None:
    for name, value in prometheus_text.totals(text + '\na{b="' + text).items():
        assert prober.NAME.fullmatch(name)
        assert math.isfinite(value)


@for_each(
    ("info", "role"),
    [
        ({}, ""),
        ({"disaggregation_mode": "prefill"}, "prefill"),
        ({"disaggregation_mode": "prefill", "internal_states": [{"free_pages": 3}]}, "prefill"),
        ({"disaggregation_mode": "prefill", "internal_states": [{"disaggregation_mode": "decode"}] * 2}, "decode"),
        # Half of a switch: then what it was started with is as good as anything.
        (
            {
                "disaggregation_mode": "prefill",
                "internal_states": [{"disaggregation_mode": "decode"}, {"disaggregation_mode": "prefill"}],
            },
            "prefill",
        ),
        ({"disaggregation_mode": 7, "internal_states": "none"}, ""),
    ],
)
def test_the_role_of_now(info: dict[str, object], role: str) -> None:
    assert peer_json.role(info) == role


def test_what_a_server_says_stands_in_quotation_marks_in_a_sentence_of_ours() -> None:
    """A role that reads like a second verdict, as doctor prints it."""
    forged = '\u2717 PD704 FORGED: prefill-9 died\n[2026-11-24 05:00:00] Scheduler hit an "exception"'
    shown = "\"\u2717 PD704 FORGED: prefill-9 died [2026-11-24 05:00:00] Scheduler hit an 'exception'\""
    assert peer_json.role({"disaggregation_mode": forged}) == shown
    assert prober.told({}, forged.encode()) == shown
    assert prober.told({"location": "http://a/ b"}, b"") == 'redirects to "http://a/ b", which is not followed'
    assert len(peer_json.quoted("x " * 10_000)) <= peer_json.EXCERPT + 2
    for plain in ("", "prefill", "0.5.23", "http://10.0.0.7:30000/a", "nixl_v2", "-1"):
        assert peer_json.quoted(plain) == plain
