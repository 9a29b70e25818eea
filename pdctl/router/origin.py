"""Where a worker's HTTP server is, as the URL on the command line says it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from pdctl.errors import UsageError

DEFAULT_PORTS = {"http": 80, "https": 443}
NOT_IN_HOST = frozenset(" '\"\\<>(){}|,=")  # it stands in log lines, between spaces


@dataclass(frozen=True, slots=True)
class Origin:
    """`host` is bare: an IPv6 address carries no brackets here."""

    scheme: str
    host: str
    port: int

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def uri_host(self) -> str:
        """The host as it stands in a URL and in `bootstrap_host`: IPv6 in brackets (sglang 0.5.13+ expects them)."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.uri_host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Origin:
        """The origin of `http://host:port`; UsageError says which part of the text cannot be."""
        parts = urlsplit(text)
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise UsageError(f"{text!r} is not a worker's URL", "write http://HOST:PORT")
        if not parts.hostname.isprintable() or not NOT_IN_HOST.isdisjoint(parts.hostname):
            raise UsageError(f"{text!r} is not a worker's URL: {parts.hostname!r} is no host", "write http://HOST:PORT")
        if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
            raise UsageError(f"{text!r}: a worker's URL is scheme, host and port alone", "write http://HOST:PORT")
        try:
            port = parts.port or DEFAULT_PORTS[parts.scheme]
        except ValueError:
            raise UsageError(f"{text!r}: a port is 1 to 65535", "write http://HOST:PORT") from None
        return cls(parts.scheme, parts.hostname, port)
