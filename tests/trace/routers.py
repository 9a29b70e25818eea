"""A router's log at DEBUG, line by line, as sglang-router 0.3.2 and smg 1.13 write it."""

from __future__ import annotations

P0, P1, D0 = "http://127.0.0.1:30000", "http://127.0.0.1:30001", "http://127.0.0.1:30002"


def starting(ports: tuple[int | None, int | None] = (8998, 8999)) -> str:
    listed = ", ".join(f'("{url}", {_port(port)})' for url, port in zip((P0, P1), ports, strict=True))
    return (
        "2026-11-21 02:00:00  INFO smg::server: server.rs:794: Starting router on 127.0.0.1:8000 | mode: PrefillDecode "
        f'{{ prefill_urls: [{listed}], decode_urls: ["{D0}"], prefill_policy: Some(RoundRobin), decode_policy: None }} '
        "| policy: CacheAware { cache_threshold: 0.3 } | max_payload: 512MB"
    )


def _port(port: int | None) -> str:
    return "None" if port is None else f"Some({port})"


def line(second: int, request: str, said: str, *, level: str = "DEBUG", more: str = "") -> str:
    return (
        f"2026-11-21 02:{second // 60:02}:{second % 60:02} {level:>5} http_request{{method=POST uri=/generate "
        f'version=HTTP/1.1 module="smg" request_id="{request}"{more}}}: smg::routers::http::pd_router: '
        f"pd_router.rs:321: {said}"
    )


def came(second: int, request: str) -> str:
    return line(second, request, "started processing request", level="INFO")


def sent(second: int, request: str, prefill: str, attempt: int = 0) -> list[str]:
    return [
        line(second, request, f"PD retry attempt {attempt} using prefill={prefill} decode={D0}"),
        line(second, request, f"Sending concurrent requests prefill_url={prefill} decode_url={D0}"),
    ]


def answered(second: int, request: str, status: int = 200) -> list[str]:
    said = [line(second, request, "Received concurrent requests")]
    said.append(line(second, request, f"Decode response status: {status} {'OK' if status == 200 else 'Error'}"))
    if status != 200:
        said.append(line(second, request, f"Decode server returned error status decode_url={D0} status={status}"))
    return said


def left(second: int, request: str, status: int = 200) -> str:
    if status == 200:
        return line(second, request, "finished processing request", level="INFO", more=" status_code=200 latency=99")
    more = f" status_code={status} latency=99"
    return line(second, request, "request failed with server error", level="ERROR", more=more)


def backoff(second: int, request: str, attempt: int = 0) -> str:
    return line(second, request, f"Retry backoff attempt={attempt} next_attempt={attempt + 1} delay_ms=52")
