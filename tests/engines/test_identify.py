"""What a log says about its writer: from whole excerpts, from three lines, and from lines that contradict."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.engines.base import Level, Speaker
from pdctl.engines.identify import Identity, ListedPrefill, identify
from pdctl.engines.row_matching import speech
from pdctl.engines.versions import (
    OLDEST,
    V0_5_4,
    V0_5_4_POST2,
    V0_5_5_POST2,
    V0_5_6,
    V0_5_8,
    V0_5_9,
    V0_5_10,
    V0_5_11,
    V0_5_12,
    V0_5_13,
    V0_5_16,
    V0_5_18,
    V0_5_19,
    V0_5_21,
    V0_5_22,
    V0_5_23,
    Span,
    Version,
)
from tests.cases import for_each
from tests.engines.recorded import FILES, LOGS, lines

RECORDED = {"058": V0_5_8, "0518": V0_5_18, "0523": V0_5_23}  # the release each log was recorded with
RANGES: dict[tuple[str, str], tuple[Version, Version | None]] = {  # what the whole log leaves open
    ("058", "prefill"): (V0_5_6, V0_5_10),
    ("058", "decode"): (V0_5_8, V0_5_10),
    ("0518", "prefill"): (V0_5_16, V0_5_21),
    ("0518", "decode"): (V0_5_16, V0_5_22),
    ("0523", "prefill"): (V0_5_23, None),
    ("0523", "decode"): (V0_5_22, None),
}
OTHERS: dict[str, tuple[Version, Version | None]] = {  # logs that show more than most of their kind, or less
    "0518-2p1d.decode0": (V0_5_16, V0_5_19),
    "0523-2p1d.decode0": (V0_5_23, None),
    "058-spawn-info.decode0": (V0_5_8, V0_5_9),
    "058-spawn-info.prefill0": (V0_5_4_POST2, V0_5_11),
    "058-wrong-port.decode0": (V0_5_6, V0_5_10),
    "058-dp-crash.prefill0": (V0_5_5_POST2, V0_5_10),
    "058-duplicate-room.prefill0": (V0_5_5_POST2, V0_5_10),
}
ENGINES = [path for path in FILES if path.name.partition("-")[0] in RECORDED and "router" not in path.stem]
ROUTERS = {
    "058-missing-ports.router": (Speaker.SGLANG_ROUTER, (None, None)),
    "058-decode-killed.router": (Speaker.SGLANG_ROUTER, (8998,)),
    "router-sglang-0.3.2": (Speaker.SGLANG_ROUTER, (41106, None)),
    "router-smg-1.13": (Speaker.SMG, (41126, None)),
    "router-smg-1.13-json": (Speaker.SMG, (41146, None)),
    "own.router": (Speaker.PDCTL_ROUTER, (8998, 8999)),
}


def of(name: str) -> Identity:
    return identify(lines(LOGS / f"{name}.log"), speech())


def said(*texts: str) -> Identity:
    return identify([f"[2026-11-21 02:06:49] {text}".encode() for text in texts], speech())


@for_each("path", ENGINES, ids=lambda path: path.stem)
def test_every_recorded_engine_is_told(path: Path) -> None:
    found = identify(lines(path), speech())
    role = "prefill" if "prefill" in path.stem.rpartition(".")[2] else "decode"
    assert found.speaker is Speaker.SGLANG
    assert found.role == role
    known = path.name.partition("-")[0]
    assert (found.since, found.until) == OTHERS.get(path.stem, RANGES[known, role])
    assert Span(found.since or OLDEST, found.until).holds(RECORDED[known])
    assert found.backend == ("mooncake" if "mooncake" in path.stem else "nixl")
    assert found.port == {"prefill0": 30000, "prefill1": 30001, "decode0": 30002}[path.stem.rpartition(".")[2]]
    # The 0.5.8 prefill at INFO, without its arguments, never names its bootstrap port.
    if role == "prefill" and "spawn-info" not in path.stem:
        assert found.bootstrap_port == (8999 if "prefill1" in path.stem else 8998)
    else:
        assert found.bootstrap_port is None
    assert found.reasons


@for_each("path", ENGINES, ids=lambda path: path.stem)
def test_the_same_without_the_arguments(path: Path) -> None:
    """Many logs begin after the start: speaker, role and release must not hang on one dump."""
    rest = [line for line in lines(path) if b"server_args=" not in line]
    whole, found = identify(lines(path), speech()), identify(rest, speech())
    assert (found.speaker, found.role, found.level) == (whole.speaker, whole.role, whole.level)
    assert Span(found.since or OLDEST, found.until).holds(RECORDED[path.name.partition("-")[0]])


@for_each(("name", "expected"), ROUTERS.items())
def test_every_recorded_router_is_told(name: str, expected: tuple[Speaker, tuple[int | None, ...]]) -> None:
    found = of(name)
    assert (found.speaker, found.role) == (expected[0], "router")
    assert tuple(target.port for target in found.prefills) == expected[1]
    assert len(found.decodes) == 1
    assert found.port is not None
    assert (found.since, found.until) == (None, None)


def test_mini_lb_and_our_own_engine() -> None:
    assert (of("router-mini-lb").speaker, of("router-mini-lb").role) == (Speaker.MINI_LB, "router")
    own = of("own.prefill-0")
    assert (own.speaker, own.role, own.level, own.backend) == (Speaker.PDCTL_ENGINE, "prefill", Level.INFO, "nixl")
    assert (own.since, own.until, own.bootstrap_port) == (None, None, 8998)
    assert own.facts["disaggregation_mode"] == "prefill"
    assert (own.log_requests, own.time_stats) == (True, True)


@for_each(
    ("text", "role"),
    [
        ("got info room=7 agent_name='a' required_dst_info_num=1", "prefill"),
        ("FakeKVSender poll success", "prefill"),
        ("Sending to prefill server with bootstrap room 7 is_dummy=False", "decode"),
        ("FakeKVReceiver poll success", "decode"),
        ("Request 7 waiting_timeout", "decode"),
        ("CommonKVBootstrapServer started successfully on 127.0.0.1:8998", "prefill"),
        ("Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998), 0 transfers affected", "decode"),
        (
            '127.0.0.1 [21/Nov/2026:02:06:32 +0000] "PUT /route HTTP/1.1" 200 154 "-" "python-requests/2.34.2"',
            "prefill",
        ),
        (
            "Prefill batch, #new-seq: 1, #new-token: 4, #cached-token: 0, token usage: 0.00, #running-req: 0, "
            "#queue-req: 0, #prealloc-req: 0, #inflight-req: 0, input throughput (token/s): 0.00, ",
            "prefill",
        ),
        (
            "Decode batch, #running-req: 4, #token: 34, token usage: 0.01, pre-allocated usage: 0.00, "
            "#prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cpu graph: False, gen throughput (token/s): 3.55, "
            "#queue-req: 0, ",
            "decode",
        ),
    ],
)
def test_one_line_of_a_role_tells_it(text: str, role: str) -> None:
    found = said("Application startup complete.", text, "The server is fired up and ready to roll!")
    assert (found.speaker, found.role) == (Speaker.SGLANG, role)
    assert (found.port, found.bootstrap_port, found.log_requests, found.time_stats) == (
        None, 8998 if "8998" in text and "started" in text else None, None, None,
    )  # fmt: skip


@for_each(
    ("text", "since", "until"),
    [
        ("Req Time Stats(rid=a, bootstrap_room=7, input len=5, output len=1, type=prefill): x", None, V0_5_12),
        (
            "ReqTimeStats(rid=a, bootstrap_room=7, input_len=5, cached_input_len=0, output_len=1, type=prefill): x",
            V0_5_12, V0_5_16,
        ),
        (
            "ReqTimeStats(rid=a, bootstrap_room=7, input_len=5, cached_input_len=0, output_len=1, attempts=0, "
            "type=prefill): x",
            V0_5_16, None,
        ),
        ("Request 7 waiting_timeout", V0_5_6, V0_5_13),
        ("CommonKVSender init with num_kv_indices: 5 and aux_index: 2", V0_5_10, None),
        ("Sending to prefill server with bootstrap room 7 is_dummy=False", None, V0_5_23),
        ("FakeKVSender init with num_kv_indices: 4, aux_index: 0", V0_5_21, None),
        (
            'http://127.0.0.1:8999 "GET /route?engine_rank=-1&target_dp_group=-1&target_pp_rank=-1 HTTP/1.1" 400 9',
            None, V0_5_10,
        ),
        (
            '127.0.0.1 [21/Nov/2026:02:06:32 +0000] "GET /route?engine_rank=-1&target_dp_group=-1&target_pp_rank=-1 '
            'HTTP/1.1" 400 154 "-" "Python-urllib/3.11"',
            V0_5_10, None,
        ),
        (
            "Prefill parallel info for [127.0.0.1:8999]: PrefillServerInfo(attn_tp_size=1, kv_layout=None, "
            "prefill_http_port=30001)",
            V0_5_23, None,
        ),
        ("Prefill parallel info for [127.0.0.1:8999]: PrefillServerInfo(attn_tp_size=1)", V0_5_10, V0_5_16),
        (
            "Prefill batch. #new-seq: 1, #new-token: 4, #cached-token: 0, token usage: 0.00, #running-req: 0, "
            "#queue-req: 0, #prealloc-req: 0, #inflight-req: 0, ",
            None, V0_5_4,
        ),
        ("The server is fired up and ready to roll!", None, None),
    ],
)  # fmt: skip
def test_one_line_of_a_release_bounds_it(text: str, since: Version | None, until: Version | None) -> None:
    found = said(text)
    assert (found.since, found.until) == (since, until)


def test_a_release_never_guessed_from_two() -> None:
    """A file that two releases wrote one after the other has no release, and says why."""
    found = said("Request 7 waiting_timeout", "FakeKVSender init with num_kv_indices: 4, aux_index: 0")
    assert (found.since, found.until) == (None, None)
    assert any("several releases" in reason for reason in found.reasons)


def test_a_role_never_guessed_from_two() -> None:
    found = said("FakeKVSender poll success", "FakeKVReceiver poll success")
    assert found.role == ""
    assert any("several roles" in reason for reason in found.reasons)


def test_the_launchers_last_word_in_a_routers_log_is_nobody_elses() -> None:
    left = "pdctl: router generation 1 left with exit code 0"
    assert said("Router stopped", left).speaker is Speaker.PDCTL_ROUTER
    assert said(left).speaker is None


def test_mixed_speakers_are_said_to_be_mixed() -> None:
    router = b"2026-11-21 01:20:05  INFO smg::server: s.rs:1018: Starting server on 127.0.0.1:8000"
    found = identify([router, b"[2026-11-21 02:06:49] FakeKVSender poll success"], speech())
    assert found.speaker is None
    assert any("several speakers" in reason for reason in found.reasons)


@pytest.mark.parametrize("given", [[], [b""], [b"nothing we know"], [b"\xff" * 100]])
def test_nothing_known_is_nothing_claimed(given: list[bytes]) -> None:
    found = identify(given, speech())
    assert found == Identity(reasons=("no line is known",))


def test_arguments_of_both_kinds() -> None:
    old = of("058-spawn-info.decode0").facts
    new = of("0523-2p1d.decode0").facts
    for facts in (old, new):
        assert facts["disaggregation_mode"] == "decode"
        assert facts["disaggregation_bootstrap_port"] == "8998"
        assert facts["page_size"] == "1"
        assert facts["log_requests"] == "False"
        assert facts["dist_init_addr"] == "None"
    assert of("0523-2p1d.decode0").log_requests is False


def test_timeouts_and_zone_are_read_off_the_lines() -> None:
    assert of("058-mooncake-missing-ports.prefill1").timeouts == {"bootstrap": 20.0}
    assert of("058-mooncake-missing-ports.decode0").timeouts == {"waiting": 20.0}
    assert of("058-healthy.prefill0").facts["utc_offset"] == "+0000"


def test_a_rehearsing_router_counts_for_what_it_sends() -> None:
    head = b"[2026-11-21 19:44:33] WARNING REHEARSAL: "
    found = identify(
        [
            head
            + b'Starting router on 127.0.0.1:8000 | mode: PrefillDecode { prefill_urls: [("http://127.0.0.1:30000", '
            b'None)], decode_urls: ["http://127.0.0.1:30002"], prefill_policy: None, decode_policy: None } | policy: X',
            b"[2026-11-21 19:44:33] Router listening on http://127.0.0.1:8000 policy=round_robin "
            b"prefill=[('http://127.0.0.1:30000', 8998)] decode=['http://127.0.0.1:30002']",
        ],
        speech(),
    )
    assert found.speaker is Speaker.PDCTL_ROUTER
    assert found.prefills == (ListedPrefill("http://127.0.0.1:30000", None),)
    assert found.decodes == ("http://127.0.0.1:30002",)


def test_any_order_gives_the_same_answer() -> None:
    for path in ENGINES[::5]:
        forward, backward = identify(lines(path), speech()), identify(lines(path)[::-1], speech())
        for name in ("speaker", "role", "since", "until", "backend", "level", "port", "bootstrap_port"):
            assert getattr(forward, name) == getattr(backward, name), (path.stem, name)


known = st.sampled_from([line for path in FILES[::4] for line in lines(path)])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(known, st.binary(max_size=120), known.map(lambda line: line[: len(line) // 2])), max_size=12))
def test_any_lines(given: list[bytes]) -> None:
    found = identify(given, speech())
    assert found.role in ("", "prefill", "decode", "router", "unified")
    assert found.reasons
    if found.since is not None and found.until is not None:
        assert found.since < found.until
