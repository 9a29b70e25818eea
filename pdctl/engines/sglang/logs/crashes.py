"""What a process writes when it cannot continue, and the Python errors whose last line names the cause."""

from __future__ import annotations

from pdctl.engines.base import Level, Phase, Row, Sign, Speaker
from pdctl.engines.versions import V0_5_3_POST3, V0_5_4, V0_5_8, V0_5_10, V0_5_18, V0_5_21, V0_5_23, Span

ROWS = (
    Row(
        "scheduler-crashed", Speaker.SGLANG, Level.ERROR, "", b"Scheduler hit an exception",
        r"Scheduler hit an exception",
        "[2026-11-21 02:12:44] Scheduler hit an exception: Traceback (most recent call last):", cause="PD709",
        proves=(Sign.CRASHED,),
    ),
    Row(
        "child-failed", Speaker.SGLANG, Level.ERROR, "", b"Received sigquit from a child process.",
        r"Received sigquit from a child process\.",
        "[2026-11-21 02:16:43] Received sigquit from a child process. It usually means the child failed.",
        cause="PD709", echo=True,
        proves=(Sign.CRASHED,),
    ),
    Row(
        "sigquit", Speaker.SGLANG, Level.ERROR, "", b"SIGQUIT received. signum=", r"SIGQUIT received\. signum=",
        "[2026-11-21 02:12:44] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        cause="PD709", echo=True,
        proves=(Sign.CRASHED, Sign.FOLLOWED_CHILD),
    ),
    Row(
        "page-size-mismatch", Speaker.SGLANG, Level.ERROR, "decode", b"Page size mismatch: prefill server has page_",
        r"Page size mismatch: prefill server has page_size=(?P<prefill_page_size>\d+), but decode server has "
        r"page_size=(?P<decode_page_size>\d+)",
        "[2026-11-21 02:12:44] Page size mismatch: prefill server has page_size=1, but decode server has "
        "page_size=16. Both servers must use the same --page-size value.",
        Span(V0_5_8, V0_5_10), cause="PD302",
    ),
    Row(
        "page-size-error", Speaker.SGLANG, Level.ERROR, "decode", b"Page size mismatch: prefill server has page_",
        r"RuntimeError: Page size mismatch: prefill server has page_size=(?P<prefill_page_size>\d+), but decode "
        r"server has page_size=(?P<decode_page_size>\d+)",
        "RuntimeError: Page size mismatch: prefill server has page_size=1, but decode server has page_size=16. Both "
        "servers must use the same --page-size value.",
        Span(V0_5_8), cause="PD302",
    ),
    # sglang 0.5.8's NIXL sender looks up a room that was never announced to it, or is gone: the number is the room.
    Row(
        "room-key-error", Speaker.SGLANG, Level.ERROR, "", b"KeyError: ", r"KeyError: (?P<room>\d{4,20})$",
        "KeyError: 777001", phase=Phase.FAILED, cause="PD709",
        proves=(Sign.ROOM_USED_UP,),
    ),
    Row(
        "traceback", Speaker.SGLANG, Level.ERROR, "", b"Traceback (most recent call last):",
        r"Traceback \(most recent call last\):", "Traceback (most recent call last):", echo=True,
    ),
    Row(
        "traceback-frame", Speaker.SGLANG, Level.ERROR, "", b'  File "',
        r'  File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>\S+)',
        '  File "/srv/src/sglang/srt/managers/scheduler.py", line 2991, in run_scheduler_process', echo=True,
    ),
    Row(
        "traceback-code", Speaker.SGLANG, Level.ERROR, "", b"    ", r"    (?P<code>.*)",
        "    scheduler.event_loop_normal_disagg_prefill()", echo=True, follows="traceback-frame",
    ),
    Row(
        "bootstrap-request-error", Speaker.SGLANG, Level.ERROR, "prefill", b"Error handling request from ",
        r"Error handling request from (?P<host>\S+)", "[2026-11-21 02:01:33] Error handling request from 127.0.0.1",
    ),
    Row(
        "asgi-exception", Speaker.SGLANG, Level.ERROR, "", b"Exception in ASGI application",
        r"Exception in ASGI application", "[2026-11-21 01:26:37] ERROR:    Exception in ASGI application",
    ),
    # Not in the logs we recorded.
    Row(
        "kv-dtype-mismatch", Speaker.SGLANG, Level.ERROR, "decode", b"KV cache dtype mismatch: prefill server has ",
        r"RuntimeError: KV cache dtype mismatch: prefill server has kv_cache_dtype=(?P<prefill_dtype>"
        r"[^\s,]+), but decode server has kv_cache_dtype=(?P<decode_dtype>[^\s,]+)\.",
        "RuntimeError: KV cache dtype mismatch: prefill server has kv_cache_dtype=auto, but decode server has "
        "kv_cache_dtype=fp8_e4m3. Both servers must use the same --kv-cache-dtype value.",
        Span(V0_5_10), cause="PD303",
    ),
    Row(
        "kv-layout-mismatch", Speaker.SGLANG, Level.ERROR, "decode", b"KV layout mismatch: prefill server has ",
        r"RuntimeError: KV layout mismatch: prefill server has kv_layout=(?P<prefill_layout>[^\s,]+), "
        r"but decode server has kv_layout=(?P<decode_layout>[^\s,]+)\.",
        "RuntimeError: KV layout mismatch: prefill server has kv_layout=nhd, but decode server has kv_layout=hnd. "
        "Both servers must use the same --dsv4-attn-backend and SGLANG_DSV4_KV_LAYOUT.",
        Span(V0_5_23), cause="PD304",
    ),
    Row(
        "kv-regions-mismatch", Speaker.SGLANG, Level.ERROR, "prefill", b"PD KV layout mismatch on the whole-envelope",
        r"RuntimeError: PD KV layout mismatch on the whole-envelope path: (?P<reason>.*)",
        "RuntimeError: PD KV layout mismatch on the whole-envelope path: prefill has 2 KV region(s) with "
        "item_lens=[128, 128], decode has 4 with item_len=64. With --enable-unified-memory both sides must enable it "
        "and use the same page size and model spec.",
        Span(V0_5_18), cause="PD304",
    ),
    Row(
        "dspark-layout-mismatch", Speaker.SGLANG, Level.ERROR, "decode", b"DeepSeek-V4.1 DSpark PD layout mismatch",
        r"RuntimeError: DeepSeek-V4\.1 DSpark PD layout mismatch \((?P<reason>[^)]*)\)",
        "RuntimeError: DeepSeek-V4.1 DSpark PD layout mismatch (block_size): both servers must enable DSpark with the "
        "same block size and target/draft KV layout. Upgrade both servers together.",
        Span(V0_5_21), cause="PD308",
    ),
    Row(
        "hybrid-tp-refused", Speaker.SGLANG, Level.ERROR, "prefill", b"PD Disaggregation does NOT support PD different",
        r"RuntimeError: PD Disaggregation does NOT support PD different TP sizes for (?P<reason>.*)",
        "RuntimeError: PD Disaggregation does NOT support PD different TP sizes for non-MLA SWA hybrid models yet.",
        Span(V0_5_3_POST3),
        cause="PD306",
    ),
    Row(
        "null-bootstrap-host", Speaker.SGLANG, Level.ERROR, "decode", b"'NoneType' object has no attribute 'starts",
        r"AttributeError: 'NoneType' object has no attribute 'startswith'",
        "AttributeError: 'NoneType' object has no attribute 'startswith'", Span(V0_5_10), cause="PD709",
    ),
    Row(
        "room-none", Speaker.SGLANG, Level.ERROR, "", b"req.bootstrap_room should not be None.",
        r"AssertionError: req\.bootstrap_room should not be None\.",
        "AssertionError: req.bootstrap_room should not be None. Do not send requests directly to prefill or decode "
        "instances; send to the router instead.",
        Span(V0_5_4), cause="PD712",
    ),
    Row(
        "foreign-frame", Speaker.SGLANG, Level.ERROR, "prefill", b"Foreign traffic?",
        r"AssertionError: First message should be (?P<reason>.*Foreign traffic\?)",
        "AssertionError: First message should be b'NixlMsgGuard'. Foreign traffic?",
        backend="nixl", cause="PD710",
    ),
    Row(
        "bootstrap-thread-died", Speaker.SGLANG, Level.ERROR, "prefill", b"prefill bootstrap_thread died on engine",
        r"prefill bootstrap_thread died on engine_rank=(?P<rank>\S+); requests to this rank will time out",
        "[2026-11-21 02:16:43] prefill bootstrap_thread died on engine_rank=0; requests to this rank will time out in "
        "KVPoll.Bootstrapping",
        Span(V0_5_21), backend="nixl", cause="PD710",
    ),
    Row(
        "thread-exception", Speaker.SGLANG, Level.ERROR, "", b"Exception in thread ",
        r"Exception in thread (?P<thread>[^:]+):", "Exception in thread Thread-5 (bootstrap_thread):", cause="PD710",
    ),
    Row(
        "dp-controller-crashed", Speaker.SGLANG, Level.ERROR, "", b"DataParallelController hit an exception",
        r"DataParallelController hit an exception",
        "[2026-11-21 02:16:43] DataParallelController hit an exception: Traceback (most recent call last):",
        cause="PD709",
        proves=(Sign.CRASHED,),
    ),
    Row(
        "child-ended", Speaker.SGLANG, Level.ERROR, "", b"Scheduler or DataParallelController ",
        r"Scheduler or DataParallelController (?P<pid>\d+) terminated with (?P<code>-?\d+)",
        "[2026-11-21 02:16:43] Scheduler or DataParallelController 26936 terminated with -9", cause="PD709",
        proves=(Sign.CRASHED, Sign.CHILD_ENDED),
    ),
    Row(
        "subprocess-crashed", Speaker.SGLANG, Level.ERROR, "", b"Subprocess ",
        r"Subprocess (?P<name>\S+) \(pid=(?P<pid>\d+)\) crashed with exit code (?P<code>-?\d+)\.",
        "[2026-11-21 20:04:15] Subprocess sglang::scheduler (pid=26936) crashed with exit code -9. Triggering SIGQUIT "
        "for cleanup...",
        Span(V0_5_10), cause="PD709",
        proves=(Sign.CRASHED, Sign.CHILD_ENDED),
    ),
    Row(
        "part-crashed", Speaker.SGLANG, Level.ERROR, "", b" hit an exception: ",
        r"(?P<name>TokenizerManager|DetokenizerManager|MultiTokenizerRouter|MultiDetokenizerRouter|TpModelWorkerClient)"
        r" hit an exception: ",
        "[2026-11-21 02:16:43] DetokenizerManager hit an exception: Traceback (most recent call last):", cause="PD709",
        proves=(Sign.CRASHED,),
    ),
    Row(
        "watchdog", Speaker.SGLANG, Level.ERROR, "", b"atchdog timeout (self.watchdog_timeout=",
        r"(?:Watchdog|(?P<name>\w+) watchdog) timeout \(self\.watchdog_timeout=(?P<seconds>[\d.]+)",
        "[2026-11-21 02:16:43] Scheduler watchdog timeout (self.watchdog_timeout=300.0, self.soft=False)",
        cause="PD709",
        proves=(Sign.CRASHED,),
    ),
    Row(
        "port-taken", Speaker.SGLANG, Level.ERROR, "", b"address already in use",
        r"\[Errno 98\] (?P<reason>.*address already in use)",
        "[2026-11-21 02:06:33] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): "
        "address already in use",
        cause="PD218",
    ),
    Row(
        "os-port-taken", Speaker.SGLANG, Level.ERROR, "", b"ddress already in use",
        r"OSError: \[Errno 98\] (?P<reason>.*[Aa]ddress already in use)",
        "OSError: [Errno 98] Address already in use", cause="PD218",
    ),
    Row(
        "zmq-port-taken", Speaker.SGLANG, Level.ERROR, "", b"Address already in use",
        r"zmq\.error\.ZMQError: Address already in use", "zmq.error.ZMQError: Address already in use (addr='tcp://*')",
        cause="PD218",
    ),
    Row(
        "flags-unknown", Speaker.SGLANG, Level.ERROR, "", b": error: unrecognized arguments: ",
        r"launch_server\.py: error: unrecognized arguments: (?P<flags>.*)",
        "launch_server.py: error: unrecognized arguments: --disaggregation-decode-tp 2", cause="PD318",
    ),
    Row(
        "out-of-memory", Speaker.SGLANG, Level.ERROR, "", b"out of memory",
        r"torch\.(?:cuda\.)?OutOfMemoryError: (?P<reason>.*out of memory.*)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", cause="PD709",
        proves=(Sign.CRASHED,),
    ),
)  # fmt: skip
