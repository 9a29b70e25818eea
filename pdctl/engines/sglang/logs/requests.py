"""A request as the HTTP side sees it: what arrived, what was sent, and the times of one room.

Includes warm-up and health requests, whose bootstrap_host 2.2.2.2 makes both sides use a fake peer. They show the role
of the file they are in: only a prefill has senders, only a decode has receivers.
"""

from __future__ import annotations

from pdctl.engines.base import Level, Phase, Row, Sign, Speaker
from pdctl.engines.versions import V0_5_3, V0_5_3_POST3, V0_5_7, V0_5_10, V0_5_12, V0_5_21, V0_5_22, Span

LOG_REQUESTS = "--log-requests"
TIME_STATS = "--enable-request-time-stats-logging"

# Fields are in the dataclass's order, which differs by release. A batch shows lists of rids and rooms, to be zipped.
# Text from a client is in quotes, as repr() and json.dumps() write them: a room inside them is not this request's.
_TO = r"""[^'"]*?(?:(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")[^'"]*?)*?\b"""
_RID = rf"(?={_TO}rid=(?:'(?P<rid>[^']*)'|\[(?P<rids>[^\]]*)\]))?"
_ROOM = (
    rf"(?={_TO}bootstrap_host='(?P<host>[^']*)')?(?={_TO}bootstrap_port=(?P<port>\d+|None))?"
    rf"(?={_TO}bootstrap_room=(?:(?P<room>\d+)|\[(?P<rooms>[\d, ]*)\]))?"
)
# The lines with times write a client's rid without quotes: what the engine itself writes stands behind it, so the last
# match counts, and the times are what no other such line follows.
_BARE_RID = r"rid=(?P<rid>.+)(?<!, bootstrap_room=None)(?:, bootstrap_room=None)?, "
_TIMES = r"(?P<times>(?!.*, type=).*)"
# --log-requests-format json (0.5.8+): one object after the usual prefix. A nested object may be a client's.
_EVENT = r'\{"timestamp": "[^"]*", "event": '
_STRING = r'"(?:[^"\\]|\\.)*"'
_NESTED = _STRING
for _ in range(4):  # levels of a client's objects
    _NESTED = rf"{_STRING}|\{{(?:[^{{}}\"]|{_NESTED})*\}}"
_OBJ = rf'(?:[^{{}}"]|{_STRING})*?"obj": \{{(?:[^{{}}"]|{_NESTED})*?'
_JSON = (
    r'(?=.{0,400}?"rid": (?:"(?P<rid>[^"]*)"|\[(?P<rids>[^\]]*)\]))?'
    rf'(?={_OBJ}"bootstrap_host": "(?P<host>[^"]*)")?(?={_OBJ}"bootstrap_port": (?P<port>\d+|null))?'
    rf'(?={_OBJ}"bootstrap_room": (?:(?P<room>\d+)|\[(?P<rooms>[\d, ]*)\]))?'
)
DEBUG = "--log-level debug"

ROWS = (
    Row(
        "request-received", Speaker.SGLANG, Level.INFO, "", b"Receive: obj=GenerateReqInput(",
        r"Receive: obj=GenerateReqInput\(" + _RID + _ROOM,
        "[2026-11-21 02:21:40] Receive: obj=GenerateReqInput(rid='2bfafc2472b4467383402a55ee1d31d5', "
        "bootstrap_host='127.0.0.1', bootstrap_port=8998, bootstrap_room=7707449254856086911, stream=False)",
        phase=Phase.RECEIVED, needs=LOG_REQUESTS,
        proves=(Sign.REQUEST_ARRIVED,),
    ),
    Row(
        "request-cut-short", Speaker.SGLANG, Level.INFO, "", b"Finish: obj=GenerateReqInput(",
        r"Finish: obj=GenerateReqInput\((?=.*'finish_reason': (?P<finish>'abort'|\{'type': 'abort'))" + _RID + _ROOM,
        "[2026-11-21 20:06:40] Finish: obj=GenerateReqInput(rid='0d753e34541c404799530b67fa9b6fdc', "
        "bootstrap_host='127.0.0.1', bootstrap_port=None, bootstrap_room=8493053644715138183, stream=False), "
        "out={'meta_info': {'finish_reason': {'type': 'abort', 'message': 'Aborted by AbortReq.'}}}",
        phase=Phase.ABORTED, needs=LOG_REQUESTS,
    ),
    Row(
        "request-finished", Speaker.SGLANG, Level.INFO, "", b"Finish: obj=GenerateReqInput(",
        r"Finish: obj=GenerateReqInput\(" + _RID + _ROOM + r"(?=.*?'finish_reason': (?P<finish>'\w+'|\{[^}]*\}))?",
        "[2026-11-21 19:44:33] Finish: obj=GenerateReqInput(rid='ae84787d41d54e459c79ecd0bd1f5177', "
        "bootstrap_host='127.0.0.1', bootstrap_port=8998, bootstrap_room=3931829090235125), "
        "out={'finish_reason': 'length', 'prompt_tokens': 1, 'completion_tokens': 1, 'e2e_latency': 0.029422}",
        phase=Phase.FINISHED, needs=LOG_REQUESTS,
        proves=(Sign.REQUEST_FINISHED,),
    ),
    # Not in the logs we recorded.
    Row(
        "openai-request-received", Speaker.SGLANG, Level.INFO, "", b"Receive OpenAI: obj=",
        r"Receive OpenAI: obj=(?P<kind>\w+)\(" + _RID + _ROOM,
        "[2026-11-21 02:06:48] Receive OpenAI: obj=ChatCompletionRequest(model='default', "
        "rid='2bfafc2472b4467383402a55ee1d31d5', bootstrap_host='127.0.0.1', bootstrap_port=8998, "
        "bootstrap_room=7707449254856086911)",
        Span(V0_5_10), Phase.RECEIVED, needs=LOG_REQUESTS,
        proves=(Sign.REQUEST_ARRIVED,),
    ),
    Row(
        "request-received-json", Speaker.SGLANG, Level.INFO, "", b'"event": "request.received"',
        _EVENT + r'"request\.received"' + _JSON,
        '[2026-11-21 02:06:48] {"timestamp": "2026-11-21T02:06:48.123456", "event": "request.received", "rid": '
        '"2bfafc2472b4467383402a55ee1d31d5", "obj": {"stream": false, "bootstrap_host": "127.0.0.1", "bootstrap_port": '
        '8998, "bootstrap_room": 7707449254856086911}}',
        Span(V0_5_7), Phase.RECEIVED, needs=LOG_REQUESTS,
        proves=(Sign.REQUEST_ARRIVED,),
    ),
    Row(
        "request-cut-short-json", Speaker.SGLANG, Level.INFO, "", b'"event": "request.finished"',
        _EVENT + r'"request\.finished"(?=.*"finish_reason": (?P<finish>\{"type": "abort"))' + _JSON,
        '[2026-11-21 02:06:49] {"timestamp": "2026-11-21T02:06:49.123456", "event": "request.finished", "rid": '
        '"2bfafc2472b4467383402a55ee1d31d5", "obj": {"bootstrap_room": 7707449254856086911}, "out": {"meta_info": '
        '{"finish_reason": {"type": "abort", "message": "Aborted by AbortReq."}}}}',
        Span(V0_5_7), Phase.ABORTED, needs=LOG_REQUESTS,
    ),
    Row(
        "request-finished-json", Speaker.SGLANG, Level.INFO, "", b'"event": "request.finished"',
        _EVENT + r'"request\.finished"(?=.*"finish_reason": (?P<finish>\{"type": "\w+"))?' + _JSON,
        '[2026-11-21 02:06:49] {"timestamp": "2026-11-21T02:06:49.123456", "event": "request.finished", "rid": '
        '"2bfafc2472b4467383402a55ee1d31d5", "obj": {"bootstrap_room": 7707449254856086911}, "out": {"meta_info": '
        '{"finish_reason": {"type": "length", "length": 16}}}}',
        Span(V0_5_7), Phase.FINISHED, needs=LOG_REQUESTS,
        proves=(Sign.REQUEST_FINISHED,),
    ),
    Row(
        "prefill-times-old", Speaker.SGLANG, Level.INFO, "prefill", b"Req Time Stats(rid=",
        r"Req Time Stats\(rid=(?P<rid>.+), bootstrap_room=(?P<room>\d+), input len=(?P<input>\d+), "
        r"output len=(?P<output>\d+), type=prefill\): " + _TIMES,
        "[2026-11-21 01:26:22] Req Time Stats(rid=2bfafc2472b4467383402a55ee1d31d5, "
        "bootstrap_room=7707449254856086911, input len=5, output len=1, type=prefill): bootstrap_duration=12.10ms, "
        "queue_duration=0.41ms, forward_duration=88.20ms, start_time=42.123",
        Span(V0_5_3, V0_5_12), Phase.FINISHED, needs=TIME_STATS,
        proves=(Sign.PREFILL_TIMES,),
    ),
    Row(
        "decode-times-old", Speaker.SGLANG, Level.INFO, "decode", b"Req Time Stats(rid=",
        r"Req Time Stats\(rid=(?P<rid>.+), bootstrap_room=(?P<room>\d+), input len=(?P<input>\d+), "
        r"output len=(?P<output>\d+), type=decode\): " + _TIMES,
        "[2026-11-21 01:26:22] Req Time Stats(rid=2bfafc2472b4467383402a55ee1d31d5, "
        "bootstrap_room=7707449254856086911, input len=5, output len=8, type=decode): prealloc_duration=1.10ms, "
        "transfer_duration=92.41ms, queue_duration=0.10ms, forward_duration=310.22ms, start_time=42.123",
        Span(V0_5_3, V0_5_12), Phase.FINISHED, needs=TIME_STATS,
        proves=(Sign.PAGE_LIST_SENT, Sign.CACHE_ARRIVED, Sign.DECODE_TIMES),
    ),
    Row(
        "times-old", Speaker.SGLANG, Level.INFO, "", b"Req Time Stats(rid=",
        r"Req Time Stats\(" + _BARE_RID + r"input len=(?P<input>\d+), "
        r"output len=(?P<output>\d+), type=(?P<kind>\w+)\): " + _TIMES,
        "[2026-11-21 01:26:22] Req Time Stats(rid=2bfafc2472b4467383402a55ee1d31d5, input len=5, output len=8, "
        "type=unified): queue_duration=0.10ms, forward_duration=310.22ms, start_time=42.123",
        Span(V0_5_3, V0_5_12), needs=TIME_STATS,
    ),
    Row(
        "prefill-times", Speaker.SGLANG, Level.INFO, "prefill", b"ReqTimeStats(rid=",
        r"ReqTimeStats\(rid=(?P<rid>.+), bootstrap_room=(?P<room>\d+), input_len=(?P<input>\d+), "
        r"cached_input_len=(?P<cached>\d+), output_len=(?P<output>\d+)(?:, attempts=(?P<attempts>\d+))?, "
        r"type=prefill\): " + _TIMES,
        "[2026-11-21 19:44:33] ReqTimeStats(rid=ae84787d41d54e459c79ecd0bd1f5177, bootstrap_room=3931829090235125, "
        "input_len=1, cached_input_len=0, output_len=1, type=prefill): bootstrap_duration=20.88ms, "
        "queue_duration=0.14ms, forward_duration=2.50ms, transfer_duration=5.40ms, entry_time=1795290273.746, "
        "transfer_speed=0.07 GB/s, transfer_total=0.03 MB",
        Span(V0_5_12), Phase.FINISHED, needs=TIME_STATS,
        proves=(Sign.PREFILL_TIMES,),
    ),
    Row(
        "decode-times", Speaker.SGLANG, Level.INFO, "decode", b"ReqTimeStats(rid=",
        r"ReqTimeStats\(rid=(?P<rid>.+), bootstrap_room=(?P<room>\d+), input_len=(?P<input>\d+), "
        r"cached_input_len=(?P<cached>\d+), output_len=(?P<output>\d+)(?:, attempts=(?P<attempts>\d+))?, "
        r"type=decode\): " + _TIMES,
        "[2026-11-21 19:44:33] ReqTimeStats(rid=74ad9ff27b00454c94b557ddc4eed3f7, bootstrap_room=3931829090235125, "
        "input_len=1, cached_input_len=0, output_len=1, type=decode): prealloc_queue_duration=13.96ms, "
        "transfer_duration=4.60ms, entry_time=1795290273.752, transfer_speed=0.01 GB/s, transfer_total=0.03 MB",
        Span(V0_5_12), Phase.FINISHED, needs=TIME_STATS,
        proves=(Sign.PAGE_LIST_SENT, Sign.CACHE_ARRIVED, Sign.DECODE_TIMES),
    ),
    Row(
        "times", Speaker.SGLANG, Level.INFO, "", b"ReqTimeStats(rid=",
        r"ReqTimeStats\(" + _BARE_RID + r"input_len=(?P<input>\d+), "
        r"cached_input_len=(?P<cached>\d+), output_len=(?P<output>\d+)(?:, attempts=(?P<attempts>\d+))?, "
        r"type=(?P<kind>\w+)\): " + _TIMES,
        "[2026-11-21 02:06:50] ReqTimeStats(rid=74ad9ff27b00454c94b557ddc4eed3f7, input_len=1, cached_input_len=0, "
        "output_len=1, attempts=0, type=unified): queue_duration=0.14ms, forward_duration=2.50ms",
        Span(V0_5_12), needs=TIME_STATS,
    ),
    Row(
        "request-without-room", Speaker.SGLANG, Level.ERROR, "", b"Disaggregated request received without boo",
        r"Invalid request: Disaggregated request received without boot?strap room id\. "
        r"req\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\")",
        "[2026-11-21 01:48:06] Invalid request: Disaggregated request received without boostrap room id. "
        "req.rid='badac3cbd6c54ba4b02bc9c9299da2db'",
        cause="PD712",
    ),
    Row(
        "client-left", Speaker.SGLANG, Level.ERROR, "", b"Request is disconnected from the client side",
        r"\[http_server\] Error: Request is disconnected from the client side \((?P<kind>type \d)\)\. Abort request "
        r"obj\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\")",
        "[2026-11-21 20:09:51] [http_server] Error: Request is disconnected from the client side (type 1). Abort "
        "request obj.rid='b8a24d9b2a4e445ab98cf7187ca3eb9e'",
        phase=Phase.ABORTED, cause="PD706",
        proves=(Sign.REQUEST_CUT, Sign.CLIENT_LEFT),
    ),
    Row(
        "request-refused", Speaker.SGLANG, Level.ERROR, "", b"[http_server] Error: ",
        r"\[http_server\] Error: (?P<reason>.*)",
        "[2026-11-21 01:48:06] [http_server] Error: Invalid request: Disaggregated request received without boostrap "
        "room id. req.rid='badac3cbd6c54ba4b02bc9c9299da2db'",
        echo=True,
    ),
    Row(
        "request-too-long", Speaker.SGLANG, Level.ERROR, "", b" exceeds the maximum number of tokens: ",
        r"Request (?P<rid>.+) exceeds the maximum number of tokens: (?P<tokens>\d+) > (?P<limit>\d+)",
        "[2026-11-21 01:48:06] Request badac3cbd6c54ba4b02bc9c9299da2db exceeds the maximum number of tokens: "
        "5000 > 4091",
        cause="PD505",
    ),
    Row(
        "request-tokenized", Speaker.SGLANG, Level.DEBUG, "", b"Using regular tokenizer for ",
        r"Using regular tokenizer for (?P<inputs>\d+) inputs",
        "[2026-11-21 02:06:48] Using regular tokenizer for 1 inputs", needs="--log-level debug",
        proves=(Sign.REQUEST_TOKENIZED,),
    ),
    Row(
        "rank-argument-ignored", Speaker.SGLANG, Level.DEBUG, "", b"is ignored because num_dp_ranks=",
        r"routed_dp_rank=(?P<dp_rank>\d+) is ignored because num_dp_ranks=(?P<dp_size>\d+)",
        "[2026-11-21 02:06:34] routed_dp_rank=0 is ignored because num_dp_ranks=1", Span(V0_5_22),
        needs="--log-level debug",
    ),
    Row(
        "rank-argument-ignored-old", Speaker.SGLANG, Level.DEBUG, "", b"is ignored because dp_size=",
        r"routed_dp_rank=(?P<dp_rank>\d+) is ignored because dp_size=(?P<dp_size>\d+)",
        "[2026-11-21 02:04:22] routed_dp_rank=0 is ignored because dp_size=1", Span(V0_5_10, V0_5_22),
        needs="--log-level debug",
    ),
    Row(
        "client-gone", Speaker.SGLANG, Level.ERROR, "", b"Request is disconnected from the client side",
        r"ValueError: Request is disconnected from the client side \((?P<kind>type \d)\)\. Abort request "
        r"obj\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\")",
        "ValueError: Request is disconnected from the client side (type 1). Abort request "
        "obj.rid='badac3cbd6c54ba4b02bc9c9299da2db'",
        cause="PD706",
        proves=(Sign.REQUEST_CUT, Sign.CLIENT_LEFT),
    ),
    # These name only the rid, which identifies the room within one instance.
    Row(
        "aborted-in-bootstrap", Speaker.SGLANG, Level.DEBUG, "prefill", b"Abort bootstrap queue request.",
        r"Abort bootstrap queue request\. req\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\")",
        "[2026-11-21 01:48:06] Abort bootstrap queue request. req.rid='badac3cbd6c54ba4b02bc9c9299da2db'",
        phase=Phase.ABORTED, cause="PD706", needs="--log-level debug",
        proves=(Sign.GAVE_UP_REQUEST,),
    ),
    Row(
        "aborted-in-flight", Speaker.SGLANG, Level.DEBUG, "prefill", b"Abort inflight queue request.",
        r"Abort inflight queue request\. req\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\")",
        "[2026-11-21 01:48:06] Abort inflight queue request. req.rid='badac3cbd6c54ba4b02bc9c9299da2db'",
        phase=Phase.ABORTED, cause="PD706", needs="--log-level debug",
    ),
    Row(
        "aborted-in-prealloc", Speaker.SGLANG, Level.DEBUG, "decode", b"Abort prealloc queue request.",
        r"Abort prealloc queue request\. decode_req\.req\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\")",
        "[2026-11-21 01:48:06] Abort prealloc queue request. decode_req.req.rid='badac3cbd6c54ba4b02bc9c9299da2db'",
        phase=Phase.ABORTED, cause="PD706", needs="--log-level debug",
    ),
    Row(
        "aborted-in-transfer", Speaker.SGLANG, Level.DEBUG, "decode", b"Abort transfer queue request.",
        r"Abort transfer queue request\. decode_req\.req\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\")",
        "[2026-11-21 01:48:06] Abort transfer queue request. decode_req.req.rid='badac3cbd6c54ba4b02bc9c9299da2db'",
        phase=Phase.ABORTED, cause="PD706", needs="--log-level debug",
    ),
    Row(
        "aborted-queued", Speaker.SGLANG, Level.DEBUG, "", b" request. req.rid=",
        r"Abort (?P<queue>queued|running|grammar queue|chunked prefill|dLLM queued) request\. "
        r"req\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\")",
        "[2026-11-21 01:48:06] Abort running request. req.rid='badac3cbd6c54ba4b02bc9c9299da2db'",
        phase=Phase.ABORTED, cause="PD706", needs="--log-level debug",
        proves=(Sign.REQUEST_CUT,),
    ),
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
    # Not in the logs we recorded.
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
