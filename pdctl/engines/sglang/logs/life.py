"""A process from its first line to its last: arguments, weights, ports, DP workers, warm-up, ready, drain, stop."""

from __future__ import annotations

from pdctl.engines.base import Level, Phase, Row, Sign, Speaker
from pdctl.engines.versions import (
    V0_5_3,
    V0_5_3_POST2,
    V0_5_6,
    V0_5_8,
    V0_5_9,
    V0_5_10,
    V0_5_11,
    V0_5_13,
    V0_5_14,
    V0_5_16,
    V0_5_17,
    V0_5_19,
    V0_5_22,
    Span,
)

DEBUG = "--log-level debug"

ROWS = (
    Row(
        "server-args", Speaker.SGLANG, Level.INFO, "", b"server_args=ServerArgs(",
        r"server_args=ServerArgs\((?P<args>.*)",
        "[2026-11-21 01:19:11] server_args=ServerArgs(model_path='/srv/model', tokenizer_mode='auto', "
        "host='127.0.0.1', port=30002, tp_size=1, dp_size=1, page_size=1, kv_cache_dtype='auto', log_level='debug', "
        "disaggregation_mode='decode', disaggregation_transfer_backend='nixl', disaggregation_bootstrap_port=8998)",
        Span(V0_5_3, V0_5_19),
        proves=(Sign.ARGUMENTS, Sign.STARTED, Sign.BOOTSTRAP_PORT),
    ),
    Row(
        "server-args-resolved", Speaker.SGLANG, Level.INFO, "", b"server_args={",
        r"server_args=\{(?P<args>.*)",
        "[2026-11-21 02:06:24] server_args={'model_path': '/srv/model', 'host': '127.0.0.1', 'port': 30000, "
        "'tp_size': 1, 'page_size': 1, 'log_level': 'debug', 'disaggregation_mode': 'prefill', "
        "'disaggregation_transfer_backend': 'nixl', 'disaggregation_bootstrap_port': 8998}",
        Span(V0_5_19),
        proves=(Sign.ARGUMENTS, Sign.STARTED, Sign.BOOTSTRAP_PORT),
    ),
    Row(
        "uvicorn-running", Speaker.SGLANG, Level.INFO, "", b"Uvicorn running on http",
        r"Uvicorn running on https?://(?P<host>\S+):(?P<port>\d+) ",
        "[2026-11-21 02:06:33] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)",
        proves=(Sign.HTTP_PORT, Sign.LISTENS,),
    ),
    Row(
        "process-started", Speaker.SGLANG, Level.INFO, "", b"Started server process [",
        r"Started server process \[(?P<pid>\d+)\]", "[2026-11-21 02:06:33] INFO:     Started server process [26936]",
    ),
    Row(
        "application-started", Speaker.SGLANG, Level.INFO, "", b"Application startup complete.",
        r"Application startup complete\.", "[2026-11-21 02:06:33] INFO:     Application startup complete.",
    ),
    Row(
        "weights-loading", Speaker.SGLANG, Level.INFO, "", b"Load weight begin.", r"Load weight begin\.",
        "[2026-11-21 02:06:31] Load weight begin. avail mem=20.08 GB",
    ),
    Row(
        "weights-loaded", Speaker.SGLANG, Level.INFO, "", b"Load weight end.", r"Load weight end\.",
        "[2026-11-21 02:06:31] Load weight end. elapsed=0.02 s, type=LlamaForCausalLM, avail mem=20.08 GB, "
        "mem usage=0.00 GB.",
        proves=(Sign.WEIGHTS_LOADED,),
    ),
    Row(
        "pool-allocated", Speaker.SGLANG, Level.INFO, "", b"KV Cache is allocated. ",
        r"KV Cache is allocated\. (?P<rest>.*)",
        "[2026-11-21 02:06:32] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4096, K size: 0.00 GB, V size: "
        "0.00 GB",
    ),
    Row(
        "pool-sized", Speaker.SGLANG, Level.INFO, "", b"max_total_num_tokens=",
        r"max_total_num_tokens=(?P<max_total_num_tokens>\d+), chunked_prefill_size=(?P<chunked_prefill_size>-?\d+), "
        r"(?:max_prefill_tokens=\d+, )?max_running_requests=(?P<max_running_requests>\d+), "
        r"context_len=(?P<context_len>\d+)",
        "[2026-11-21 02:06:32] max_total_num_tokens=4096, chunked_prefill_size=4096, max_prefill_tokens=16384, "
        "max_running_requests=8, context_len=1024, available_cpu_mem=19.87 GB",
    ),
    Row(
        "warm-up-started", Speaker.SGLANG, Level.INFO, "", b"Start of pd disaggregation warmup ...",
        r"Start of pd disaggregation warmup \.\.\.", "[2026-11-21 02:06:34] Start of pd disaggregation warmup ...",
    ),
    # The prefill's warm-up request ends after its first token, the decode's after eight.
    Row(
        "prefill-warm-up-ended-old", Speaker.SGLANG, Level.INFO, "prefill",
        b"End of prefill disaggregation mode warmup with status",
        r"End of prefill disaggregation mode warmup with status (?P<status>\d+), resp: "
        r"(?=.{0,400}?'finish_reason': \{'type': 'length', 'length': 0\})",
        "[2026-11-21 01:18:27] End of prefill disaggregation mode warmup with status 200, resp: [{'text': 'J', "
        "'output_ids': [46], 'meta_info': {'id': 'e90ff0044cf54b4089cadfc7733d8bab', "
        "'finish_reason': {'type': 'length', 'length': 0}, 'prompt_tokens': 4}}]",
        Span(V0_5_3, V0_5_11),
    ),
    Row(
        "decode-warm-up-ended-old", Speaker.SGLANG, Level.INFO, "decode",
        b"End of prefill disaggregation mode warmup with status",
        r"End of prefill disaggregation mode warmup with status (?P<status>\d+), resp: "
        r"(?=.{0,400}?'finish_reason': \{'type': 'length', 'length': [1-9])",
        "[2026-11-21 01:21:55] End of prefill disaggregation mode warmup with status 200, resp: [{'text': ' the the', "
        "'output_ids': [0, 296, 0, 296, 0, 296, 0, 296], 'meta_info': {'id': 'ba39cd33fbb6432d9bfa3c9c3bde30ef', "
        "'finish_reason': {'type': 'length', 'length': 8}, 'prompt_tokens': 4}}]",
        Span(V0_5_3, V0_5_11),
    ),
    Row(
        "warm-up-ended-old", Speaker.SGLANG, Level.INFO, "", b"End of prefill disaggregation mode warmup with status",
        r"End of prefill disaggregation mode warmup with status (?P<status>\d+)",
        "[2026-11-21 01:21:55] End of prefill disaggregation mode warmup with status 503, resp: {'error': 'starting'}",
        Span(V0_5_3, V0_5_11),
    ),
    Row(
        "warm-up-ranks-done", Speaker.SGLANG, Level.INFO, "", b"Disaggregation warmup requests completed for all ",
        r"Disaggregation warmup requests completed for all (?P<dp_size>\d+) DP ranks",
        "[2026-11-21 02:06:36] Disaggregation warmup requests completed for all 1 DP ranks", Span(V0_5_16),
    ),
    Row(
        "warm-up-ended", Speaker.SGLANG, Level.INFO, "", b"End of disaggregation warmup",
        r"End of disaggregation warmup", "[2026-11-21 02:06:36] End of disaggregation warmup", Span(V0_5_11),
    ),
    Row(
        "ready", Speaker.SGLANG, Level.INFO, "", b"The server is fired up and ready to roll!",
        r"The server is fired up and ready to roll!",
        "[2026-11-21 02:06:38] The server is fired up and ready to roll!",
        proves=(Sign.READY,),
    ),
    Row(
        "decode-radix-cache-off", Speaker.SGLANG, Level.WARNING, "decode", b"Radix cache is disabled for decode server",
        r"Radix cache is disabled for decode server",
        "[2026-11-21 02:06:23] Radix cache is disabled for decode server", Span(V0_5_22),
    ),
    Row(
        "decode-chunk-cache", Speaker.SGLANG, Level.WARNING, "decode", b"KV cache is forced as chunk cache for decode",
        r"KV cache is forced as chunk cache for decode server",
        "[2026-11-21 01:19:09] WARNING server_args.py:2326: KV cache is forced as chunk cache for decode server",
        Span(V0_5_3, V0_5_22),
    ),
    Row(
        "prefill-graph-off", Speaker.SGLANG, Level.WARNING, "prefill", b"Cuda graph is disabled for prefill server",
        r"Cuda graph is disabled for prefill server",
        "[2026-11-21 01:17:44] WARNING server_args.py:2339: Cuda graph is disabled for prefill server when piecewise "
        "cuda graph is not enabled.",
        Span(V0_5_3, V0_5_13),
    ),
    Row(
        "metrics-on", Speaker.SGLANG, Level.DEBUG, "", b"PROMETHEUS_MULTIPROC_DIR: ",
        r"PROMETHEUS_MULTIPROC_DIR: (?P<directory>\S+)",
        "[2026-11-21 02:06:23] PROMETHEUS_MULTIPROC_DIR: /srv/run/promi4v2c0ib",
    ),
    Row(
        "old-info-path-asked", Speaker.SGLANG, Level.WARNING, "", b"Endpoint '/get_",
        r"Endpoint '(?P<path>/get_\w+)' is deprecated and will be removed in a future version\.",
        "[2026-11-21 02:01:34] Endpoint '/get_server_info' is deprecated and will be removed in a future version. "
        "Please use '/server_info' instead.",
        Span(V0_5_6),
    ),
    Row(
        "sigterm", Speaker.SGLANG, Level.WARNING, "", b"SIGTERM received. ",
        r"SIGTERM received\. signum=(?P<signum>\w+) frame=(?P<frame>\S+)\. (?:Draining requests and s|S)hutting down",
        "[2026-11-21 01:21:23] SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
        proves=(Sign.ORDERED_TO_END,),
    ),
    Row(
        "draining", Speaker.SGLANG, Level.INFO, "", b"Gracefully exiting... Remaining number of requests ",
        r"Gracefully exiting\.\.\. Remaining number of requests (?P<left>\d+)\. Remaining requests "
        r"remaining_rids=\[(?P<rids>[^\]]*)\]",
        "[2026-11-21 01:21:24] Gracefully exiting... Remaining number of requests 1. Remaining requests "
        "remaining_rids=['ba39cd33fbb6432d9bfa3c9c3bde30ef'].",
        proves=(Sign.DRAINED,),
    ),
    Row(
        "uvicorn-stopping", Speaker.SGLANG, Level.INFO, "", b"Shutting down", r"Shutting down$",
        "[2026-11-21 02:07:07] INFO:     Shutting down",
        proves=(Sign.ORDERED_TO_END,),
    ),
    Row(
        "process-finished", Speaker.SGLANG, Level.INFO, "", b"Finished server process [",
        r"Finished server process \[(?P<pid>\d+)\]", "[2026-11-21 02:07:07] INFO:     Finished server process [26938]",
    ),
    Row(
        "process-tree-killed", Speaker.SGLANG, Level.INFO, "", b"kill_process_tree called: ",
        r"kill_process_tree called: parent_pid=(?P<parent_pid>\w+), include_parent=(?P<include_parent>\w+), "
        r"pid=(?P<pid>\d+)",
        "[2026-11-21 02:07:07] kill_process_tree called: parent_pid=26938, include_parent=False, pid=26938",
        Span(V0_5_13),
    ),
    # Not in the logs we recorded.
    Row(
        "forced-exit", Speaker.SGLANG, Level.ERROR, "", b"Signal SIGTERM received while ",
        r"Signal SIGTERM received while (?P<reason>[^.]*)\. Force exiting\.",
        "[2026-11-21 02:07:07] Signal SIGTERM received while health check failed. Force exiting.", cause="PD605",
        proves=(Sign.CRASHED,),
    ),
    Row(
        "client-disconnected", Speaker.SGLANG, Level.INFO, "", b"[http_server] Client disconnected: ",
        r"\[http_server\] Client disconnected: (?=(?:.{0,400}?\(type (?P<kind>\d)\))?"
        r"(?:.{0,400}?obj\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\"))?)(?P<reason>.*)",
        "[2026-11-21 02:07:07] [http_server] Client disconnected: Request is disconnected from the client side "
        "(type 1). Abort request obj.rid='badac3cbd6c54ba4b02bc9c9299da2db'",
        Span(V0_5_13), Phase.ABORTED, cause="PD706",
        proves=(Sign.REQUEST_CUT, Sign.CLIENT_LEFT),
    ),
    Row(
        "dp-rank-started", Speaker.SGLANG, Level.INFO, "", b"Launch DP",
        r"Launch DP(?P<dp_rank>\d+) starting at GPU #(?P<gpu>\d+)\.",
        "[2026-11-21 02:18:50] Launch DP0 starting at GPU #0.",
    ),
    Row(
        "dp-worker-chosen", Speaker.SGLANG, Level.DEBUG, "", b"Choose worker ",
        r"Choose worker (?P<dp_rank>\d+)(?: for health check)?", "[2026-11-21 02:16:35] Choose worker 0",
        Span(V0_5_8), needs=DEBUG,
    ),
    Row(
        "dp-port-assigned", Speaker.SGLANG, Level.DEBUG, "", b"Assigned port ",
        r"Assigned port (?P<port>\d+) to worker (?:slot )?(?P<dp_rank>\d+)",
        "[2026-11-21 02:16:23] Assigned port 46665 to worker 0", Span(V0_5_3_POST2), needs=DEBUG,
    ),
    Row(
        "dp-ports", Speaker.SGLANG, Level.DEBUG, "", b"Worker ports: [", r"Worker ports: \[(?P<ports>[^\]]*)\]",
        "[2026-11-21 02:16:23] Worker ports: [46665, 43349]", Span(V0_5_3_POST2), needs=DEBUG,
    ),
    Row(
        "dp-ports-sending", Speaker.SGLANG, Level.DEBUG, "", b"Broadcasting worker ports to ",
        r"Broadcasting worker ports to (?P<nodes>\d+) client nodes",
        "[2026-11-21 02:16:23] Broadcasting worker ports to 0 client nodes", Span(V0_5_3_POST2), needs=DEBUG,
    ),
    Row(
        "dp-ports-sent", Speaker.SGLANG, Level.DEBUG, "", b"Worker port broadcast completed",
        r"Worker port broadcast completed", "[2026-11-21 02:16:23] Worker port broadcast completed", Span(V0_5_3_POST2),
        needs=DEBUG,
    ),
    Row(
        "output-unwanted", Speaker.SGLANG, Level.WARNING, "", b" but the state was deleted in TokenizerManager.",
        r"Received output for rid='?(?P<rid>.+?)'? but the state was deleted in TokenizerManager\.",
        "[2026-11-21 02:18:56] Received output for rid='b19891ef380e4d59a023d507187bb770' but the state was deleted in "
        "TokenizerManager.",
    ),
    # Not in the logs we recorded.
    Row(
        "dp-worker-given", Speaker.SGLANG, Level.DEBUG, "", b"Direct routing to DP rank ",
        r"Direct routing to DP rank (?P<dp_rank>\d+)", "[2026-11-21 02:16:35] Direct routing to DP rank 1",
        needs=DEBUG,
    ),
    Row(
        "dp-ports-late", Speaker.SGLANG, Level.ERROR, "", b"Timeout waiting for worker ports from node 0",
        r"Timeout waiting for worker ports from node 0",
        "[2026-11-21 02:16:23] Timeout waiting for worker ports from node 0", Span(V0_5_3_POST2), cause="PD504",
    ),
    Row(
        "dp-handshake-bad", Speaker.SGLANG, Level.ERROR, "", b"Failed to recv/decode handshake in reply thread",
        r"Failed to recv/decode handshake in reply thread; continue",
        "[2026-11-21 02:16:23] Failed to recv/decode handshake in reply thread; continue", Span(V0_5_11),
    ),
    Row(
        "dp-handshake", Speaker.SGLANG, Level.DEBUG, "", b" worker ports",
        r"(?:Connecting to node 0 to receive|Sent) worker ports ?(?P<rest>.*)",
        "[2026-11-21 02:16:23] Sent worker ports to 1/1 nodes", Span(V0_5_3_POST2), needs=DEBUG,
    ),
    Row(
        "dp-ports-received", Speaker.SGLANG, Level.DEBUG, "", b" worker ports from node 0",
        r"Received (?P<ports>\S+) worker ports from node 0",
        "[2026-11-21 02:16:23] Received 2 worker ports from node 0", Span(V0_5_3_POST2), needs=DEBUG,
    ),
    Row(
        "dp-balance-deprecated", Speaker.SGLANG, Level.WARNING, "", b"The 'minimum_tokens' load balancing method",
        r"The 'minimum_tokens' load balancing method is deprecated",
        "[2026-11-21 02:16:23] The 'minimum_tokens' load balancing method is deprecated for now and will introduced "
        "later.Fall back to 'round_robin_scheduler'",
        Span(V0_5_3, V0_5_8),
    ),
    Row(
        "dp-active-ranks", Speaker.SGLANG, Level.WARNING, "", b"; ignoring update",
        r"\[(?:DPC|Elastic EP)\](?:\[DPC\])? (?:update_active_ranks: |active rank )status len=(?P<status>\d+) != "
        r"max_dp_size=(?P<dp_size>\d+); ignoring update",
        "[2026-11-21 02:16:23] [DPC] update_active_ranks: status len=2 != max_dp_size=4; ignoring update",
        Span(V0_5_16),
    ),
    Row(
        "dp-elastic", Speaker.SGLANG, Level.DEBUG, "", b"[Elastic EP] ", r"\[Elastic EP\] (?P<rest>.*)",
        "[2026-11-21 02:16:23] [Elastic EP] add_elastic_workers: slot 2 already active; skipping", Span(V0_5_10),
        needs=DEBUG,
    ),
    Row(
        "prefill-dcp", Speaker.SGLANG, Level.WARNING, "prefill", b"DCP on a PD prefill server is supported when",
        r"DCP on a PD prefill server is supported when prefill and decode use the same DCP layout",
        "[2026-11-21 02:06:23] DCP on a PD prefill server is supported when prefill and decode use the same DCP "
        "layout, but it usually adds communication overhead without improving prefill performance.",
        Span(V0_5_17),
    ),
    Row(
        "decode-radix-cache-dp", Speaker.SGLANG, Level.WARNING, "decode", b"EXPERIMENTAL: Decode radix cache with DP",
        r"EXPERIMENTAL: Decode radix cache with DP attention\.",
        "[2026-11-21 02:06:23] EXPERIMENTAL: Decode radix cache with DP attention. Requires prefix-aware DP rank "
        "routing for optimal cache hits.",
        Span(V0_5_11),
    ),
    Row(
        "decode-radix-cache-on", Speaker.SGLANG, Level.WARNING, "decode", b"EXPERIMENTAL: Radix cache is enabled for",
        r"EXPERIMENTAL: Radix cache is enabled for decode server",
        "[2026-11-21 02:06:23] EXPERIMENTAL: Radix cache is enabled for decode server", Span(V0_5_11),
    ),
    Row(
        "decode-mamba-buffer-off", Speaker.SGLANG, Level.WARNING, "decode", b"Mamba extra_buffer is disabled because",
        r"Mamba extra_buffer is disabled because decode disaggregation currently forces chunk cache\.",
        "[2026-11-21 02:06:23] Mamba extra_buffer is disabled because decode disaggregation currently forces chunk "
        "cache. Falling back to no_buffer.",
        Span(V0_5_11, V0_5_14),
    ),
    Row(
        "backend-mooncake-tcp", Speaker.SGLANG, Level.INFO, "", b"disaggregation transfer backend 'mooncake_tcp'",
        r"disaggregation transfer backend 'mooncake_tcp' -> mooncake with MC_FORCE_TCP=1",
        "[2026-11-21 02:06:23] disaggregation transfer backend 'mooncake_tcp' -> mooncake with MC_FORCE_TCP=1 (TCP "
        "transport, no RDMA)",
        Span(V0_5_13), backend="mooncake",
    ),
    Row(
        "encoders-dynamic", Speaker.SGLANG, Level.INFO, "", b"--language-only is set without --encoder-urls.",
        r"--language-only is set without --encoder-urls\.",
        "[2026-11-21 02:06:23] --language-only is set without --encoder-urls. Encoders are expected to register "
        "dynamically via the EncoderBootstrapServer.",
        Span(V0_5_13),
    ),
    Row(
        "encoder-backend", Speaker.SGLANG, Level.INFO, "", b"Encoder transfer backend auto-resolved to ",
        r"Encoder transfer backend auto-resolved to (?P<encoder_backend>\S+) for (?P<model>\S+) at TP(?P<tp>\d+)\.",
        "[2026-11-21 02:06:23] Encoder transfer backend auto-resolved to zmq for Qwen3VLForConditionalGeneration at "
        "TP1.",
        Span(V0_5_17),
    ),
    Row(
        "no-ib-device", Speaker.SGLANG, Level.WARNING, "", b"No IB devices specified for Mooncake backend",
        r"No IB devices specified for Mooncake backend, falling back to auto discovery\.",
        "[2026-11-21 02:06:23] No IB devices specified for Mooncake backend, falling back to auto discovery.",
        Span(V0_5_9), backend="mooncake",
    ),
    Row(
        "continuous-polling-off", Speaker.SGLANG, Level.WARNING, "prefill", b"Continuous prefill input polling require",
        r"Continuous prefill input polling requires attention DP=CP=1",
        "[2026-11-21 02:06:23] Continuous prefill input polling requires attention DP=CP=1 and non-speculative "
        "autoregressive generation; using the regular overlap loop.",
        Span(V0_5_22),
    ),
)  # fmt: skip
