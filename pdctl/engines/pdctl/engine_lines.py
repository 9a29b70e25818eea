"""pdctl's own engine: what it logs besides SGLang's lines, of which it writes those that name a room at INFO.

LAUNCHER_ROWS: lines that any log may have: what `pdctl launch` adds to the log of a process it watches, an engine or a
router of any kind, and what pdctl's own processes say of lines they could not write.
"""

from __future__ import annotations

from pdctl.engines.base import Level, Measure, Phase, Row, Sign, Speaker

ENGINE = Speaker.PDCTL_ENGINE
# SGLang's rows at DEBUG that this engine writes at INFO.
AT_INFO = frozenset(
    {
        "transfer-info-sent", "transfer-info-arrived", "room-bootstrapped", "kv-args-registered", "prefill-registered",
        "abort-sent", "abort-received", "abort-ignored",
    }
)  # fmt: skip
_RID = r"rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\")"
_ROOM = r"room=(?P<room>\d+) "
_STEP = r"Room step: room=(?P<room>\d+) rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\") phase="

ROWS = (
    Row(
        "step-bootstrap", ENGINE, Level.INFO, "prefill", b"Room step: room=",
        _STEP + r"bootstrap input_len=(?P<input>\d+)",
        "[2026-11-21 19:44:33] Room step: room=3931829090235125 rid='ae84787d41d54e459c79ecd0bd1f5177' "
        "phase=bootstrap input_len=1",
        phase=Phase.BOOTSTRAP,
    ),
    Row(
        "step-waiting", ENGINE, Level.INFO, "prefill", b"Room step: room=",
        _STEP + r"waiting bootstrap=(?P<seconds>[\d.]+)",
        "[2026-11-21 19:44:33] Room step: room=3931829090235125 rid='ae84787d41d54e459c79ecd0bd1f5177' phase=waiting "
        "bootstrap=0.020884",
        phase=Phase.FORWARD,
        measures=Measure("seconds", "bootstrap wait"),
    ),
    Row(
        "step-chunk", ENGINE, Level.INFO, "prefill", b"Room step: room=",
        _STEP + r"chunk pages=(?P<pages>\d+) computed=(?P<computed>\d+)",
        "[2026-11-21 19:44:33] Room step: room=3931829090235125 rid='ae84787d41d54e459c79ecd0bd1f5177' phase=chunk "
        "pages=32 computed=512",
        phase=Phase.TRANSFER,
    ),
    Row(
        "step-inflight", ENGINE, Level.INFO, "prefill", b"Room step: room=",
        _STEP + r"inflight pages=(?P<pages>\d+) computed=(?P<computed>\d+)",
        "[2026-11-21 19:44:33] Room step: room=3931829090235125 rid='ae84787d41d54e459c79ecd0bd1f5177' phase=inflight "
        "pages=1 computed=1",
        phase=Phase.TRANSFER,
    ),
    Row(
        "step-prealloc", ENGINE, Level.INFO, "decode", b"Room step: room=",
        _STEP + r"prealloc bootstrap_addr=(?P<addr>\S+)",
        "[2026-11-21 19:44:33] Room step: room=5040244734350044 rid='fa188499a54a48c4b799960719393ab0' phase=prealloc "
        "bootstrap_addr=127.0.0.1:8999",
        phase=Phase.PREALLOC,
        proves=(Sign.BOOTSTRAP_GIVEN,),
    ),
    Row(
        "step-transfer", ENGINE, Level.INFO, "decode", b"Room step: room=",
        _STEP + r"transfer pages=(?P<pages>\d+) prealloc=(?P<seconds>[\d.]+)",
        "[2026-11-21 19:44:33] Room step: room=5040244734350044 rid='fa188499a54a48c4b799960719393ab0' phase=transfer "
        "pages=1 prealloc=0.010603",
        phase=Phase.HANDSHAKE,
        proves=(Sign.PAGE_LIST_SENT, Sign.WAITED_FOR_PAGES), measures=Measure("seconds", "prealloc"),
    ),
    Row(
        "step-running", ENGINE, Level.INFO, "decode", b"Room step: room=",
        _STEP + r"running transfer=(?P<seconds>[\d.]+)",
        "[2026-11-21 19:44:33] Room step: room=3931829090235125 rid='74ad9ff27b00454c94b557ddc4eed3f7' phase=running "
        "transfer=0.004598",
        phase=Phase.DECODE,
        proves=(Sign.CACHE_ARRIVED,), measures=Measure("seconds", "transfer"),
    ),
    Row(
        "step-retracted", ENGINE, Level.INFO, "decode", b"Room step: room=",
        _STEP + r"retracted computed=(?P<computed>\d+) output_len=(?P<output>\d+)",
        "[2026-11-21 19:44:33] Room step: room=3931829090235125 rid='74ad9ff27b00454c94b557ddc4eed3f7' phase=retracted "
        "computed=49 output_len=26",
        phase=Phase.DECODE,
    ),
    Row(
        "step-resumed", ENGINE, Level.INFO, "decode", b"Room step: room=",
        _STEP + r"resumed computed=(?P<computed>\d+) output_len=(?P<output>\d+)",
        "[2026-11-21 19:44:33] Room step: room=3931829090235125 rid='74ad9ff27b00454c94b557ddc4eed3f7' phase=resumed "
        "computed=49 output_len=26",
        phase=Phase.DECODE,
    ),
    Row(
        "step-aborted", ENGINE, Level.INFO, "", b"Room step: room=", _STEP + r"aborted",
        "[2026-11-21 19:44:33] Room step: room=3931829090235125 rid='74ad9ff27b00454c94b557ddc4eed3f7' phase=aborted ",
        phase=Phase.ABORTED, cause="PD706",
    ),
    Row(
        "step-other", ENGINE, Level.INFO, "", b"Room step: room=", _STEP + r"(?P<step>\w+)",
        "[2026-11-21 19:44:33] Room step: room=3931829090235125 rid='74ad9ff27b00454c94b557ddc4eed3f7' phase=parked "
        "pages=1",
    ),
    Row(
        "waits-for-page-list", ENGINE, Level.INFO, "prefill", b" waits for the decode's page list on ",
        _ROOM + _RID + r" waits for the decode's page list on (?P<endpoint>\S+)",
        "[2026-11-21 19:44:33] room=3931829090235125 rid='ae84787d41d54e459c79ecd0bd1f5177' waits for the decode's "
        "page list on tcp://127.0.0.1:33205",
        phase=Phase.BOOTSTRAP,
    ),
    Row(
        "early-page-list", ENGINE, Level.INFO, "prefill", b" came before its request",
        _ROOM + r"page list from (?P<endpoint>\S+) came before its request",
        "[2026-11-21 19:44:33] room=3931829090235125 page list from tcp://127.0.0.1:45625 came before its request",
        phase=Phase.HANDSHAKE,
    ),
    Row(
        "chunk-sent", ENGINE, Level.INFO, "prefill", b" sent chunk pages=",
        _ROOM + r"sent chunk pages=(?P<pages>\d+) last=(?P<last>\w+) bytes=(?P<bytes>\d+) seconds=(?P<seconds>[\d.]+)",
        "[2026-11-21 19:44:33] room=3931829090235125 sent chunk pages=1 last=True bytes=32768 seconds=0.000389",
        phase=Phase.TRANSFER,
        proves=(Sign.TRANSFER_MEASURED,),
    ),
    Row(
        "transfer-done", ENGINE, Level.INFO, "prefill", b" KV transfer done rid=",
        _ROOM + r"KV transfer done " + _RID + r" pages=(?P<pages>\d+) bytes=(?P<bytes>\d+) seconds=(?P<seconds>[\d.]+)",
        "[2026-11-21 19:44:33] room=3931829090235125 KV transfer done rid='ae84787d41d54e459c79ecd0bd1f5177' pages=1 "
        "bytes=32768 seconds=0.000497",
        phase=Phase.FINISHED,
        proves=(Sign.TRANSFER_DONE, Sign.TRANSFER_MEASURED), measures=Measure("seconds", "transfer"),
    ),
    # The other side, the router or doctor abandoned the request: not a failure of this side.
    Row(
        "sender-aborted", ENGINE, Level.INFO, "prefill", b" code=aborted: ",
        _ROOM + r"sender failed " + _RID + r" code=aborted: (?P<reason>.*)",
        "[2026-11-22 23:29:59.591] room=8450206250617173 sender failed rid='5332f331be23420395c8dd81b6f86d9a' "
        "code=aborted: Aborted by AbortReq.",
        phase=Phase.ABORTED,
    ),
    Row(
        "receiver-aborted", ENGINE, Level.INFO, "decode", b" code=aborted: ",
        _ROOM + r"receiver failed " + _RID + r" code=aborted: (?P<reason>.*)",
        "[2026-11-22 23:29:59.591] room=8450206250617173 receiver failed rid='5006b13cb7b645288a5da65df2c0e7cf' "
        "code=aborted: Aborted by AbortReq.",
        phase=Phase.ABORTED,
    ),
    Row(
        "sender-failed", ENGINE, Level.INFO, "prefill", b" sender failed rid=",
        _ROOM + r"sender failed " + _RID + r" code=(?P<code>\S*): (?P<reason>.*)",
        "[2026-11-21 19:44:33] room=3931829090235125 sender failed rid='ae84787d41d54e459c79ecd0bd1f5177' "
        "code=bootstrap_timeout: Request 3931829090235125 timed out after 20.0s in KVPoll.Bootstrapping",
        phase=Phase.FAILED,
    ),
    Row(
        "receiver-unmet", ENGINE, Level.INFO, "decode", b" receiver failed rid=",
        _ROOM + r"receiver failed " + _RID + r" code=(?P<code>bootstrap_unreachable|bootstrap_timeout): (?P<reason>.*)",
        "[2026-11-21 19:44:33] room=3931829090235125 receiver failed rid='74ad9ff27b00454c94b557ddc4eed3f7' "
        "code=bootstrap_unreachable: Could not fetch prefill parallel info from bootstrap_addr: 127.0.0.1:9999: "
        "http://127.0.0.1:9999/route: connection refused; is the prefill running, and is this its "
        "--disaggregation-bootstrap-port?",
        phase=Phase.FAILED,
        proves=(Sign.GAVE_UP_UNMET,),
    ),
    Row(
        "receiver-without-pages", ENGINE, Level.INFO, "decode", b" receiver failed rid=",
        _ROOM + r"receiver failed " + _RID + r" code=(?P<code>waiting_timeout): "
        r"(?P<reason>.*: no pages or slot on this decode: .*)",
        "[2026-11-23 22:38:17.500] room=3931829090235125 receiver failed rid='74ad9ff27b00454c94b557ddc4eed3f7' "
        "code=waiting_timeout: Request 3931829090235125 timed out after 300.0s in KVPoll.WaitingForInput (limit 300.0s)"
        ": no pages or slot on this decode: 0 of 64 pages are free, 3 of 8 slots taken, 0 rooms come before it",
        phase=Phase.FAILED,
        proves=(Sign.GAVE_UP_WITHOUT_PAGES,),
    ),
    Row(
        "receiver-failed", ENGINE, Level.INFO, "decode", b" receiver failed rid=",
        _ROOM + r"receiver failed " + _RID + r" code=(?P<code>\S*): (?P<reason>.*)",
        "[2026-11-21 19:44:33] room=3931829090235125 receiver failed rid='74ad9ff27b00454c94b557ddc4eed3f7' "
        "code=waiting_timeout: Request 3931829090235125 timed out after 20.0s in KVPoll.WaitingForInput",
        phase=Phase.FAILED,
    ),
    Row(
        "resolving", ENGINE, Level.INFO, "decode", b" resolves prefill bootstrap_addr=",
        _ROOM + _RID + r" resolves prefill bootstrap_addr=(?P<addr>\S+)",
        "[2026-11-21 19:44:33] room=5040244734350044 rid='fa188499a54a48c4b799960719393ab0' resolves prefill "
        "bootstrap_addr=127.0.0.1:8999",
        phase=Phase.PREALLOC,
        proves=(Sign.BOOTSTRAP_GIVEN,),
    ),
    Row(
        "handshake-done", ENGINE, Level.INFO, "decode", b" handshake with ",
        _ROOM + r"handshake with (?P<addr>\S+) done " + _RID + r" after=(?P<seconds>[\d.]+)",
        "[2026-11-21 19:44:33] room=5040244734350044 handshake with 127.0.0.1:8999 done "
        "rid='fa188499a54a48c4b799960719393ab0' after=0.009147",
        phase=Phase.PREALLOC,
        proves=(Sign.BOOTSTRAP_GIVEN,), measures=Measure("seconds", "handshake"),
    ),
    Row(
        "pages-announced", ENGINE, Level.INFO, "decode", b" announced pages=",
        _ROOM + _RID + r" announced pages=(?P<pages>\d+) to=(?P<endpoint>.*)",
        "[2026-11-21 19:44:33] room=5040244734350044 rid='fa188499a54a48c4b799960719393ab0' announced pages=1 "
        "to=tcp://127.0.0.1:45625",
        phase=Phase.HANDSHAKE,
        proves=(Sign.PAGE_LIST_SENT,),
    ),
    Row(
        "kv-arrived", ENGINE, Level.INFO, "decode", b" KV cache arrived rid=",
        _ROOM + r"KV cache arrived " + _RID + r" pages=(?P<pages>\d+) bytes=(?P<bytes>\d+) seconds=(?P<seconds>[\d.]+) "
        r"from=(?P<addr>\S+)",
        "[2026-11-21 19:44:33] room=3931829090235125 KV cache arrived rid='74ad9ff27b00454c94b557ddc4eed3f7' pages=1 "
        "bytes=32768 seconds=0.004302 from=127.0.0.1:8998",
        phase=Phase.DECODE,
        proves=(Sign.PAGE_LIST_SENT, Sign.CACHE_ARRIVES, Sign.CACHE_ARRIVED),
        measures=Measure("seconds", "transfer"),
    ),
    Row(
        "registers-again", ENGINE, Level.INFO, "decode", b" registers again with ",
        _ROOM + r"registers again with (?P<endpoint>\S+): (?P<reason>.*)",
        "[2026-11-21 19:44:33] room=3931829090235125 registers again with tcp://127.0.0.1:33205: unknown session",
    ),
    Row(
        "dp-rank-not-told", ENGINE, Level.WARNING, "prefill", b" its dp rank could not be announced: ",
        _ROOM + r"its dp rank could not be announced: (?P<reason>.*)",
        "[2026-11-21 19:44:33] room=3931829090235125 its dp rank could not be announced: connection refused",
    ),
    Row(
        "second-page-list", ENGINE, Level.WARNING, "prefill", b" duplicate page list from ",
        _ROOM + r"duplicate page list from (?P<endpoint>\S+) ignored",
        "[2026-11-21 19:44:33] room=3931829090235125 duplicate page list from tcp://127.0.0.1:45625 ignored",
        cause="PD707",
    ),
    Row(
        "room-claimed-twice", ENGINE, Level.WARNING, "prefill", b" refused: the room has its decode ranks",
        _ROOM + r"page list from (?P<endpoint>\S+) refused: the room has its decode ranks",
        "[2026-11-22 00:30:19] room=3931829090235125 page list from tcp://127.0.0.1:45625 refused: the room has its "
        "decode ranks",
        cause="PD707",
    ),
    Row(
        "page-list-unclaimed", ENGINE, Level.WARNING, "prefill", b" no request for it came here: ",
        _ROOM + r"no request for it came here: (?P<reason>.*)",
        "[2026-11-21 19:44:33] room=3931829090235125 no request for it came here: prefill rank tcp://127.0.0.1:33205 "
        "(bootstrap server 127.0.0.1:8998) has no request with room 3931829090235125: waited 20 s",
        phase=Phase.HANDSHAKE, cause="PD703",
    ),
    Row(
        "kv-args-accepted", ENGINE, Level.INFO, "decode", b"Registered KV args with prefill rank ",
        r"Registered KV args with prefill rank (?P<endpoint>\S+) \(bootstrap_addr: (?P<addr>[^)]+)\)",
        "[2026-11-21 19:44:33] Registered KV args with prefill rank tcp://127.0.0.1:45625 (bootstrap_addr: "
        "127.0.0.1:8999)",
    ),
    Row(
        "prefill-rank-link", ENGINE, Level.WARNING, "decode", b"Prefill rank ",
        r"Prefill rank (?P<endpoint>\S+) \(bootstrap_addr: (?P<addr>[^)]+)\): (?P<reason>.*)",
        "[2026-11-21 19:44:33] Prefill rank tcp://127.0.0.1:45625 (bootstrap_addr: 127.0.0.1:8999): closed",
    ),
    Row(
        "decode-rank-link", ENGINE, Level.INFO, "prefill", b" rooms affected",
        r"Decode rank (?P<endpoint>tcp://[^\s:]+:\d+): (?P<reason>[^;]*); (?P<rooms_affected>\d+) rooms affected",
        "[2026-11-21 19:44:33] Decode rank tcp://127.0.0.1:41011: closed; 1 rooms affected",
    ),
    Row(
        "kv-backend", ENGINE, Level.INFO, "", b"KV transfer backend: ", r"KV transfer backend: (?P<backend>\w+)",
        "[2026-11-21 19:44:32] KV transfer backend: nixl",
        proves=(Sign.BACKEND,),
    ),
    Row(
        "rank-placed", ENGINE, Level.INFO, "", b"Rank placed: ",
        r"Rank placed: node=(?P<node>\d+) gpu=(?P<gpu>\w+) pp=(?P<pp>\d+) tp=(?P<tp>\d+) attn_dp=(?P<attn_dp>\d+) "
        r"attn_cp=(?P<attn_cp>\d+) attn_tp=(?P<attn_tp>\d+) ep=(?P<ep>\d+) moe_dp=(?P<moe_dp>\d+) dp=(?P<dp>\w+)",
        "[2026-11-21 23:20:28 DP1 TP3] Rank placed: node=0 gpu=cpu pp=0 tp=3 attn_dp=1 attn_cp=0 attn_tp=1 ep=0 "
        "moe_dp=0 dp=1",
    ),
    Row(
        "dp-controller", ENGINE, Level.INFO, "", b"DP controller: ",
        r"DP controller: (?P<groups>\d+) (?P<kind>attention DP groups?|replicas?), (?P<method>\w+)",
        "[2026-11-21 23:20:28] DP controller: 2 attention DP groups, round_robin",
    ),
    Row(
        "node-joined", ENGINE, Level.INFO, "", b" joined node 0 at ",
        r"Node (?P<node>\d+) joined node 0 at (?P<endpoint>\S+) after (?P<seconds>[\d.]+) s",
        "[2026-11-21 23:17:39] Node 1 joined node 0 at 127.0.0.1:21703 after 0.2 s",
    ),
    Row(
        "node-0-unresolved", ENGINE, Level.WARNING, "", b"Waiting for the name ",
        r"Waiting for the name (?P<endpoint>\S+) of --dist-init-addr to resolve: (?P<reason>.*)",
        "[2026-11-21 23:17:39] Waiting for the name pd-0.pd of --dist-init-addr to resolve: Name or service not known",
    ),
    Row(
        "node-refused", ENGINE, Level.ERROR, "", b"Refused node ", r"Refused node (?P<node>\d+): (?P<reason>.*)",
        "[2026-11-21 23:17:39] Refused node 1: --tp-size is 2 on node 0 and 4 on this node; give every node the same",
    ),
    Row(
        "start-up-stage", ENGINE, Level.INFO, "", b"Start-up: ",
        r"Start-up: (?P<stage>\w+) (?P<ranks>\d+)/(?P<expected>\d+) ranks, (?P<seconds>[\d.]+) s",
        "[2026-11-21 19:44:32] Start-up: weights_loaded 1/1 ranks, 0.05 s",
    ),
    Row(
        "port-taken-at-start", ENGINE, Level.ERROR, "", b"ddress already in use",
        r"cannot listen on (?:the [a-z -]{1,40} |the port of --dist-init-addr )?\S{1,80}:(?P<observed>\d{1,5})"
        r"(?: for the [a-z ]{1,20})?: [Aa]ddress already in use\. (?P<fix>.*)",
        "[2026-11-21 19:44:27.419] cannot listen on the bootstrap port 127.0.0.1:8998: Address already in use. give "
        "another --disaggregation-bootstrap-port, and the same to the router",
        cause="PD218",
    ),
    Row(
        "bootstrap-port-taken", ENGINE, Level.ERROR, "prefill", b"bootstrap server cannot listen on ",
        r"bootstrap server cannot listen on \S{1,80}:(?P<observed>\d{1,5}): Address already in use\. (?P<fix>.*)",
        "[2026-11-21 19:44:27.419] bootstrap server cannot listen on 127.0.0.1:8998: Address already in use. another "
        "process holds port 8998; give this prefill its own --disaggregation-bootstrap-port",
        cause="PD218",
    ),
    Row(
        "meeting-port-taken", ENGINE, Level.ERROR, "", b" cannot listen at ",
        r"rank \d+ of \d+ cannot listen at \S{1,80}:(?P<observed>\d{1,5}), where the ranks meet: the port of "
        r"--dist-init-addr is taken\. (?P<fix>.*)",
        "[2026-11-21 19:44:27.419] rank 0 of 2 cannot listen at tcp://127.0.0.1:29500, where the ranks meet: the port "
        "of --dist-init-addr is taken. give another --dist-init-addr, the same to every node; without one, on one "
        "node, start again",
        cause="PD218",
    ),
    Row(
        "cannot-listen", ENGINE, Level.ERROR, "", b"cannot listen on ",
        r"cannot listen on (?:the [a-z -]{1,40} |the port of --dist-init-addr )?(?P<observed>\S{1,80}:\d{1,5})"
        r"(?: for the [a-z ]{1,20})?: (?P<reason>[A-Za-z ]{1,80})\. ",
        "[2026-11-21 19:44:27.419] cannot listen on 192.0.2.7:30000: Cannot assign requested address. no interface of "
        "this machine has 192.0.2.7: `ip -br address` lists what they have",
        cause="PD225",
    ),
    Row(
        "start-up-failed", ENGINE, Level.ERROR, "", b"Start-up failed: ", r"Start-up failed: (?P<reason>.*)",
        "[2026-11-21 19:44:32] Start-up failed: waited 600 s for the warm-up request to be answered. ",
    ),
    Row(
        "instance-ends", ENGINE, Level.ERROR, "", b"Instance ends: ",
        r"Instance ends: (?P<reason>.*)\. A rank cannot be replaced alone; start the instance again\.",
        "[2026-11-21 19:44:32] Instance ends: rank TP0 was killed by SIGKILL. A rank cannot be replaced alone; start "
        "the instance again.",
        cause="PD709",
        proves=(Sign.ENDED_ITSELF,),
    ),
    Row(
        "shutting-down", ENGINE, Level.INFO, "", b"Shutting down",
        r"Shutting down(?:: (?P<running>\d+) request\(s\) running, grace (?P<seconds>[\d.]+) s| before the start was "
        r"over|: asking node 0 to stop the instance)",
        "[2026-11-21 19:44:40] Shutting down: 0 request(s) running, grace 30 s",
        proves=(Sign.ORDERED_TO_END,),
    ),
    Row(
        "session-refused", ENGINE, Level.ERROR, "prefill", b"Refused decode session ",
        r"Refused decode session (?P<session>\S+) \((?P<endpoint>[^)]*)\): (?P<reason>.*)",
        "[2026-11-21 19:44:33] Refused decode session fb1bf8ca25aa48f4803374e248efd9ce (tcp://127.0.0.1:41011): "
        "page_size is 16 here and 1 there",
        cause="PD302",
    ),
    Row(
        "connections-turned-away", ENGINE, Level.WARNING, "", b"Turned away ",
        r"Turned away (?P<count>\d+) connection\(s\) at (?P<endpoint>\S+): (?P<reason>.*)",
        "[2026-11-22 18:19:31.171] Turned away 1 connection(s) at tcp://127.0.0.1:46071: the peer said nothing (as a "
        "check of the port does), speaks no ZMTP, or the two do not hold the same deployment secret",
    ),
    Row(
        "slots-held-by-late-rooms", ENGINE, Level.WARNING, "decode", b" slot for ",
        r"No slot for (?P<count>\d+) room\(s\): (?P<held>\d+ of \d+) are held by rooms without (?P<reason>.*)",
        "[2026-11-23 19:58:31.171] No slot for 12 room(s): 64 of 64 are held by rooms without their KV cache for more "
        "than 5 s, the longest by room=7 rid='a1' for 12.3 s: has prefill 127.0.0.1:8998 a request with it?",
        proves=(Sign.SLOTS_HELD,),
    ),
    Row(
        "prefill-unfit", ENGINE, Level.ERROR, "decode", b" cannot serve this decode: ",
        r"Prefill (?P<addr>\S+) cannot serve this decode: (?P<reason>.*)",
        "[2026-11-21 19:44:33] Prefill 127.0.0.1:8998 cannot serve this decode: page_size is 1 there and 16 here",
        cause="PD302",
    ),
    Row(
        "aborted-by-rid", ENGINE, Level.INFO, "", b" request(s) matching rid=",
        r"Aborted (?P<requests>\d+) request\(s\) matching rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\")",
        "[2026-11-21 19:44:33] Aborted 1 request(s) matching rid='74ad9ff27b00454c94b557ddc4eed3f7'", cause="PD706",
    ),
    Row(
        "scheduler-silent", ENGINE, Level.ERROR, "", b"The scheduler has said nothing for ",
        r"The scheduler has said nothing for (?P<seconds>\d+) s; ending (?P<requests>\d+) request",
        "[2026-11-21 19:44:33] The scheduler has said nothing for 60 s; ending 3 request(s)", cause="PD709",
    ),
    Row(
        "kv-thread-died", ENGINE, Level.CRITICAL, "", b"KV manager thread died; every room of this rank fails",
        r"KV manager thread died; every room of this rank fails",
        "[2026-11-21 19:44:33] KV manager thread died; every room of this rank fails", cause="PD710",
    ),
    Row(
        "write-stuck", ENGINE, Level.WARNING, "prefill", b" has not returned for ",
        r"A write into session (?P<session>\S+) has not returned for (?P<seconds>[\d.]+)s",
        "[2026-11-21 19:44:33] A write into session 7f3c5d0e9c2b4f6f has not returned for 1.3s; the 2 orders behind "
        "it go on without it",
    ),
    Row(
        "checksum-not-sent", ENGINE, Level.WARNING, "decode", b"KV checksum skipped: prefill ",
        r"KV checksum skipped: prefill (?P<addr>\S+) sends none",
        "[2026-11-21 19:44:33] KV checksum skipped: prefill 127.0.0.1:8998 sends none (--disaggregation-enable-kv-"
        "checksum is not set there); its requests are admitted unverified.",
        cause="PD308",
    ),
    Row(
        "request-answered-badly", ENGINE, Level.WARNING, "", b"Answered ",
        r"Answered (?P<method>[A-Z]+) (?P<path>\S+) with (?P<status>\d{3}): (?P<reason>.*)",
        "[2026-11-21 19:44:33] Answered POST /generate with 500: Decode transfer failed: the prefill is gone",
        echo=True,
    ),
    Row(
        "rehearsed-end", ENGINE, Level.WARNING, "", b"REHEARSAL: this instance ends itself by SIGKILL",
        r"REHEARSAL: this instance ends itself by SIGKILL now",
        "[2026-11-21 19:44:33] REHEARSAL: this instance ends itself by SIGKILL now, in the middle of a transfer",
        proves=(Sign.REHEARSED,),
    ),
    Row(
        "fault-fired", ENGINE, Level.WARNING, "", b"REHEARSAL: fault ",
        r"REHEARSAL: fault (?P<incident>[a-z]\S*) fires at (?P<step>\S+)(?: room=(?P<room>\d+))?",
        "[2026-11-22 00:04:33] REHEARSAL: fault drop:transfer_info@room%3==0 fires at transfer_info room=1200",
    ),
    Row(
        "engine-rehearsal", ENGINE, Level.WARNING, "", b"REHEARSAL: ", r"REHEARSAL: (?P<incident>[a-z]\S*): ",
        "[2026-11-21 19:44:33] REHEARSAL: null-port-fallback: a request without a port goes to this server's own",
    ),
    # What `pdctl launch` writes into a log that it opens, before the process writes anything.
    Row(
        "launched-engine", ENGINE, Level.INFO, "", b" -m pdctl.engine ",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+): \S+ -m pdctl\.engine (?P<args>.*)",
        "[2026-11-21 19:44:26] pdctl: prefill-0 generation 1: python3 -m pdctl.engine --model-path /srv/tiny --host "
        "127.0.0.1 --port 30000 --disaggregation-mode prefill --disaggregation-bootstrap-port 8998",
        proves=(Sign.COMMAND, Sign.STARTED, Sign.LAUNCHED, Sign.BOOTSTRAP_PORT),
    ),
)  # fmt: skip


LAUNCHER_ROWS = (
    # Texts of launch/ending_reasons.py.
    Row(
        "process-killed-on-order", Speaker.LAUNCHER, Level.INFO, "", b" was killed by ",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+) was killed by (?P<signal>SIG\w+|signal \d+) "
        r"\((?:pdctl ended it|its own: it was asked to leave|[^()]*after pdctl asked it to end)\)",
        "[2026-11-21 19:44:33] pdctl: decode-0 generation 1 was killed by SIGKILL (pdctl ended it)",
        proves=(Sign.ORDERED_TO_END,),
    ),
    Row(
        # As pdctl wrote it until it told who had sent the signal: mostly itself.
        "process-terminated", Speaker.LAUNCHER, Level.INFO, "", b" was killed by SIGTERM",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+) was killed by (?P<signal>SIGTERM)$",
        "[2026-11-21 19:44:33] pdctl: decode-0 generation 1 was killed by SIGTERM",
        proves=(Sign.ORDERED_TO_END,),
    ),
    Row(
        "process-killed", Speaker.LAUNCHER, Level.ERROR, "", b" was killed by ",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+) was killed by (?P<signal>SIG\w+|signal \d+)",
        "[2026-11-21 19:44:33] pdctl: decode-0 generation 1 was killed by SIGKILL (from outside, or OOM-killed: see "
        "dmesg)",
        proves=(Sign.DIED,),
    ),
    Row(
        "process-lost", Speaker.LAUNCHER, Level.ERROR, "", b" was lost ",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+) was lost (?P<reason>.+)",
        "[2026-11-21 19:44:33] pdctl: decode-0-node1 generation 1 was lost with its node n3 (DOWN+NOT_RESPONDING)",
        proves=(Sign.DIED,),
    ),
    Row(
        "process-left-on-order", Speaker.LAUNCHER, Level.INFO, "", b" left with exit code ",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+) left with exit code (?P<code>\d+) "
        r"\(after pdctl asked it to end\)",
        "[2026-11-21 19:44:33] pdctl: decode-0 generation 1 left with exit code 1 (after pdctl asked it to end)",
        proves=(Sign.ORDERED_TO_END,),
    ),
    Row(
        "process-failed", Speaker.LAUNCHER, Level.ERROR, "", b" left with exit code ",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+) left with exit code (?P<code>[1-9]\d*)",
        "[2026-11-21 19:44:33] pdctl: decode-0 generation 1 left with exit code 1",
        proves=(Sign.DIED,),
    ),
    Row(
        "process-left", Speaker.LAUNCHER, Level.INFO, "", b" left with exit code ",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+) left with exit code (?P<code>\d+)",
        "[2026-11-21 19:44:33] pdctl: decode-0 generation 1 left with exit code 0",
    ),
    # Of log_lines.py, in which engines and the router write alike.
    Row(
        "lines-lost", Speaker.LAUNCHER, Level.WARNING, "", b" of this log could not be written since ",
        r"(?P<lost>\d+) lines? of this log could not be written since "
        r"(?P<since>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d): (?P<reason>.*)",
        "[2026-11-23 16:02:11.204] WARNING 173 lines of this log could not be written since 2026-11-23 16:01:58: No "
        "space left on device",
        proves=(Sign.LINES_LOST,),
    ),
)  # fmt: skip
