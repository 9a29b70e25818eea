"""sglang-router 0.3.x (its modules are already named smg): tracing lines, none of which names a room at any level.

The request id, path, status and latency are in the http_request span and are added to every row's values
(Speech.match).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines.base import Level, Phase, Row, Sign, Speaker
from pdctl.engines.prefix import cut
from pdctl.quick_definitions import compile_late

if TYPE_CHECKING:
    from collections.abc import Sequence


ROUTER = Speaker.SGLANG_ROUTER
DEBUG = "--log-level debug"
_AT = "/srv/src/"

ROWS = (
    Row(
        "router-starting", ROUTER, Level.INFO, "router", b"Starting router on ",
        r"Starting router on (?P<host>[^\s:]+|\[[^\]\s]+\]):(?P<port>\d+) \| mode: PrefillDecode \{ prefill_urls: "
        r"\[(?P<prefill>[^\]]*)\], decode_urls: \[(?P<decode>[^\]]*)\]",
        "2026-11-21 01:59:33  INFO smg::server: " + _AT + "server.rs:794: Starting router on 127.0.0.1:8000 | mode: "
        'PrefillDecode { prefill_urls: [("http://127.0.0.1:30000", None), ("http://127.0.0.1:30001", None)], '
        'decode_urls: ["http://127.0.0.1:30002"], prefill_policy: Some(RoundRobin), decode_policy: None } | policy: '
        "CacheAware { cache_threshold: 0.3, balance_abs_threshold: 64, balance_rel_threshold: 1.5, "
        "eviction_interval_secs: 60, max_tree_size: 67108864 } | max_payload: 512MB",
        proves=(Sign.STARTED, Sign.WORKERS),
    ),
    Row(
        "workers-initialising", ROUTER, Level.INFO, "router", b"Initializing workers for routing mode: ",
        r"Initializing workers for routing mode: PrefillDecode \{ prefill_urls: \[(?P<prefill>[^\]]*)\], "
        r"decode_urls: \[(?P<decode>[^\]]*)\]",
        "2026-11-21 01:59:33  INFO smg::server: " + _AT + "server.rs:833: Initializing workers for routing mode: "
        'PrefillDecode { prefill_urls: [("http://127.0.0.1:30000", Some(8998))], decode_urls: '
        '["http://127.0.0.1:30002"], prefill_policy: None, decode_policy: None }',
        proves=(Sign.WORKERS,),
    ),
    # Its binary prints these two, without a timestamp, before the first line it logs (as does smg's).
    Row(
        "router-prefills", ROUTER, Level.INFO, "router", b"Prefill nodes: [",
        r"Prefill nodes: \[(?P<prefill>[^\]]*)",
        'Prefill nodes: [("http://127.0.0.1:30000", None), ("http://127.0.0.1:30001", Some(8999))]',
        proves=(Sign.WORKERS, Sign.WORKERS_PRINTED),
    ),
    Row(
        "router-decodes", ROUTER, Level.INFO, "router", b"Decode nodes: [",
        r"Decode nodes: \[(?P<decode>[^\]]*)",
        'Decode nodes: ["http://127.0.0.1:30002"]',
        proves=(Sign.WORKERS, Sign.DECODES_PRINTED),
    ),
    # An excerpt of the start line, cut at its start or end.
    Row(
        "router-targets", ROUTER, Level.INFO, "router", b"prefill_urls: [",
        r"(?:prefill_urls|.{1,400}?prefill_urls): \[(?P<prefill>[^\]]*)(?:\](?:, decode_urls: \[(?P<decode>[^\]]*))?)?",
        'prefill_urls: [("http://10.0.0.1:30000", None), ("http://10.0.0.2:30000", None)], '
        'decode_urls: ["http://10.0.0.3:30000"]',
        proves=(Sign.WORKERS,),
    ),
    Row(
        "router-starting-unpaired", ROUTER, Level.INFO, "router", b"Starting router on ",
        r"Starting router on (?P<host>[^\s:]+|\[[^\]\s]+\]):(?P<port>\d+) \| mode: (?P<mode>.*)",
        "2026-11-21 01:59:33  INFO smg::server: " + _AT + "server.rs:794: Starting router on 127.0.0.1:8000 | mode: "
        'Regular { worker_urls: ["http://127.0.0.1:30000"] } | policy: RoundRobin | max_payload: 512MB',
    ),
    Row(
        "server-starting", ROUTER, Level.INFO, "router", b"Starting server on ",
        r"Starting server on (?P<host>[^\s:]+|\[[^\]\s]+\]):(?P<port>\d+)",
        "2026-11-21 01:20:05  INFO smg::server: " + _AT + "server.rs:1018: Starting server on 127.0.0.1:8000",
        proves=(Sign.HTTP_PORT,),
    ),
    Row(
        "router-ready", ROUTER, Level.INFO, "router", b"Router ready | workers: ",
        r"Router ready \| workers: \[(?P<workers>[^\]]*)\]",
        "2026-11-21 01:20:05  INFO smg::server: " + _AT + "server.rs:985: Router ready | workers: []",
    ),
    Row(
        "router-request-started", ROUTER, Level.INFO, "router", b"started processing request",
        r"started processing request",
        '2026-11-21 01:26:21  INFO http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-B6MCDJ7Uc3oQzQt8ATeohRd3"}: smg::request: ' + _AT + "middleware.rs:310: started processing "
        "request",
        proves=(Sign.REQUEST_CAME,),
    ),
    Row(
        "router-request-finished", ROUTER, Level.INFO, "router", b"finished processing request",
        r"finished processing request",
        '2026-11-21 01:26:22  INFO http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-B6MCDJ7Uc3oQzQt8ATeohRd3" status_code=200 latency=405016}: smg::response: ' + _AT +
        "middleware.rs:359: finished processing request",
        proves=(Sign.REQUEST_LEFT,),
    ),
    Row(
        "router-request-failed", ROUTER, Level.ERROR, "router", b"request failed with server error",
        r"request failed with server error",
        '2026-11-21 01:20:06 ERROR http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-5WSNt6aJlxw98QRXn9UKtFaB" status_code=503 latency=405016}: smg::response: ' + _AT +
        "middleware.rs:349: request failed with server error",
        echo=True,
        proves=(Sign.REQUEST_LEFT,),
    ),
    Row(
        "pair-chosen", ROUTER, Level.DEBUG, "router", b"PD retry attempt ",
        r"PD retry attempt (?P<attempt>\d+) using prefill=(?P<prefill>\S+) decode=(?P<decode>\S+)",
        '2026-11-21 01:26:21 DEBUG http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-B6MCDJ7Uc3oQzQt8ATeohRd3"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:321: PD retry attempt 0 using prefill=http://127.0.0.1:30000 "
        "decode=http://127.0.0.1:30002",
        phase=Phase.DISPATCHED, needs=DEBUG,
        proves=(Sign.PAIR_CHOSEN,),
    ),
    Row(
        "both-legs-sent", ROUTER, Level.DEBUG, "router", b"Sending concurrent requests",
        r"Sending concurrent requests prefill_url=(?P<prefill>\S+) decode_url=(?P<decode>\S+)",
        '2026-11-21 01:26:21 DEBUG http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-B6MCDJ7Uc3oQzQt8ATeohRd3"}: smg::observability::events: ' + _AT +
        "observability/events.rs:37: Sending concurrent requests prefill_url=http://127.0.0.1:30000 "
        "decode_url=http://127.0.0.1:30002",
        phase=Phase.DISPATCHED, needs=DEBUG,
        proves=(Sign.LEGS_SENT,),
    ),
    Row(
        "both-legs-answered", ROUTER, Level.DEBUG, "router", b"Received concurrent requests",
        r"Received concurrent requests",
        '2026-11-21 01:26:22 DEBUG http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-B6MCDJ7Uc3oQzQt8ATeohRd3"}: smg::observability::events: ' + _AT +
        "observability/events.rs:73: Received concurrent requests",
        needs=DEBUG,
        proves=(Sign.ATTEMPT_ENDED,),
    ),
    Row(
        "decode-leg-status", ROUTER, Level.DEBUG, "router", b"Decode response status: ",
        r"Decode response status: (?P<leg_status>\d{3})",
        '2026-11-21 01:26:22 DEBUG http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-B6MCDJ7Uc3oQzQt8ATeohRd3"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:587: Decode response status: 200 OK",
        needs=DEBUG,
        proves=(Sign.ATTEMPT_ENDED, Sign.DECODE_ANSWERED),
    ),
    Row(
        "decode-leg-refused", ROUTER, Level.ERROR, "router", b"Decode server returned error status",
        r"Decode server returned error status decode_url=(?P<decode>\S+) status=(?P<leg_status>\d{3})",
        '2026-11-21 01:59:57 ERROR http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-diZ9nccxPq6ZXUZ54coHSkJy"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:590: Decode server returned error status decode_url=http://127.0.0.1:30002 "
        "status=500 Internal Server Error",
        phase=Phase.FAILED, cause="PD714", echo=True,
        proves=(Sign.ATTEMPT_ENDED, Sign.DECODE_ANSWERED),
    ),
    Row(
        "decode-leg-failed", ROUTER, Level.ERROR, "router", b"Decode request failed",
        r"Decode request failed decode_url=(?P<decode>\S+) error=(?P<reason>.*)",
        '2026-11-21 01:36:47 ERROR http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-Fz41eDfeGpKEt1a4Hnpnd0Df"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:684: Decode request failed decode_url=http://127.0.0.1:30002 error=error sending "
        "request for url (http://127.0.0.1:30002/generate)",
        phase=Phase.FAILED, cause="PD704",
        proves=(Sign.ATTEMPT_ENDED, Sign.DECODE_LEG_BROKE),
    ),
    Row(
        "no-prefill-worker", ROUTER, Level.ERROR, "router", b"Failed to select PD pair",
        r"Failed to select PD pair error=No prefill workers available\.",
        '2026-11-21 01:20:06 ERROR http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-5WSNt6aJlxw98QRXn9UKtFaB"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:170: Failed to select PD pair error=No prefill workers available. Please check if "
        "prefill servers are configured and healthy.",
        phase=Phase.FAILED, cause="PD602",
    ),
    Row(
        "no-decode-worker", ROUTER, Level.ERROR, "router", b"Failed to select PD pair",
        r"Failed to select PD pair error=No decode workers available\.",
        '2026-11-21 01:20:21 ERROR http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-bldgaNgHs5U0JRzCI22YDYJg"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:170: Failed to select PD pair error=No decode workers available. Please check if "
        "decode servers are configured and healthy.",
        phase=Phase.FAILED, cause="PD602",
    ),
    # The pair failed its breaker check: requests are refused without being sent, while /readiness says ready.
    Row(
        "prefill-breakers-open", ROUTER, Level.ERROR, "router", b"Failed to select PD pair",
        r"Failed to select PD pair error=No available prefill workers \(all circuits open or unhealthy\)",
        '2026-11-21 20:28:11 ERROR http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-U90hv8JYYhR15x5EEibvlCVc"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:170: Failed to select PD pair error=No available prefill workers (all circuits open "
        "or unhealthy)",
        phase=Phase.FAILED, cause="PD601",
    ),
    Row(
        "decode-breakers-open", ROUTER, Level.ERROR, "router", b"Failed to select PD pair",
        r"Failed to select PD pair error=No available decode workers \(all circuits open or unhealthy\)",
        '2026-11-21 20:28:14 ERROR http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-U90hv8JYYhR15x5EEibvlCVc"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:170: Failed to select PD pair error=No available decode workers (all circuits open "
        "or unhealthy)",
        phase=Phase.FAILED, cause="PD601",
    ),
    Row(
        "no-pair", ROUTER, Level.ERROR, "router", b"Failed to select PD pair",
        r"Failed to select PD pair error=(?P<reason>.*)",
        '2026-11-21 20:28:14 ERROR http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-U90hv8JYYhR15x5EEibvlCVc"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:170: Failed to select PD pair error=Policy cache_aware failed to select a prefill "
        "worker",
        phase=Phase.FAILED, cause="PD602",
    ),
    Row(
        "breaker-opened", ROUTER, Level.INFO, "router", b"Circuit breaker state transition: ",
        r"Circuit breaker state transition: (?P<old_state>\w+) -> open(?: worker_url=\"?(?P<url>[^\s\"]+))?",
        '2026-11-21 20:28:08  INFO http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-U90hv8JYYhR15x5EEibvlCVc"}: smg::core::circuit_breaker: ' + _AT +
        "core/circuit_breaker.rs:286: Circuit breaker state transition: closed -> open",
        cause="PD601", echo=True,
    ),
    Row(
        "breaker-changed", ROUTER, Level.INFO, "router", b"Circuit breaker state transition: ",
        r"Circuit breaker state transition: (?P<old_state>\w+) -> (?P<new_state>\w+)"
        r"(?: worker_url=\"?(?P<url>[^\s\"]+))?",
        '2026-11-21 20:28:11  INFO http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-U90hv8JYYhR15x5EEibvlCVc"}: smg::core::circuit_breaker: ' + _AT +
        "core/circuit_breaker.rs:190: Circuit breaker state transition: open -> half_open",
    ),
    Row(
        "prefill-leg-refused", ROUTER, Level.ERROR, "router", b"Prefill server returned error status",
        r"Prefill server returned error status prefill_url=(?P<prefill>\S+) status=(?P<leg_status>\d{3}) "
        r"(?P<reason>.*)",
        '2026-11-21 20:28:08 ERROR http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-aofM24Wx0qdbihm8qTdeeJL9"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:980: Prefill server returned error status prefill_url=http://127.0.0.1:41102 "
        'status=500 Internal Server Error body={"error": "boom"}',
        phase=Phase.FAILED, cause="PD713",
        proves=(Sign.ATTEMPT_ENDED,),
    ),
    # In the binary, but not in the logs we recorded.
    Row(
        "prefill-leg-failed", ROUTER, Level.ERROR, "router", b"Prefill server failed (CRITICAL)",
        r"Prefill server failed \(CRITICAL\) prefill_url=(?P<prefill>\S+) (?P<reason>.*)",
        '2026-11-21 20:28:10 ERROR http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-aofM24Wx0qdbihm8qTdeeJL9"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:952: Prefill server failed (CRITICAL) prefill_url=http://127.0.0.1:41102 error="
        "error sending request for url (http://127.0.0.1:41102/generate). Decode will timeout without prefill KV "
        "cache.",
        phase=Phase.FAILED, cause="PD705",
        proves=(Sign.ATTEMPT_ENDED, Sign.PREFILL_LEG_BROKE),
    ),
    Row(
        "router-request-refused", ROUTER, Level.WARNING, "router", b"request failed with client error",
        r"request failed with client error",
        '2026-11-21 20:28:09  WARN http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-aofM24Wx0qdbihm8qTdeeJL9" status_code=400 latency=1446}: smg::response: ' + _AT +
        "middleware.rs:354: request failed with client error",
        echo=True,
    ),
    Row(
        "pair-selecting", ROUTER, Level.DEBUG, "router", b"Selecting PD pair: ", r"Selecting PD pair: ",
        '2026-11-21 01:26:21 DEBUG http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-B6MCDJ7Uc3oQzQt8ATeohRd3"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:708: Selecting PD pair: enable_igw=false, model_id=None, effective_model_id=None",
        needs=DEBUG,
    ),
    Row(
        "prefill-leg-read", ROUTER, Level.DEBUG, "router", b"Prefill response consumed successfully",
        r"Prefill response consumed successfully",
        '2026-11-21 01:26:22 DEBUG http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-B6MCDJ7Uc3oQzQt8ATeohRd3"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:1028: Prefill response consumed successfully",
        needs=DEBUG,
    ),
    Row(
        "worker-not-reached", ROUTER, Level.WARNING, "router", b" health checks failed for ",
        r"Step failed instance_id=\S+ step_id=detect_connection_mode error=\"Step failed: detect_connection_mode - "
        r"(?P<reason>Both HTTP and gRPC health checks failed for (?P<url>https?://[^\s\"]+): .*)",
        "2026-11-21 01:20:05  WARN smg::workflow::event: " + _AT + "workflow/event.rs:233: Step failed "
        "instance_id=e8c6c97b-63ba-42d8-8650-e2e21ec0d0a6 step_id=detect_connection_mode error=\"Step failed: "
        "detect_connection_mode - Both HTTP and gRPC health checks failed for http://127.0.0.1:30002: HTTP: Health "
        "check failed: error sending request for url (http://127.0.0.1:30002/health)\"",
        cause="PD603",
    ),
    Row(
        "router-step", ROUTER, Level.INFO, "router", b"Step ",
        r"Step (?P<what>\w+) instance_id=\S+ step_id=(?P<step>\w+)",
        "2026-11-21 01:20:07  INFO smg::workflow::event: " + _AT + "workflow/event.rs:220: Step succeeded "
        "instance_id=427de54a-6fe4-4335-bd1a-b7509f7955d7 step_id=discover_metadata duration_ms=428",
    ),
    Row(
        "router-workflow", ROUTER, Level.INFO, "router", b"Workflow ",
        r"Workflow (?P<what>started|completed|failed) instance_id=\S+",
        "2026-11-21 01:20:07  INFO smg::workflow::event: " + _AT + "workflow/event.rs:259: Workflow completed "
        "instance_id=427de54a-6fe4-4335-bd1a-b7509f7955d7 duration_ms=1519",
    ),
    Row(
        "router-mode", ROUTER, Level.DEBUG, "router", b"Single-router mode: using default router http-pd",
        r"Single-router mode: using default router http-pd",
        '2026-11-21 01:26:21 DEBUG http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-B6MCDJ7Uc3oQzQt8ATeohRd3"}: smg::routers::router_manager: ' + _AT +
        "routers/router_manager.rs:340: Single-router mode: using default router http-pd for model None",
        needs=DEBUG,
    ),
    Row(
        "prefill-leg-reading", ROUTER, Level.DEBUG, "router", b"Consuming prefill response body",
        r"Consuming prefill response body",
        '2026-11-21 01:26:22 DEBUG http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-B6MCDJ7Uc3oQzQt8ATeohRd3"}: smg::routers::http::pd_router: ' + _AT +
        "routers/http/pd_router.rs:1026: Consuming prefill response body (non-logprob request)",
        needs=DEBUG,
    ),
    Row(
        "workers-activated", ROUTER, Level.INFO, "router", b" worker(s) (",
        r"Activated (?P<workers>\d+)(?: of \d+)? worker\(s\) \(",
        "2026-11-21 01:20:07  INFO smg::core::steps::worker::shared::activate: " + _AT +
        "core/steps/worker/shared/activate.rs:31: Activated 1 worker(s) (marked as healthy)",
    ),
    Row(
        "worker-duplicate", ROUTER, Level.ERROR, "router", b" already exists",
        r"Worker (?P<url>https?://\S+) already exists",
        "2026-11-21 01:20:07 ERROR smg::core::job_queue: " + _AT + "core/job_queue.rs:811: Worker "
        "http://127.0.0.1:30002 already exists",
        cause="PD603",
    ),
    Row(
        "retrying", ROUTER, Level.DEBUG, "router", b"Retry backoff",
        r"Retry backoff attempt=(?P<attempt>\d+) next_attempt=(?P<next_attempt>\d+) delay_ms=(?P<delay_ms>\d+)",
        '2026-11-21 01:59:57 DEBUG http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-diZ9nccxPq6ZXUZ54coHSkJy"}: smg::core::retry: ' + _AT + "core/retry.rs:145: Retry backoff "
        "attempt=0 next_attempt=1 delay_ms=52",
        cause="PD715", needs=DEBUG,
        proves=(Sign.ATTEMPT_ENDED, Sign.RETRIED),
    ),
    Row(
        "worker-health-failed", ROUTER, Level.WARNING, "router", b"HTTP health check failed for ",
        r"HTTP health check failed for (?P<url>https?://\S+?)/health: (?P<reason>.*)",
        "2026-11-21 01:37:37  WARN smg::core::worker: " + _AT + "core/worker.rs:948: HTTP health check failed for "
        'http://127.0.0.1:30002/health: reqwest::Error { kind: Request, url: "http://127.0.0.1:30002/health", source: '
        'hyper_util::client::legacy::Error(Connect, ConnectError("tcp connect error", 127.0.0.1:30002, Os { code: '
        '111, kind: ConnectionRefused, message: "Connection refused" })) }',
        cause="PD604",
        proves=(Sign.WORKER_MISSED,),
    ),
    # Its Python command prints these without a time, and the exception again at the end of a traceback.
    Row(
        "start-port-taken", ROUTER, Level.ERROR, "router", b"Error starting router: Address already in use",
        r"Error starting router: Address already in use \(os error \d+\)",
        "Error starting router: Address already in use (os error 98)", cause="PD218",
    ),
    Row(
        "start-host-not-ip", ROUTER, Level.ERROR, "router", b"Error starting router: Invalid address: ",
        r"Error starting router: Invalid address: invalid socket address syntax",
        "Error starting router: Invalid address: invalid socket address syntax", cause="PD220",
    ),
    Row(
        "start-cannot-listen", ROUTER, Level.ERROR, "router", b"Error starting router: ",
        r"Error starting router: (?P<reason>[A-Z][a-z ]+) \(os error \d+\)",
        "Error starting router: Cannot assign requested address (os error 99)", cause="PD225",
    ),
    Row(
        "router-sigterm", ROUTER, Level.INFO, "router", b"Received terminate signal, starting graceful",
        r"Received terminate signal, starting graceful shutdown",
        "2026-11-21 01:21:23  INFO smg::server: " + _AT + "server.rs:1088: Received terminate signal, starting "
        "graceful shutdown",
        proves=(Sign.ORDERED_TO_END,),
    ),
    Row(
        "labels-conflict", ROUTER, Level.WARNING, "router", b" has conflicting ",
        r"Model (?P<model>\S+) has conflicting (?P<label>\w+): prefill=(?:Some\(\"(?P<prefill_value>[^\"]*)\"\)|None), "
        r"decode=(?:Some\(\"(?P<decode_value>[^\"]*)\"\)|None)",
        "2026-11-21 01:49:45  WARN smg::core::steps::worker::shared::update_policies: " + _AT +
        'core/steps/worker/shared/update_policies.rs:62: Model /srv/model has conflicting tp_size: prefill=Some("2"), '
        'decode=Some("1")',
    ),
)  # fmt: skip


LIST_LINES, LIST_BYTES = 256, 1 << 16  # a longer list is not taken for one
_OPENINGS = (b"prefill_urls", b"PrefillDecode {", b"Starting router on ", b"Prefill nodes:", b"Decode nodes:")
_NARROWEST = 40  # columns of the narrowest terminal that wraps lines
_LISTS = compile_late(rb"((?:prefill_urls|decode_urls|(?:Prefill|Decode) nodes) ?: ?\[)([^\]]*)(?=\]|$)")
_SPELLINGS = (
    (compile_late(rb"\s+"), b" "),
    (compile_late(rb"PrefillDecode ?\{ ?"), b"PrefillDecode { "),
    (compile_late(rb"((?:prefill_urls|decode_urls|(?:Prefill|Decode) nodes)) ?: ?\["), rb"\1: ["),
    (compile_late(rb"\] ?, ?decode_urls"), b"], decode_urls"),
)


def opens_list(line: bytes) -> bool:
    """Whether the line begins a router's list of workers but does not end it."""
    # This runs for every line of a log, and few contain one of the three.
    if b"refill" not in line and b" nodes:" not in line and b"Starting router on " not in line:
        return False
    return any(opening in line for opening in _OPENINGS) and not _complete(*_brackets(line), line)


def join_list(lines: Sequence[bytes]) -> tuple[bytes, int]:
    """The first line, which `opens_list`, joined with the lines that complete its list; and the number of lines."""
    taken = [lines[0].rstrip(b"\r\n")]
    size = len(taken[0])
    opened, closed = _brackets(taken[0])
    for line in lines[1:LIST_LINES]:
        parts = cut(line)
        size += len(line)
        again = any(opening in line and any(opening in one for one in taken) for opening in _OPENINGS)
        if parts.layout is not None or again or not line.strip() or size > LIST_BYTES:
            break
        # A collector's prefix on each line is removed.
        taken.append(parts.line[parts.at :])
        opened, closed = opened + _brackets(taken[-1])[0], closed + _brackets(taken[-1])[1]
        if _complete(opened, closed, taken[-1]):
            break
    text = _joined(taken) if len(taken) > 1 else lines[0]
    return (text, len(taken)) if b"http" in text else (lines[0], 1)


def _brackets(text: bytes) -> tuple[int, int]:
    return sum(map(text.count, (b"[", b"{", b"("))), sum(map(text.count, (b"]", b"}", b")")))


def _complete(opened: int, closed: int, last: bytes) -> bool:
    """Whether every bracket is closed and no list of decodes is still to come."""
    return 0 < opened <= closed and not last.rstrip().endswith(b",")


def _joined(lines: Sequence[bytes]) -> bytes:
    """The lines joined: a terminal breaks them anywhere, at one width; everything else, where a space is allowed."""
    widths = {len(line) for line in lines[:-1]}
    broken = len(widths) == 1 and max(widths) >= _NARROWEST and len(lines[-1]) <= max(widths)
    text = (b"" if broken else b" ").join(line if broken else line.strip() for line in lines[1:])
    text = lines[0].rstrip() + (b"" if broken and lines[0] == lines[0].rstrip() else b" ") + text
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return _LISTS.sub(lambda found: found[1] + _tight(found[2]), text)


def _tight(listed: bytes) -> bytes:
    """The entries of a list as a router writes them: no spaces except after a comma."""
    return re.sub(rb"(?<=[\"')]),(?=.)", b", ", re.sub(rb"\s", b"", listed))
