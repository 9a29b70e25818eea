"""Addresses as logs write them: a URL of a worker, `host:port` of a bootstrap server or of a rank."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

WILDCARDS = frozenset({"", "0.0.0.0", "::", "*"})
LOOPBACKS = frozenset({"127.0.0.1", "localhost", "::1"})


class Address(NamedTuple):
    """`port` None: null, or not written."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        return self.host in LOOPBACKS


def parse(text: str) -> Address | None:
    """`127.0.0.1:8998`, `[::1]:8998`, `http://host:30000/`, `tcp://host:1`; None when it is none of these."""
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        return Address(parts.hostname, parts.port) if parts.hostname else None
    except ValueError:
        return None


def same_host(one: str, other: str) -> bool:
    return one == other or (one in LOOPBACKS and other in LOOPBACKS)
