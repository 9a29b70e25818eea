"""Warm-up and health requests: bootstrap_host 2.2.2.2 makes both sides use a peer that is not there.

They tell the role of the file they stand in: only a prefill has senders, only a decode has receivers.
"""

from __future__ import annotations

from pdctl.engines.phase import Phase
from pdctl.engines.row import Level, Row, Speaker
from pdctl.engines.versions import V0_5_3, V0_5_3_POST3, V0_5_10, V0_5_21, Span

DEBUG = "--log-level debug"

ROWS = (
    Row(
        "fake-sender-started-old", Speaker.SGLANG, Level.DEBUG, "prefill", b"FakeKVSender init with kv_indices: ",
        r"FakeKVSender init with kv_indices: (?P<page_list>[^,]+), aux_index: (?P<aux>\d+)",
        "[2026-11-21 02:01:21] FakeKVSender init with kv_indices: 4, aux_index: 0",
        Span(V0_5_3, V0_5_21), needs=DEBUG,
    ),
    Row(
        "fake-sender-started", Speaker.SGLANG, Level.DEBUG, "prefill", b"FakeKVSender init with num_kv_indices: ",
        r"FakeKVSender init with num_kv_indices: (?P<pages>\d+), aux_index: (?P<aux>\d+)",
        "[2026-11-21 02:06:35] FakeKVSender init with num_kv_indices: 4, aux_index: 0", Span(V0_5_21), needs=DEBUG,
    ),
    Row(
        "fake-sender-sent", Speaker.SGLANG, Level.DEBUG, "prefill", b"FakeKVSender send with kv_indices: ",
        r"FakeKVSender send with kv_indices: (?P<page_list>[^,]+), state_indices: (?P<state>.*)",
        "[2026-11-21 02:06:36] FakeKVSender send with kv_indices: [1 2 3 4], state_indices: []",
        Span(V0_5_3_POST3), needs=DEBUG,
    ),
    Row(
        "fake-sender-done", Speaker.SGLANG, Level.DEBUG, "prefill", b"FakeKVSender poll success",
        r"FakeKVSender poll success", "[2026-11-21 02:06:36] FakeKVSender poll success", needs=DEBUG,
    ),
    Row(
        "fake-receiver-started-old", Speaker.SGLANG, Level.DEBUG, "decode", b"FakeKVReceiver init with kv_indices: ",
        r"FakeKVReceiver init with kv_indices: (?P<page_list>[^,]+), aux_index: (?P<aux>\d+), "
        r"state_indices: (?P<state>.*)",
        "[2026-11-21 01:20:09] FakeKVReceiver init with kv_indices: [1 2 3 4], aux_index: 0, state_indices: None",
        Span(V0_5_3_POST3, V0_5_10), needs=DEBUG,
    ),
    Row(
        "fake-receiver-started", Speaker.SGLANG, Level.DEBUG, "decode", b"FakeKVReceiver send_metadata with kv_indices",
        r"FakeKVReceiver send_metadata with kv_indices: (?P<page_list>[^,]+), aux_index: (?P<aux>\d+), "
        r"state_indices: (?P<state>.*)",
        "[2026-11-21 02:04:22] FakeKVReceiver send_metadata with kv_indices: [1 2 3 4], aux_index: 0, "
        "state_indices: []",
        Span(V0_5_10), needs=DEBUG,
    ),
    Row(
        "fake-receiver-done", Speaker.SGLANG, Level.DEBUG, "decode", b"FakeKVReceiver poll success",
        r"FakeKVReceiver poll success", "[2026-11-21 01:20:09] FakeKVReceiver poll success", needs=DEBUG,
    ),
    # Not in the sets we recorded.
    Row(
        "fake-sender-sent-old", Speaker.SGLANG, Level.DEBUG, "prefill", b"FakeKVSender send with kv_indices: ",
        r"FakeKVSender send with kv_indices: (?P<page_list>[^,]+)$",
        "[2026-11-21 01:20:09] FakeKVSender send with kv_indices: [1 2 3 4]", Span(V0_5_3, V0_5_3_POST3), needs=DEBUG,
    ),
    Row(
        "fake-receiver-started-oldest", Speaker.SGLANG, Level.DEBUG, "decode", b"FakeKVReceiver init with kv_indices: ",
        r"FakeKVReceiver init with kv_indices: (?P<page_list>[^,]+), aux_index: (?P<aux>\d+)$",
        "[2026-11-21 01:20:09] FakeKVReceiver init with kv_indices: [1 2 3 4], aux_index: 0",
        Span(V0_5_3, V0_5_3_POST3), needs=DEBUG,
    ),
    Row(
        "fake-sender-timed-out", Speaker.SGLANG, Level.DEBUG, "prefill", b"FakeKVSender for room ",
        r"FakeKVSender for room (?P<room>\d+) timed out after (?P<seconds>[\d.]+)s in KVPoll\.WaitingForInput",
        "[2026-11-21 02:06:36] FakeKVSender for room 0 timed out after 300.0s in KVPoll.WaitingForInput; no KV chunk "
        "was ever sent.",
        Span(V0_5_21), Phase.TIMED_OUT, needs=DEBUG,
    ),
    Row(
        "fake-sender-timeouts-begin", Speaker.SGLANG, Level.WARNING, "prefill", b"Some FakeKVSender requests fail to",
        r"Some FakeKVSender requests fail to receive a KV chunk after bootstrapping\.",
        "[2026-11-21 02:06:36] Some FakeKVSender requests fail to receive a KV chunk after bootstrapping. If a greater "
        "mean TTFT is acceptable, you can 'export SGLANG_DISAGGREGATION_WAITING_TIMEOUT=600' (10 minutes) to relax "
        "the timeout condition. ",
        Span(V0_5_21),
    ),
)  # fmt: skip
