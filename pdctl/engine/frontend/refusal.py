"""A request the engine will not serve: an HTTP status, a reason for the client, and a word a program can match."""

from __future__ import annotations

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "method_not_allowed",
    413: "request_too_large",
    499: "aborted",
    500: "internal_error",
    503: "service_unavailable",
    504: "timeout",
}


class HttpRefusal(Exception):
    """Raised anywhere between the socket and the scheduler; `frontend/responses.py` turns it into a response."""

    def __init__(self, status: int, message: str, kind: str = "", retry_after: int = 1) -> None:
        """`retry_after`: seconds after which a 503 may be worth another try."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
        self.kind = kind or KINDS.get(status, KINDS[500] if status >= 500 else KINDS[400])
