"""The logs of the routers that are not pdctl's: smg, sglang-router and SGLang's mini_lb."""

from __future__ import annotations

from pdctl.engines.base import Adapter, Level, Phase, Row, Sign, Speaker
from pdctl.engines.routers import sglang_router

DEBUG = "--log-level debug"
_CALL = '{method=POST path=/generate version=HTTP/1.1 module="smg" request_id="gnt-pQWSNl2HaYIGytJH7byDPaRf"}'

_SMG_ROWS = (
    Row(
        "smg-pair-chosen", Speaker.SMG, Level.DEBUG, "router", b"Selected PD pair",
        r"Selected PD pair prefill=(?P<prefill>\S+) decode=(?P<decode>\S+)",
        f"2026-11-21 20:26:58 DEBUG http_request{_CALL}: smg::routers::common::placement: "
        "model_gateway/src/routers/common/placement.rs:412: Selected PD pair prefill=http://127.0.0.1:41121 "
        "decode=http://127.0.0.1:41123",
        phase=Phase.DISPATCHED, needs=DEBUG,
        proves=(Sign.PAIR_CHOSEN, Sign.LEGS_SENT),
    ),
    Row(
        "smg-pair-selecting", Speaker.SMG, Level.DEBUG, "router", b"Selecting PD pair: model_id=",
        r"Selecting PD pair: model_id=\"(?P<model>[^\"]*)\"$",
        f"2026-11-21 20:26:58 DEBUG http_request{_CALL}: smg::routers::http::pd_router: "
        'model_gateway/src/routers/http/pd_router.rs:1790: Selecting PD pair: model_id="unknown"',
        needs=DEBUG,
    ),
    Row(
        "smg-no-workers", Speaker.SMG, Level.WARNING, "router", b"No available workers for model",
        r"No available workers for model function=\S+ mode=PrefillDecode .{0,300}?reason=\"(?P<reason>[^\"]*)\"",
        f"2026-11-21 20:27:03  WARN http_request{_CALL}: smg::routers::common::placement: "
        'model_gateway/src/routers/common/placement.rs:98: No available workers for model '
        'function="PDRouter::execute_dual_dispatch_attempt" mode=PrefillDecode model_id=unknown reason="No available '
        'servers: No available prefill workers (all circuits open or unhealthy)" workers=2 available=0 pool=prefill',
        phase=Phase.FAILED, cause="PD601",
    ),
    Row(
        "smg-refused", Speaker.SMG, Level.DEBUG, "router", b"request refused; reported by the refusing router",
        r"request refused; reported by the refusing router",
        '2026-11-21 20:27:03 DEBUG http_request{method=POST path=/generate version=HTTP/1.1 module="smg" '
        'request_id="gnt-pQWSNl2HaYIGytJH7byDPaRf" status_code=503 latency=405016 otel.status_code="ERROR"}: '
        "smg::response: model_gateway/src/middleware/logging.rs:240: request refused; reported by the refusing router",
        echo=True, needs=DEBUG,
    ),
    Row(
        "smg-bootstrap-port-dead", Speaker.SMG, Level.WARNING, "router", b"Bootstrap port did not accept a connection",
        r"Bootstrap port did not accept a connection at registration: [^=]* worker=\"(?P<url>[^\"]*)\" "
        r"worker_type=\"(?P<worker_role>\w+)\" bootstrap_host=\"(?P<host>[^\"]*)\" bootstrap_port=(?P<port>\d+) "
        r"bootstrap_port_source=\"(?P<source>\w+)\"",
        "2026-11-21 20:26:55  WARN smg::worker::bootstrap_probe: model_gateway/src/worker/bootstrap_probe.rs:113: "
        "Bootstrap port did not accept a connection at registration: the leg is registered, but its disaggregated "
        'partners cannot rendezvous there worker="http://127.0.0.1:41122" worker_type="prefill" '
        'bootstrap_host="127.0.0.1" bootstrap_port=8998 bootstrap_port_source="default" error=Connection refused (os '
        "error 111)",
        cause="PD205",
    ),
    Row(
        "smg-probe-failed", Speaker.SMG, Level.WARNING, "router", b"Health probe failed",
        r"Health probe failed worker_url=(?P<url>\S+) error=(?P<reason>.*)",
        "2026-11-21 20:27:08  WARN smg::worker::manager: model_gateway/src/worker/manager.rs:311: Health probe failed "
        "worker_url=http://127.0.0.1:41123 error=Health check failed for worker http://127.0.0.1:41123: health probe "
        "returned non-success",
        cause="PD604",
    ),
    Row(
        "smg-port-taken", Speaker.SMG, Level.ERROR, "router", b"Failed to bind the HTTP listener on ",
        r"Error starting router: Failed to bind the HTTP listener on \S{1,80}:(?P<observed>\d{1,5}): "
        r"Address already in use \(os error \d+\)",
        "Error starting router: Failed to bind the HTTP listener on 127.0.0.1:8000: Address already in use (os error "
        "98)",
        cause="PD218",
    ),
    Row(
        "smg-cannot-listen", Speaker.SMG, Level.ERROR, "router", b"Failed to bind the HTTP listener on ",
        r"Error starting router: Failed to bind the HTTP listener on (?P<observed>\S{1,80}:\d{1,5}): "
        r"(?P<reason>[A-Za-z ]{1,80}) \(os error \d+\)",
        "Error starting router: Failed to bind the HTTP listener on 192.0.2.7:8000: Cannot assign requested address "
        "(os error 99)",
        cause="PD225",
    ),
    Row(
        "smg-host-not-ip", Speaker.SMG, Level.ERROR, "router", b"invalid bind host ",
        r"Error starting router: Configuration error: .{0,200}invalid bind host '(?P<observed>[^']*)': expected an IP",
        "Error starting router: Configuration error: Invalid value for field 'host': localhost - invalid bind host "
        "'localhost': expected an IP address such as 0.0.0.0, ::, [::] or [fd00::1]",
        cause="PD220",
    ),
    Row(
        "smg-draining", Speaker.SMG, Level.INFO, "router", b"Beginning graceful shutdown: readiness draining",
        r"Beginning graceful shutdown: readiness draining in_flight=(?P<rooms_running>\d+)",
        "2026-11-21 20:27:08  INFO smg::server: model_gateway/src/server.rs:2039: Beginning graceful shutdown: "
        "readiness draining in_flight=0",
    ),
    Row(
        "smg-settling", Speaker.SMG, Level.INFO, "router", b"Keeping listener open during load-balancer",
        r"Keeping listener open during load-balancer propagation window settle_secs=(?P<seconds>\d+)",
        "2026-11-21 20:27:08  INFO smg::server: model_gateway/src/server.rs:2045: Keeping listener open during "
        "load-balancer propagation window settle_secs=5",
    ),
    Row(
        "smg-stopped", Speaker.SMG, Level.INFO, "router", b"Cleanup complete. Process exiting.",
        r"Cleanup complete\. Process exiting\.",
        "2026-11-21 20:27:13  INFO smg::server: model_gateway/src/server.rs:2111: Cleanup complete. Process exiting.",
        proves=(Sign.ORDERED_TO_END,),
    ),
    Row(
        "smg-open-to-all", Speaker.SMG, Level.WARNING, "router", b"SECURITY POSTURE: this gateway runs without",
        r"SECURITY POSTURE: this gateway runs without authentication",
        "2026-11-21 20:26:55  WARN smg::posture: model_gateway/src/posture.rs:143: SECURITY POSTURE: this gateway runs "
        "without authentication; every surface named here answers any caller that can reach it",
    ),
    Row(
        "smg-admission-off", Speaker.SMG, Level.WARNING, "router", b"PD admission is off for this decode worker",
        r"PD admission is off for this decode worker: .*worker=\"(?P<url>[^\"]*)\"",
        "2026-11-21 20:26:55  WARN smg::routers::common::pd_admission: "
        "model_gateway/src/routers/common/pd_admission.rs:260: PD admission is off for this decode worker: it reports "
        'no running window worker="http://127.0.0.1:41123"',
    ),
    Row(
        "smg-worker-status", Speaker.SMG, Level.INFO, "router", b"Worker status transition",
        r"Worker status transition worker_url=(?P<url>\S+) old=(?P<old_state>\w+) new=(?P<new_state>\w+)",
        "2026-11-21 20:27:06  INFO smg::worker::manager: model_gateway/src/worker/manager.rs:693: Worker status "
        "transition worker_url=http://127.0.0.1:41123 old=Ready new=NotReady",
    ),
    Row(
        "smg-load-monitor", Speaker.SMG, Level.INFO, "router", b"Starting load monitor for group ",
        r"Starting load monitor for group (?P<group>\S+) with interval (?P<seconds>\d+)s",
        "2026-11-21 20:26:55  INFO smg::worker::monitor: model_gateway/src/worker/monitor.rs:932: Starting load "
        "monitor for group m:prefill:http with interval 10s",
    ),
    Row(
        "smg-runtime", Speaker.SMG, Level.INFO, "router", b"Tokio runtime sized",
        r"Tokio runtime sized worker_threads=",
        "2026-11-21 20:26:55  INFO smg::server: model_gateway/src/server.rs:1493: Tokio runtime sized "
        "worker_threads=2 pinned=false",
    ),
    Row(
        "smg-connection-limits", Speaker.SMG, Level.INFO, "router", b"HTTP connection timeouts (0 = disabled)",
        r"HTTP connection timeouts \(0 = disabled\) ",
        "2026-11-21 20:26:55  INFO smg::server: model_gateway/src/server.rs:2078: HTTP connection timeouts (0 = "
        "disabled) header_read_timeout_secs=30 idle_connection_timeout_secs=90",
    ),
)  # fmt: skip


_MINI_LB_ROWS = (
    Row(
        "mini-lb-starting", Speaker.MINI_LB, Level.WARNING, "router", b"MiniLB is only for debugging purposes",
        r"MiniLB is only for debugging purposes",
        "MiniLB is only for debugging purposes, it only supports random policy!",
    ),
    Row(
        "mini-lb-policy", Speaker.MINI_LB, Level.INFO, "router", b"[MiniLB] Overriding policy to random",
        r"\[MiniLB\] Overriding policy to random", "[MiniLB] Overriding policy to random",
    ),
)  # fmt: skip


# Both format their timestamps with tracing_subscriber's ChronoUtc.
SMG = Adapter(
    Speaker.SMG,
    _SMG_ROWS,
    Speaker.SGLANG_ROUTER,
    kind="smg",
    pairs_at_debug=True,
    writes_utc=True,
)
# 0.3 ends a request only once it has read the prefill's whole answer; this is not known of smg.
SGLANG_ROUTER = Adapter(
    Speaker.SGLANG_ROUTER,
    sglang_router.ROWS,
    kind="sglang-router",
    pairs_at_debug=True,
    reads_prefill=True,
    writes_utc=True,
)
# Written in Python, it also serves through uvicorn, so those lines are its own.
MINI_LB = Adapter(Speaker.MINI_LB, _MINI_LB_ROWS, Speaker.SGLANG, kind="mini-lb")
