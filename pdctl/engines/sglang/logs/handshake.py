"""Decode sends prefill its page list; prefill reports as pages move: TransferInfo, chunks, aborts, statuses.

The NIXL backend writes the handshake at DEBUG; mooncake writes none of it in any release.
"""

from __future__ import annotations

from pdctl.engines.base import Level, Phase, Row, Sign, Speaker
from pdctl.engines.versions import V0_5_3, V0_5_6, V0_5_10, V0_5_11, V0_5_13, V0_5_19, V0_5_22, V0_5_23, Span

DEBUG = "--log-level debug"

ROWS = (
    Row(
        "transfer-info-arrived", Speaker.SGLANG, Level.DEBUG, "prefill", b"got info room=",
        r"got info room=(?P<room>\d+) agent_name='(?P<agent>[^']*)' required_dst_info_num=(?P<needed>\d+)",
        "[2026-11-21 01:26:21] got info room=2144653258749356528 agent_name='0de217d9-44c2-4269-b7d5-008843baf441' "
        "required_dst_info_num=1",
        phase=Phase.HANDSHAKE, backend="nixl", needs=DEBUG,
        proves=(Sign.ROOM_OPENED, Sign.PAGE_LIST_ARRIVES, Sign.PAGE_LIST_ARRIVED),
    ),
    Row(
        "room-bootstrapped", Speaker.SGLANG, Level.DEBUG, "prefill", b" is bootstrapped",
        r"room=(?P<room>\d+) is bootstrapped",
        "[2026-11-21 01:26:21] room=2144653258749356528 is bootstrapped",
        phase=Phase.HANDSHAKE, backend="nixl", needs=DEBUG,
        proves=(Sign.ROOM_OPENED, Sign.PAGE_LIST_ARRIVED),
    ),
    Row(
        "transfer-info-sent", Speaker.SGLANG, Level.DEBUG, "decode", b"Sending to prefill server with bootstrap room ",
        r"Sending to prefill server with bootstrap room (?P<room>\d+) is_dummy=(?P<dummy>\w+)",
        "[2026-11-21 01:26:21] Sending to prefill server with bootstrap room 2144653258749356528 is_dummy=False",
        Span(V0_5_3, V0_5_23), Phase.HANDSHAKE, "nixl", needs=DEBUG,
        proves=(Sign.SERVES, Sign.PAGE_LIST_SENDS, Sign.PAGE_LIST_SENT),
    ),
    Row(
        "kv-chunk-sending", Speaker.SGLANG, Level.DEBUG, "prefill", b"sending kvcache to ",
        r"sending kvcache to (?P<agent>\S+) with notif (?P<room>\d+)_kv_(?P<chunk>\d+)_(?P<last>\d)",
        "[2026-11-21 01:26:21] sending kvcache to 0de217d9-44c2-4269-b7d5-008843baf441 with notif "
        "2144653258749356528_kv_0_1_0",
        Span(V0_5_3, V0_5_23), Phase.TRANSFER, "nixl", needs=DEBUG,
        proves=(Sign.HAS_REQUEST, Sign.PAGE_LIST_ARRIVED, Sign.CACHE_SENDS),
    ),
    Row(
        "kv-chunk-sending-unnamed", Speaker.SGLANG, Level.DEBUG, "prefill", b"sending kvcache to ",
        r"sending kvcache to (?P<agent>\S+)$",
        "[2026-11-21 02:06:50] sending kvcache to 1eff4586-9249-484b-b134-3f9440969c01",
        Span(V0_5_23), backend="nixl", needs=DEBUG,
    ),
    Row(
        "kv-chunks-grouped", Speaker.SGLANG, Level.DEBUG, "prefill", b"len(src_addrs): before group",
        r"len\(src_addrs\): before group: (?P<before>\d+), after group: (?P<after>\d+)",
        "[2026-11-21 01:26:21] len(src_addrs): before group: 5, after group: 4", backend="nixl", needs=DEBUG,
    ),
    Row(
        "sender-started", Speaker.SGLANG, Level.DEBUG, "prefill", b"CommonKVSender init with num_kv_indices",
        r"CommonKVSender init with num_kv_indices: (?P<pages>\d+) and aux_index: (?P<aux>\d+)",
        "[2026-11-21 02:06:49] CommonKVSender init with num_kv_indices: 5 and aux_index: 2",
        Span(V0_5_10), needs=DEBUG,
        proves=(Sign.SENDER_STARTED,),
    ),
    Row(
        "kv-args-registered", Speaker.SGLANG, Level.DEBUG, "prefill", b"Register KVArgs from ",
        r"Register KVArgs from (?P<session>\S+) successfully",
        "[2026-11-21 02:06:49] Register KVArgs from 1eff4586-9249-484b-b134-3f9440969c01 successfully", needs=DEBUG,
    ),
    Row(
        "multipart-received", Speaker.SGLANG, Level.DEBUG, "prefill", b"Received multipart with total byte size",
        r"Received multipart with total byte size (?P<bytes>\d+)",
        "[2026-11-21 02:06:49] Received multipart with total byte size 1298", backend="nixl", needs=DEBUG,
    ),
    Row(
        "abort-sent", Speaker.SGLANG, Level.DEBUG, "decode", b"Sent abort notification for room ",
        r"Sent abort notification for room (?P<room>\d+) to (?P<addr>\S+)",
        "[2026-11-21 02:02:46] Sent abort notification for room 8463976258232842567 to 127.0.0.1:45579",
        Span(V0_5_13), Phase.ABORTED, echo=True, needs=DEBUG,
        proves=(Sign.ABORT_SENDS, Sign.ABORT_TALK),
    ),
    Row(
        "abort-received", Speaker.SGLANG, Level.DEBUG, "prefill", b"Received abort notification for room ",
        r"Received abort notification for room (?P<room>\d+), marked as Failed",
        "[2026-11-21 02:02:46] Received abort notification for room 8463976258232842567, marked as Failed",
        Span(V0_5_13), Phase.ABORTED, echo=True, needs=DEBUG,
        proves=(Sign.ABORT_ARRIVES, Sign.ABORT_TALK),
    ),
    Row(
        "abort-ignored", Speaker.SGLANG, Level.DEBUG, "prefill", b"Received abort notification for room ",
        r"Received abort notification for room (?P<room>\d+), ignoring \((?P<reason>[^)]*)\)",
        "[2026-11-21 02:02:46] Received abort notification for room 8463976258232842567, "
        "ignoring (already completed or unknown)",
        Span(V0_5_13), echo=True, needs=DEBUG,
        proves=(Sign.ABORT_ARRIVES, Sign.ABORT_TALK),
    ),
    # 0.5.8's NIXL receiver gives the reason in a line of its own; the failure line after it does not.
    Row(
        "waiting-timeout", Speaker.SGLANG, Level.ERROR, "decode", b" waiting_timeout",
        r"Request (?P<room>\d+) waiting_timeout",
        "[2026-11-21 01:34:40] Request 5111113946003395278 waiting_timeout",
        Span(V0_5_6, V0_5_13), Phase.TIMED_OUT, "nixl",
        proves=(Sign.PAGE_LIST_SENT, Sign.GAVE_UP_WAITING), reached=Phase.HANDSHAKE,
    ),
    Row(
        "room-failed-with-prefill", Speaker.SGLANG, Level.ERROR, "decode", b" be failed due to prefill down",
        r"Let room (?P<room>\d+) be failed due to prefill down",
        "[2026-11-21 01:48:36] Let room 777001 be failed due to prefill down",
        Span(V0_5_6, V0_5_13), Phase.FAILED, "nixl",
        proves=(Sign.PAGE_LIST_SENT,), reached=Phase.HANDSHAKE,
    ),
    # Not in the logs we recorded; the texts are the format strings of the releases named.
    Row(
        "room-failed-with-node", Speaker.SGLANG, Level.ERROR, "decode", b" failed due to node failure",
        r"Transfer for room (?P<room>\d+) failed due to node failure",
        "[2026-11-21 01:48:36] Transfer for room 5111113946003395278 failed due to node failure",
        Span(V0_5_3, V0_5_13), Phase.FAILED, "nixl",
        proves=(Sign.PAGE_LIST_SENT,), reached=Phase.HANDSHAKE,
    ),
    Row(
        "abort-not-sent", Speaker.SGLANG, Level.DEBUG, "decode", b"Failed to send abort notification for room ",
        r"Failed to send abort notification for room (?P<room>\d+): (?P<reason>.*)",
        "[2026-11-21 02:02:46] Failed to send abort notification for room 8463976258232842567: Resource temporarily "
        "unavailable",
        Span(V0_5_13), echo=True, needs=DEBUG,
        proves=(Sign.ABORT_TALK,),
    ),
    Row(
        "abort-ack-received", Speaker.SGLANG, Level.DEBUG, "decode", b"Received ABORT_ACK for room ",
        r"Received ABORT_ACK for room (?P<room>\d+)",
        "[2026-11-21 02:02:46] Received ABORT_ACK for room 8463976258232842567",
        Span(V0_5_13, V0_5_22), Phase.ABORTED, "mooncake", echo=True, needs=DEBUG,
        proves=(Sign.ABORT_TALK,),
    ),
    Row(
        "abort-ack-sent", Speaker.SGLANG, Level.DEBUG, "prefill", b"Sent ABORT_ACK for room ",
        r"Sent ABORT_ACK for room (?P<room>\d+) to (?P<addr>\S+)",
        "[2026-11-21 02:02:46] Sent ABORT_ACK for room 8463976258232842567 to 127.0.0.1:41011",
        Span(V0_5_13), Phase.ABORTED, "mooncake", echo=True, needs=DEBUG,
        proves=(Sign.ABORT_TALK,),
    ),
    Row(
        "abort-ack-not-sent", Speaker.SGLANG, Level.DEBUG, "prefill", b"ABORT_ACK for room ",
        r"Failed to send (?:drained )?ABORT_ACK for room (?P<room>\d+): (?P<reason>.*)",
        "[2026-11-21 02:02:46] Failed to send ABORT_ACK for room 8463976258232842567: Resource temporarily unavailable",
        Span(V0_5_13), echo=True, needs=DEBUG,
        proves=(Sign.ABORT_TALK,),
    ),
    Row(
        "abort-without-generation", Speaker.SGLANG, Level.DEBUG, "prefill", b"Generation-less ABORT for room ",
        r"Generation-less ABORT for room (?P<room>\d+); no deferred ACK",
        "[2026-11-21 02:02:46] Generation-less ABORT for room 8463976258232842567; no deferred ACK",
        Span(V0_5_22), cause="PD310", needs=DEBUG,
        proves=(Sign.ABORT_TALK,),
    ),
    Row(
        "aux-data-received", Speaker.SGLANG, Level.DEBUG, "decode", b"Received AUX_DATA for bootstrap_room ",
        r"Received AUX_DATA for bootstrap_room (?P<room>\d+) with length:(?P<bytes>\d+)",
        "[2026-11-21 02:01:29] Received AUX_DATA for bootstrap_room 7707449254856086911 with length:128",
        phase=Phase.TRANSFER, backend="mooncake", needs=DEBUG,
    ),
    Row(
        "aux-data-wrong-length", Speaker.SGLANG, Level.ERROR, "decode", b"AUX_DATA length mismatch for bootstrap_room ",
        r"AUX_DATA length mismatch for bootstrap_room (?P<room>\d+)",
        "[2026-11-21 02:01:29] AUX_DATA length mismatch for bootstrap_room 7707449254856086911",
        phase=Phase.FAILED, cause="PD308",
    ),
    Row(
        "request-already-failed", Speaker.SGLANG, Level.DEBUG, "", b"Request with bootstrap_room=",
        r"Request with bootstrap_room=(?P<room>\d+) already failed",
        "[2026-11-21 02:01:29] Request with bootstrap_room=7707449254856086911 already failed",
        phase=Phase.FAILED, echo=True, needs=DEBUG,
    ),
    Row(
        "chunk-skipped", Speaker.SGLANG, Level.DEBUG, "prefill", b"Skipping chunk for room ",
        r"Skipping chunk for room (?P<room>\d+) because (?P<reason>.*)",
        "[2026-11-21 02:01:29] Skipping chunk for room 7707449254856086911 because it has already failed or been "
        "aborted",
        Span(V0_5_13), Phase.FAILED, echo=True, needs=DEBUG,
        proves=(Sign.ABORT_TALK,),
    ),
    Row(
        "chunk-empty", Speaker.SGLANG, Level.INFO, "prefill", b"Skip sending kv chunk for request ",
        r"Skip sending kv chunk for request req\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\") req\.bootstrap_room=(?P<room>\d+) "
        r"because page_indices is empty",
        "[2026-11-21 02:01:29] Skip sending kv chunk for request req.rid='2bfafc2472b4467383402a55ee1d31d5' "
        "req.bootstrap_room=7707449254856086911 because page_indices is empty",
        Span(V0_5_3, V0_5_11), Phase.TRANSFER,
    ),
    Row(
        "chunk-not-due", Speaker.SGLANG, Level.DEBUG, "prefill", b"send_kv_chunk skip: rid=",
        r"send_kv_chunk skip: rid=(?P<rid>.+) start_send_idx=(?P<start>\d+) end_idx=(?P<end>\d+)",
        "[2026-11-21 02:06:50] send_kv_chunk skip: rid=2bfafc2472b4467383402a55ee1d31d5 start_send_idx=4 end_idx=4",
        Span(V0_5_11), needs=DEBUG,
    ),
    Row(
        "late-status-dropped", Speaker.SGLANG, Level.DEBUG, "decode", b"Dropping late status for cleared room ",
        r"Dropping late status for cleared room (?P<room>\d+)",
        "[2026-11-21 02:06:50] Dropping late status for cleared room 1707339780048244443", Span(V0_5_19), needs=DEBUG,
        proves=(Sign.ABORT_TALK,),
    ),
)  # fmt: skip
