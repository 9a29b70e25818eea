"""pdctl's own router: two lines per request, at INFO, that name room, request, pair and bootstrap address."""

from __future__ import annotations

from pdctl.engines.base import Level, Measure, Phase, Row, Sign, Speaker

ROUTER = Speaker.PDCTL_ROUTER
_WHERE = (
    r"room=(?P<room>\d+)(?:,(?P<rooms>[\d,]+))? rid=(?P<rid>\S+) request_id=(?P<request_id>\S+) "
    r"attempt=(?P<attempt>\d+) prefill=(?P<prefill>\S+) decode=(?P<decode>\S+)"
)
_END = (
    r" status=(?P<status>\S+) outcome=(?P<outcome>\w+) prefill_ms=(?P<prefill_ms>\S+) first_byte_ms=(?P<first_ms>\S+) "
)
_TOTAL = r"total_ms=(?P<total_ms>[\d.]+|-)"
_EXAMPLE = (
    "room=4079256317657669 rid=b75047d78420881489aec0bc3e8271c4 request_id=b75047d78420881489aec0bc3e8271c4 attempt=1 "
    "prefill=http://127.0.0.1:30000 decode=http://127.0.0.1:30002"
)

ROWS = (
    Row(
        "dispatch", ROUTER, Level.INFO, "router", b"Dispatch room=",
        r"Dispatch " + _WHERE + r" bootstrap=(?P<addr>\S+) path=(?P<path>\S+)",
        f"[2026-11-21 19:44:40] Dispatch {_EXAMPLE} bootstrap=127.0.0.1:8998 path=/v1/chat/completions",
        phase=Phase.DISPATCHED,
    ),
    Row(
        "finish-ok", ROUTER, Level.INFO, "router", b"Finish room=",
        r"Finish " + _WHERE + r" status=(?P<status>\S+) outcome=(?P<outcome>ok) prefill_ms=(?P<prefill_ms>\S+) "
        r"first_byte_ms=(?P<first_ms>\S+) " + _TOTAL,
        f"[2026-11-21 19:44:40] Finish {_EXAMPLE} status=200 outcome=ok prefill_ms=93.5 first_byte_ms=117.6 "
        "total_ms=117.7",
        phase=Phase.FINISHED,
        measures=Measure("first_ms", "first token", 0.001),
    ),
    Row(
        "finish-client-gone", ROUTER, Level.INFO, "router", b"Finish room=",
        r"Finish " + _WHERE + r" status=(?P<status>\S+) outcome=(?P<outcome>client_gone) "
        r"prefill_ms=(?P<prefill_ms>\S+) first_byte_ms=(?P<first_ms>\S+) " + _TOTAL,
        f"[2026-11-21 19:44:40] Finish {_EXAMPLE} status=- outcome=client_gone prefill_ms=- first_byte_ms=- "
        "total_ms=1000.2",
        phase=Phase.ABORTED, cause="PD706",
        proves=(Sign.CLIENT_LEFT,),
    ),
    Row(
        "finish-refused", ROUTER, Level.INFO, "router", b"Finish room=",
        r"Finish " + _WHERE + r" status=(?P<status>4\d\d) outcome=(?P<outcome>refused) prefill_ms=(?P<prefill_ms>\S+) "
        r"first_byte_ms=(?P<first_ms>\S+) " + _TOTAL,
        f"[2026-11-21 19:44:40] Finish {_EXAMPLE} status=400 outcome=refused prefill_ms=2.2 first_byte_ms=2.2 "
        "total_ms=2.3",
        phase=Phase.REFUSED, cause="PD718",
    ),
    Row(
        "finish-failed", ROUTER, Level.WARNING, "router", b"Finish room=",
        r"Finish " + _WHERE + _END + _TOTAL + r"(?:: (?P<reason>.*))?",
        f"[2026-11-21 19:44:40] WARNING Finish {_EXAMPLE} status=- outcome=failed prefill_ms=3.1 first_byte_ms=- "
        "total_ms=4.0: decode http://127.0.0.1:30002 answered 500",
        phase=Phase.FAILED,
    ),
    Row(
        "late-failure", ROUTER, Level.WARNING, "router", b"Late failure room=",
        r"Late failure " + _WHERE + r": (?P<leg>\w+) (?P<reason>.*)",
        f"[2026-11-21 19:44:40] WARNING Late failure {_EXAMPLE}: prefill answered 500",
        phase=Phase.FAILED,
        proves=(Sign.ABORT_TALK,),
    ),
    Row(
        "canary", ROUTER, Level.INFO, "router", b"Canary room=",
        r"Canary room=(?P<room>\d+) prefill=(?P<prefill>\S+) decode=(?P<decode>\S+) (?P<outcome>\w+)",
        "[2026-11-21 19:44:40] Canary room=4079256317657669 prefill=http://127.0.0.1:30000 "
        "decode=http://127.0.0.1:30002 ok",
        phase=Phase.DISPATCHED,
        proves=(Sign.CANARY,),
    ),
    Row(
        "listening", ROUTER, Level.INFO, "router", b"Router listening on http",
        r"Router listening on http://(?P<host>[^\s:]+|\[[^\]\s]+\]):(?P<port>\d+) policy=(?P<policy>\w+) "
        r"prefill=\[(?P<prefill>[^\]]*)\] decode=\[(?P<decode>[^\]]*)\]",
        "[2026-11-21 19:44:33] Router listening on http://127.0.0.1:8000 policy=round_robin "
        "prefill=[('http://127.0.0.1:30000', 8998), ('http://127.0.0.1:30001', 8999)] "
        "decode=['http://127.0.0.1:30002']",
        proves=(Sign.WORKERS, Sign.WORKERS_AGAIN),
    ),
    # A rehearsal sends other ports than it was given (docs/rehearsals.md): this line has those it sends.
    Row(
        "rehearsal-starting", ROUTER, Level.WARNING, "router", b"REHEARSAL: Starting router on ",
        r"REHEARSAL: Starting router on (?P<host>[^\s:]+|\[[^\]\s]+\]):(?P<port>\d+) \| mode: PrefillDecode "
        r"\{ prefill_urls: \[(?P<prefill>[^\]]*)\], decode_urls: \[(?P<decode>[^\]]*)\]",
        "[2026-11-21 19:44:33] WARNING REHEARSAL: Starting router on 127.0.0.1:8000 | mode: PrefillDecode { "
        'prefill_urls: [("http://127.0.0.1:30000", None), ("http://127.0.0.1:30001", None)], decode_urls: '
        '["http://127.0.0.1:30002"], prefill_policy: None, decode_policy: None } | policy: RoundRobin | '
        "max_payload: 512MB",
        proves=(Sign.WORKERS, Sign.WORKERS_REHEARSED),
    ),
    Row(
        "router-rehearsal", ROUTER, Level.WARNING, "router", b"REHEARSAL: ",
        r"REHEARSAL: (?P<incident>missing-bootstrap-port|wrong-bootstrap-port|swapped-bootstrap-ports|"
        r"wait-for-both-legs)",
        "[2026-11-21 19:44:33] WARNING REHEARSAL: missing-bootstrap-port: every prefill's port is sent as null",
    ),
    Row(
        "worker-usable", ROUTER, Level.INFO, "router", b" usable",
        r"Worker (?P<worker_role>\w+) (?P<url>\S+) usable(?: bootstrap_port=(?P<port>\S+) source=(?P<source>\S+))?",
        "[2026-11-21 19:44:33] Worker prefill http://127.0.0.1:30000 usable bootstrap_port=8998 source=flag",
    ),
    Row(
        "worker-unusable", ROUTER, Level.WARNING, "router", b" not routed to",
        r"Worker (?P<worker_role>\w+) (?P<url>\S+) not routed to"
        r"(?: bootstrap_port=(?P<port>\S+) source=(?P<source>\w+))?(?:: (?P<reason>.*))?",
        "[2026-11-21 19:44:33] WARNING Worker prefill http://127.0.0.1:30000 not routed to bootstrap_port=8998 "
        "source=flag: 3 health checks failed in a row: connection refused",
        cause="PD604",
        proves=(Sign.WORKER_MISSED, Sign.WORKER_UNWELL),
    ),
    Row(
        "pair-breaker-open", ROUTER, Level.WARNING, "router", b"Breaker open for ",
        r"Breaker open for (?P<seconds>[\d.]+) s after (?P<failures>\d+) failures in a row: prefill=(?P<prefill>\S+) "
        r"decode=(?P<decode>\S+)",
        "[2026-11-21 19:44:33] WARNING Breaker open for 30 s after 3 failures in a row: "
        "prefill=http://127.0.0.1:30000 decode=http://127.0.0.1:30002",
        cause="PD601",
    ),
    Row(
        "health-check-missed", ROUTER, Level.INFO, "router", b"Health check ",
        r"Health check (?P<failures>\d+) failed: (?P<worker_role>\w+) (?P<url>\S+) (?P<reason>.*)",
        "[2026-11-21 19:44:33] Health check 1 failed: prefill http://127.0.0.1:30000 connection refused",
        proves=(Sign.WORKER_MISSED, Sign.WORKER_UNWELL),
    ),
    Row(
        "no-usable-pair", ROUTER, Level.WARNING, "router", b"Refuse request_id=",
        r"Refuse request_id=(?P<request_id>\S+) path=(?P<path>[^\s:]+): "
        r"no prefill-decode pair can be used: (?P<reason>.*)",
        "[2026-11-21 19:44:33] WARNING Refuse request_id=b75047d78420881489aec0bc3e8271c4 path=/generate: no "
        "prefill-decode pair can be used: decode http://127.0.0.1:30002: no connection: Connection refused",
        cause="PD602",
    ),
    Row(
        "request-not-taken", ROUTER, Level.INFO, "router", b"Refuse request_id=",
        r"Refuse request_id=(?P<request_id>\S+) path=(?P<path>[^\s:]+): (?P<reason>.*)",
        "[2026-11-21 19:44:33] Refuse request_id=b75047d78420881489aec0bc3e8271c4 path=/generate: the body is not JSON",
    ),
    Row(
        "draining-rooms", ROUTER, Level.INFO, "router", b"Draining: no new connections, ",
        r"Draining: no new connections, (?P<rooms_running>\d+) rooms in flight",
        "[2026-11-21 19:44:40] Draining: no new connections, 0 rooms in flight",
    ),
    Row(
        "router-port-taken", ROUTER, Level.ERROR, "router", b"cannot listen on ",
        r"cannot listen on \S{1,80}:(?P<observed>\d{1,5}): Address already in use; (?P<fix>.*)",
        "[2026-11-21 19:44:33.880] ERROR cannot listen on 127.0.0.1:8000: Address already in use; free the port or "
        "choose another with --port",
        cause="PD218",
    ),
    Row(
        "router-cannot-listen", ROUTER, Level.ERROR, "router", b"cannot listen on ",
        r"cannot listen on (?P<observed>\S{1,80}:\d{1,5}): (?P<reason>[A-Za-z ]{1,80}); ",
        "[2026-11-21 19:44:33.875] ERROR cannot listen on 192.0.2.7:8000: Cannot assign requested address; no "
        "interface of this machine has 192.0.2.7: `ip -br address` lists what they have",
        cause="PD225",
    ),
    Row(
        "router-stopped", ROUTER, Level.INFO, "router", b"Router stopped", r"Router stopped",
        "[2026-11-21 19:44:40] Router stopped",
        proves=(Sign.ORDERED_TO_END,),
    ),
    Row(
        "launched-router", ROUTER, Level.INFO, "router", b" -m pdctl.router ",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+): \S+ -m pdctl\.router (?P<args>.*)",
        "[2026-11-21 19:44:33] pdctl: router generation 1: python3 -m pdctl.router --host 127.0.0.1 --port 8000 "
        "--policy round_robin --prefill http://127.0.0.1:30000 8998 --decode http://127.0.0.1:30002",
        proves=(Sign.COMMAND, Sign.STARTED, Sign.LAUNCHED),
    ),
)  # fmt: skip
