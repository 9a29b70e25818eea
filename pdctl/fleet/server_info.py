"""What an engine says about itself on /server_info (sglang 0.5.3 to 0.5.23)."""

from __future__ import annotations

from dataclasses import dataclass

from pdctl.engines.sglang.http import paths
from pdctl.fleet import document, http

PATHS = paths("server_info")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    mode: str  # disaggregation_mode as it is now: null, prefill or decode
    bootstrap_port: int | None
    transfer_backend: str
    tp_size: int
    page_size: int | None
    model_path: str
    served_model_name: str
    version: str


def fetch(url: str, timeout: float = 2.0) -> ServerInfo | None:
    """None when nothing at `url` answers as an engine does."""
    for path in PATHS:
        answer = http.get(url + path, timeout)
        body = answer.json() if answer.ok else None
        if isinstance(body, dict):
            return _read({str(key): value for key, value in body.items()})
        if answer.status != 404:
            return None
    return None


def _read(body: dict[str, object]) -> ServerInfo:
    return ServerInfo(
        mode=document.role(body) or "null",
        bootstrap_port=document.integer(body.get("disaggregation_bootstrap_port")),
        transfer_backend=str(body.get("disaggregation_transfer_backend") or ""),
        tp_size=document.integer(body.get("tp_size")) or 1,
        page_size=document.integer(body.get("page_size")),
        model_path=str(body.get("model_path") or ""),
        served_model_name=str(body.get("served_model_name") or ""),
        version=str(body.get("version") or ""),
    )
