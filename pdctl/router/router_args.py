"""What a router was asked to be, and where its workers' HTTP servers are."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pdctl.errors import UsageError
from pdctl.http_auth import SIGNATURE, sign

if TYPE_CHECKING:
    from pdctl.deployment_secret import DeploymentSecret


class PolicyName(str, Enum):
    RANDOM = "random"
    ROUND_ROBIN = "round_robin"
    POWER_OF_TWO = "power_of_two"
    CACHE_AWARE = "cache_aware"


class BootstrapCheck(str, Enum):
    """What the router asks of a prefill's bootstrap server before it sends it requests."""

    REQUIRE = "require"  # it must answer, agree with /server_info, and have all ranks registered
    WARN = (
        "warn"  # none that answers is noted only: for networks where decodes can reach that port and the router cannot
    )
    OFF = "off"  # never asked


@dataclass(frozen=True, slots=True)
class WorkerArg:
    origin: Origin
    bootstrap_port: int | None = None


@dataclass(frozen=True, slots=True)
class RouterArgs:
    """Times in seconds, sizes in bytes."""

    prefill: tuple[WorkerArg, ...] = ()
    decode: tuple[WorkerArg, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    policy: PolicyName = PolicyName.ROUND_ROBIN
    prefill_policy: PolicyName | None = None
    decode_policy: PolicyName | None = None
    bootstrap_check: BootstrapCheck = BootstrapCheck.REQUIRE
    retries: int = 3
    retry_backoff: float = 0.05
    request_timeout: float = 1800.0
    # An engine gives up on the KV transfer after 300 s (sglang 0.5.23) and says why: wait a little longer than that.
    prefill_timeout: float = 320.0
    first_byte_timeout: float = 640.0
    connect_timeout: float = 5.0
    read_timeout: float = 60.0
    idle_timeout: float = 75.0
    upstream_idle_timeout: float = 3.0
    health_path: str = "/health"
    health_interval: float = 10.0
    health_timeout: float = 10.0
    liveness_interval: float = 0.5
    health_failure_threshold: int = 3
    health_success_threshold: int = 1
    probe_interval: float = 2.0
    # /server_info is a round trip to the scheduler, which may be in the middle of a long batch.
    probe_timeout: float = 30.0
    cb_failure_threshold: int = 5
    cb_timeout: float = 10.0
    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    max_payload_size: int = 512 * 1024 * 1024
    max_payload_memory: int = 2 * 1024 * 1024 * 1024
    max_connections: int = 4096
    ledger_size: int = 4096
    shutdown_grace: float = 30.0
    api_key: str = ""
    admin_api_key: str = ""
    secret: DeploymentSecret | None = field(default=None, repr=False)
    allow_unauthenticated_workers: bool = False
    log_level: str = "info"
    rehearse: str = ""

    @property
    def bearer(self) -> bytes:
        """The header line with which the router asks workers in its own name; empty without a key."""
        return f"authorization: Bearer {self.api_key}\r\n".encode() if self.api_key else b""

    def signed(self, method: str, target: str, body: bytes) -> bytes:
        """`bearer`, and the line that tells engines of this deployment that its router asks."""
        if self.secret is None or method == "GET":
            return self.bearer
        return self.bearer + f"{SIGNATURE}: {sign(self.secret, method, target, body)}\r\n".encode()


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
