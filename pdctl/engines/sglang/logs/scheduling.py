"""The scheduler: problems of the PD queues (srt/disaggregation), and the lines it writes periodically.

The periodic lines are `key: value` pairs without a room, whose keys differ by release. `#prealloc-req` on a prefill
(0.5.3, 0.5.8) counts the bootstrap queue, as `#bootstrap-req` does from 0.5.13 on.
"""

from __future__ import annotations

from pdctl.engines.base import Level, Phase, Row, Sign, Speaker
from pdctl.engines.versions import (
    V0_5_3,
    V0_5_9,
    V0_5_11,
    V0_5_12,
    V0_5_13,
    V0_5_16,
    V0_5_19,
    V0_5_20,
    V0_5_21,
    V0_5_22,
    V0_5_23,
    Span,
)

DEBUG = "--log-level debug"

_NEW = r"[,.] #new-seq: (?P<new_seq>\d+), #new-token: (?P<new_token>\d+), #cached-token: (?P<cached_token>\d+), "
_ITER = r"(?: \[\d+\])?"
_PRE = "Prefill batch" + _ITER + _NEW
_USED = r"[^#]*#running-req: (?P<running>\d+), #queue-req: (?P<queue>\d+), "

ROWS = (
    # From here to the periodic lines: not in the logs we recorded.
    Row(
        "context-corrupted", Speaker.SGLANG, Level.ERROR, "decode", b"Context corruption detected: Request ",
        r"Context corruption detected: Request (?P<rid>.+) \(bootstrap_room=(?P<room>\d+)\) received metadata from "
        r"bootstrap_room=(?P<other_room>\d+)\.",
        "[2026-11-21 02:06:50] Context corruption detected: Request 2bfafc2472b4467383402a55ee1d31d5 "
        "(bootstrap_room=7707449254856086911) received metadata from bootstrap_room=5111113946003395278. Metadata "
        "buffer index: 3. This indicates metadata buffer index collision.",
        Span(V0_5_9), Phase.FAILED, cause="PD711",
    ),
    Row(
        "context-corrupted-unread", Speaker.SGLANG, Level.ERROR, "decode", b"Context corruption detected: Request ",
        r"Context corruption detected: Request (?P<rid>.+) \(bootstrap_room=(?P<room>\d+)\) (?P<reason>.*)",
        "[2026-11-21 02:06:50] Context corruption detected: Request 2bfafc2472b4467383402a55ee1d31d5 "
        "(bootstrap_room=7707449254856086911) its metadata row was never written",
        Span(V0_5_9), Phase.FAILED, cause="PD711",
    ),
    Row(
        "metadata-not-ready", Speaker.SGLANG, Level.ERROR, "decode", b"Metadata unexpectedly not ready after readiness",
        r"Metadata unexpectedly not ready after readiness gate: request (?P<rid>.+), bootstrap_room=(?P<room>\d+), "
        r"metadata_buffer_index=(?P<aux>\d+)",
        "[2026-11-21 02:06:50] Metadata unexpectedly not ready after readiness gate: request "
        "2bfafc2472b4467383402a55ee1d31d5, bootstrap_room=7707449254856086911, metadata_buffer_index=3",
        Span(V0_5_13), Phase.FAILED, cause="PD711",
    ),
    Row(
        "deferred-release-timed-out", Speaker.SGLANG, Level.WARNING, "decode", b"Deferred KV release for room ",
        r"Deferred KV release for room (?P<room>\d+) timed out after (?P<seconds>[\d.]+)s",
        "[2026-11-21 02:06:50] Deferred KV release for room 7707449254856086911 timed out after 30.0s without a full "
        "drain ack from prefill; releasing anyway.",
        Span(V0_5_19), echo=True,
    ),
    Row(
        "deferred-release-failed", Speaker.SGLANG, Level.ERROR, "decode", b"Deferred KV release failed for room ",
        r"Deferred KV release failed for room (?P<room>\d+)",
        "[2026-11-21 02:06:50] Deferred KV release failed for room 7707449254856086911", Span(V0_5_19), echo=True,
    ),
    Row(
        "checksum-skipped", Speaker.SGLANG, Level.WARNING, "decode", b"KV checksum skipped: prefill layout signature",
        r"KV checksum skipped: prefill layout signature (?P<theirs>\S+) differs from this decode's (?P<ours>\S+)",
        "[2026-11-21 02:06:50] KV checksum skipped: prefill layout signature 0x1f differs from this decode's 0x2f (TP "
        "width, PP stage, or page size); its requests are admitted unverified.",
        Span(V0_5_23), cause="PD305",
    ),
    Row(
        "eviction-insufficient", Speaker.SGLANG, Level.WARNING, "decode", b"Eviction insufficient: needed ",
        r"Eviction insufficient: needed (?P<needed>\d+) tokens, available (?P<available>\d+) after evicting "
        r"(?P<evicted>\d+)/(?P<wanted>\d+) tokens\.",
        "[2026-11-21 02:06:50] Eviction insufficient: needed 900 tokens, available 400 after evicting 100/600 tokens. "
        "evictable_size=0, protected_size=3000, fill_len=900, prefix_len=0",
        Span(V0_5_11), cause="PD501",
    ),
    Row(
        "mamba-pool-raised", Speaker.SGLANG, Level.WARNING, "decode", b") is less than decode side's max_slots_needed",
        r"mamba_size \((?P<mamba_size>\d+)\) is less than decode side's max_slots_needed \((?P<slots>\d+) = "
        r"(?P<requests>\d+) reqs",
        "[2026-11-21 02:06:32] mamba_size (16) is less than decode side's max_slots_needed (24 = 8 reqs * 3 "
        "slots/req), raising effective_mamba_size to 24",
        Span(V0_5_11), cause="PD501",
    ),
    Row(
        "hicache-prefetch-failed", Speaker.SGLANG, Level.WARNING, "decode", b"HiCache L3 prefetch failed for rid=",
        r"HiCache L3 prefetch failed for rid=(?P<rid>.+): (?P<reason>.*)",
        "[2026-11-21 02:06:50] HiCache L3 prefetch failed for rid=2bfafc2472b4467383402a55ee1d31d5: storage is gone; "
        "falling back to L2-only LoadingBack",
        Span(V0_5_13),
    ),
    Row(
        "hicache-load-back-failed", Speaker.SGLANG, Level.WARNING, "decode", b"HiCache load_back failed for rid=",
        r"HiCache load_back failed for rid=(?P<rid>.+): (?P<reason>.*)",
        "[2026-11-21 02:06:50] HiCache load_back failed for rid=2bfafc2472b4467383402a55ee1d31d5: device_indices=4, "
        "new_indices=2, expected decode_prefix_len=8 (l1=4, l2=2, l3=2)",
        Span(V0_5_13),
    ),
    Row(
        "optimistic-prefill-exhausted", Speaker.SGLANG, Level.INFO, "prefill", b" exhausted optimistic prefill ",
        r"Req (?P<rid>.+) exhausted optimistic prefill (?:attempts|retries) falling back to bootstrap queue",
        "[2026-11-21 02:06:50] Req 2bfafc2472b4467383402a55ee1d31d5 exhausted optimistic prefill attempts falling "
        "back to bootstrap queue",
        Span(V0_5_13),
    ),
    Row(
        "optimistic-prefill-retried", Speaker.SGLANG, Level.INFO, "prefill", b" optimistic prefill retry ",
        r"Req (?P<rid>.+) optimistic prefill retry (?P<attempt>\d+)/(?P<attempts>\d+)",
        "[2026-11-21 02:06:50] Req 2bfafc2472b4467383402a55ee1d31d5 optimistic prefill retry 1/3",
        Span(V0_5_13, V0_5_16),
    ),
    Row(
        "optimistic-prefill-yielded", Speaker.SGLANG, Level.INFO, "prefill", b" optimistic prefill yielded ",
        r"Req (?P<rid>.+) optimistic prefill yielded \((?P<attempt>\d+)/(?P<attempts>\d+) attempts used\)",
        "[2026-11-21 02:06:50] Req 2bfafc2472b4467383402a55ee1d31d5 optimistic prefill yielded (1/3 attempts used)",
        Span(V0_5_16),
    ),
    Row(
        "retraction-unresolved", Speaker.SGLANG, Level.ERROR, "decode", b"PD retract rebootstrap could not resolve ",
        r"PD retract rebootstrap could not resolve the prefill /generate URL from bootstrap info \(rid=(?P<rid>.+) "
        r"bootstrap_room=(?P<room>\d+) bootstrap_addr=(?P<addr>[^)]{0,300})\)",
        "[2026-11-21 02:06:50] PD retract rebootstrap could not resolve the prefill /generate URL from bootstrap info "
        "(rid=2bfafc2472b4467383402a55ee1d31d5 bootstrap_room=7707449254856086911 bootstrap_addr=127.0.0.1:8998).",
        Span(V0_5_16), Phase.FAILED, cause="PD503",
    ),
    Row(
        "retraction-refused", Speaker.SGLANG, Level.ERROR, "decode", b"PD rebootstrap prefill failed for rid=",
        r"PD rebootstrap prefill failed for rid=(?P<rid>.+) status=(?P<status>\S+) body=(?P<reason>.*)",
        "[2026-11-21 02:06:50] PD rebootstrap prefill failed for rid=2bfafc2472b4467383402a55ee1d31d5 status=503 "
        "body=busy",
        Span(V0_5_16),
    ),
    Row(
        "retraction-request-failed", Speaker.SGLANG, Level.ERROR, "decode", b"PD rebootstrap prefill request failed fo",
        r"PD rebootstrap prefill request failed for rid=(?P<rid>.+)",
        "[2026-11-21 02:06:50] PD rebootstrap prefill request failed for rid=2bfafc2472b4467383402a55ee1d31d5",
        Span(V0_5_16),
    ),
    Row(
        "abort-not-told", Speaker.SGLANG, Level.ERROR, "prefill", b"Failed to notify KV sender of abort for ",
        r"Failed to notify KV sender of abort for (?P<rid>.+)",
        "[2026-11-21 02:06:50] Failed to notify KV sender of abort for 2bfafc2472b4467383402a55ee1d31d5",
        Span(V0_5_20),
        proves=(Sign.ABORT_TALK,),
    ),
    Row(
        "requests-retracted", Speaker.SGLANG, Level.WARNING, "", b"KV cache pool is full. Retract requests. ",
        r"KV cache pool is full\. Retract requests\. (?P<reason>.*)",
        "[2026-11-21 02:06:50] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 40, "
        "#new_token_ratio: 0.6000 -> 0.8000",
        cause="PD501",
    ),
    Row(
        "decode-out-of-memory", Speaker.SGLANG, Level.ERROR, "", b"Decode out of memory. Try to lower your batch size.",
        r"RuntimeError: Decode out of memory\. Try to lower your batch size\.",
        "RuntimeError: Decode out of memory. Try to lower your batch size.", cause="PD501",
    ),
    Row(
        "host-memory-short", Speaker.SGLANG, Level.ERROR, "decode", b"Not enough host memory for request ",
        r"Not enough host memory for request (?P<rid>.+)",
        "[2026-11-21 02:06:50] Not enough host memory for request 2bfafc2472b4467383402a55ee1d31d5",
    ),
    Row(
        "offload-on", Speaker.SGLANG, Level.INFO, "decode", b"Enable offload kv cache for decode side",
        r"Enable offload kv cache for decode side",
        "[2026-11-21 02:06:32] Enable offload kv cache for decode side",
    ),
    Row(
        "offload-done", Speaker.SGLANG, Level.DEBUG, "decode", b"Finished backup request ",
        r"Finished backup request (?P<rid>.+), free host memory, len:(?P<tokens>\d+), cost time:(?P<seconds>[\d.]+)",
        "[2026-11-21 02:06:50] Finished backup request 2bfafc2472b4467383402a55ee1d31d5, free host memory, len:16, "
        "cost time:0.01 seconds.",
        needs=DEBUG,
    ),
    Row(
        "pp-store-crashed", Speaker.SGLANG, Level.CRITICAL, "", b"PPConsensusStore background thread crashed: ",
        r"PPConsensusStore background thread crashed: (?P<reason>.*)",
        "[2026-11-21 02:06:50 PP1] PPConsensusStore background thread crashed: Connection reset by peer",
        Span(V0_5_22), cause="PD709",
        proves=(Sign.CRASHED,),
    ),
    Row(
        "pp-store-dropped", Speaker.SGLANG, Level.WARNING, "", b"PPConsensusStore dropped a ",
        r"PPConsensusStore dropped a (?P<reason>.*)",
        "[2026-11-21 02:06:50 PP1] PPConsensusStore dropped a malformed message (4 bytes): bad magic", Span(V0_5_22),
    ),
    Row(
        "pp-store-up", Speaker.SGLANG, Level.INFO, "", b"PPConsensusStore ",
        r"PPConsensusStore (?:is listening at|connected to) (?P<host>\S+):(?P<port>\d+)",
        "[2026-11-21 02:06:32 PP0] PPConsensusStore is listening at 127.0.0.1:28171", Span(V0_5_22),
    ),
    Row(
        "kv-events-trouble", Speaker.SGLANG, Level.ERROR, "", b"Error in ",
        r"Error in (?:publisher thread|replay): (?P<reason>.*)",
        "[2026-11-21 02:06:50] Error in publisher thread: Address already in use",
    ),
    Row(
        "kv-events-replay-invalid", Speaker.SGLANG, Level.WARNING, "", b"Invalid replay request: ",
        r"Invalid replay request: (?P<reason>.*)", "[2026-11-21 02:06:50] Invalid replay request: [b'']",
    ),
    Row(
        "kv-events-left", Speaker.SGLANG, Level.WARNING, "", b"Warning: Queue still has ",
        r"Warning: Queue still has (?P<items>\S+) items after (?P<seconds>\S+) seconds timeout",
        "[2026-11-21 02:06:50] Warning: Queue still has 3 items after 1.0 seconds timeout",
    ),
    Row(
        "metadata-buffers-differ", Speaker.SGLANG, Level.ERROR, "prefill", b" metadata buffers but this prefill has ",
        r"Decode (?P<peer>\S+) registered (?P<theirs>\d+) metadata buffers but this prefill has (?P<ours>\d+)",
        "[2026-11-21 02:06:50] Decode 127.0.0.1:41011 registered 12 metadata buffers but this prefill has 10; only the "
        "first 10 are transferred, and misaligned if the extra buffer is not the last.",
        Span(V0_5_23), cause="PD326",
    ),
    Row(
        "tp-sizes-differ", Speaker.SGLANG, Level.WARNING, "", b"Performance is NOT guaranteed when using different TP",
        r"Performance is NOT guaranteed when using different TP sizes for non-MLA models\.",
        "[2026-11-21 01:49:46] Performance is NOT guaranteed when using different TP sizes for non-MLA models. ",
        cause="PD305",
    ),
    Row(
        "role-switch-bootstrap", Speaker.SGLANG, Level.WARNING, "", b"Role switch starts a bootstrap server on this",
        r"Role switch starts a bootstrap server on this instance at (?P<host>\S+):(?P<port>\d+)\.",
        "[2026-11-21 02:06:32] Role switch starts a bootstrap server on this instance at 127.0.0.1:8998. If another PD "
        "instance runs on the same host, give each one a distinct --disaggregation-bootstrap-port or the bind will "
        "conflict.",
        Span(V0_5_21),
    ),
    Row(
        "role-switch-failed", Speaker.SGLANG, Level.CRITICAL, "", b" failed during teardown/rebuild; instance",
        r"PD role switch \((?P<old_role>\w+) -> (?P<new_role>\w+)\) failed during teardown/rebuild; instance "
        r"unhealthy: (?P<reason>.*)",
        "[2026-11-21 02:06:50] PD role switch (prefill -> decode) failed during teardown/rebuild; instance unhealthy: "
        "out of memory",
        Span(V0_5_21), cause="PD604",
    ),
    Row(
        "role-switch-rejected", Speaker.SGLANG, Level.WARNING, "", b"PD role switch rejected (",
        r"PD role switch rejected \((?P<old_role>\w+) -> (?P<new_role>\w+)\): (?P<reason>.*)",
        "[2026-11-21 02:06:50] PD role switch rejected (prefill -> decode): instance is not idle; drain all requests "
        "before switching",
        Span(V0_5_21),
    ),
    Row(
        "role-switched", Speaker.SGLANG, Level.INFO, "", b"PD role switch succeeded: ",
        r"PD role switch succeeded: (?P<old_role>\w+) -> (?P<new_role>\w+)",
        "[2026-11-21 02:06:50] PD role switch succeeded: prefill -> decode", Span(V0_5_21),
    ),
    Row(
        "role-switch-broke", Speaker.SGLANG, Level.ERROR, "", b"role switch failed",
        r"(?:PD role switch failed|Decode CUDA graph capture on role switch failed|hicache storage release on role "
        r"switch failed)",
        "[2026-11-21 02:06:50] PD role switch failed", Span(V0_5_21), cause="PD604",
    ),
    Row(
        "role-switch-loop", Speaker.SGLANG, Level.INFO, "", b"Re-dispatching event loop after PD role switch",
        r"Re-dispatching event loop after PD role switch -> (?P<new_role>\w+)",
        "[2026-11-21 02:06:50] Re-dispatching event loop after PD role switch -> decode", Span(V0_5_21),
    ),
    # The periodic lines.
    Row(
        "prefill-batch-optimistic", Speaker.SGLANG, Level.INFO, "prefill", b"#optimistic-req: ",
        _PRE + _USED + r"#pending-token: \d+, (?:#replay-token: \d+, )?#bootstrap-req: (?P<bootstrap>\d+), "
        r"#inflight-req: (?P<inflight>\d+), #optimistic-req: (?P<optimistic>\d+), (?P<rest>.*)",
        "[2026-11-21 02:06:49] Prefill batch, #new-seq: 1, #new-token: 5, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, #pending-token: 0, #bootstrap-req: 0, #inflight-req: 1, #optimistic-req: 0, "
        "cpu graph: False, input throughput (token/s): 0.67",
        Span(V0_5_16),
        proves=(Sign.WAITING_FOR_PAGES,),
    ),
    Row(
        "prefill-batch-old", Speaker.SGLANG, Level.INFO, "prefill", b"#prealloc-req: ",
        _PRE + _USED + r"#prealloc-req: (?P<bootstrap>\d+), #inflight-req: (?P<inflight>\d+), (?P<rest>.*)",
        "[2026-11-21 01:18:26] Prefill batch, #new-seq: 1, #new-token: 4, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, #prealloc-req: 0, #inflight-req: 0, input throughput (token/s): 0.00, ",
        Span(V0_5_3, V0_5_11),
        proves=(Sign.WAITING_FOR_PAGES,),
    ),
    Row(
        "prefill-batch", Speaker.SGLANG, Level.INFO, "prefill", b"#bootstrap-req: ",
        _PRE + _USED + r"(?:#pending-token: \d+, )?(?:#replay-token: \d+, )?#bootstrap-req: (?P<bootstrap>\d+), "
        r"#inflight-req: (?P<inflight>\d+), (?P<rest>.*)",
        "[2026-11-21 19:44:33] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, #bootstrap-req: 0, #inflight-req: 1, input throughput (token/s): 377.67",
        Span(V0_5_12),
        proves=(Sign.WAITING_FOR_PAGES,),
    ),
    Row(
        "decode-batch", Speaker.SGLANG, Level.INFO, "decode", b"#transfer-req: ",
        r"Decode batch" + _ITER + r"[,.] #running-req: (?P<running>\d+), (?P<usage>.{0,300}?)"
        r"#prealloc-req: (?P<prealloc>\d+), #transfer-req: (?P<transfer>\d+), #retracted-req: (?P<retracted>\d+), "
        r"(?P<rest>.*)",
        "[2026-11-21 02:01:29] Decode batch, #running-req: 4, #token: 34, token usage: 0.01, pre-allocated usage: "
        "0.00, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cpu graph: False, gen throughput (token/s): "
        "3.55, #queue-req: 0, ",
        proves=(Sign.RUNNING, Sign.SERVES),
    ),
    # Without a pair: an instance without a role, or a decode's own re-prefill.
    Row(
        "batch", Speaker.SGLANG, Level.INFO, "", b" batch",
        r"(?P<kind>Prefill|Decode) batch" + _ITER + r"[,.] (?P<rest>#.*)",
        "[2026-11-21 02:06:49] Decode batch, #running-req: 1, #token: 34, token usage: 0.01, cpu graph: False, gen "
        "throughput (token/s): 3.55, #queue-req: 0",
    ),
)  # fmt: skip
