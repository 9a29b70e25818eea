"""What a router is asked to do: its command line, and the mistakes of real routers that it makes on request.

The command line has sglang_router's spelling of workers and policies; every time is in seconds. What `--rehearse`
copies (ports missing, wrong or swapped, sent without a check) is sglang-router 0.3.2: it takes the ports of its command
line as they are, and an attempt ends only when both of its legs have ended (so it does in every rehearsal). It is off
unless asked for; the log, /readiness, /workers and /server_info say so.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pdctl import deployment_secret, http_auth
from pdctl.errors import UsageError
from pdctl.http_auth import SIGNATURE, sign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.deployment_secret import DeploymentSecret


class PolicyName(str, Enum):
    RANDOM = "random"
    ROUND_ROBIN = "round_robin"
    POWER_OF_TWO = "power_of_two"
    CACHE_AWARE = "cache_aware"


class BootstrapCheck(str, Enum):
    """What the router checks on a prefill's bootstrap server before it sends requests to the prefill."""

    REQUIRE = "require"  # it must answer, agree with /server_info, and have all ranks registered
    WARN = "warn"  # no answer is only noted: for networks where decodes can reach that port and the router cannot
    OFF = "off"  # never checked


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
        """Return `bearer`, plus the line that proves to engines of this deployment that its router asks."""
        if self.secret is None or method == "GET":
            return self.bearer
        return self.bearer + f"{SIGNATURE}: {sign(self.secret, method, target, body)}\r\n".encode()


DEFAULT_PORTS = {"http": 80, "https": 443}
NOT_IN_HOST = frozenset(" '\"\\<>(){}|,=")  # the host appears in log lines, between spaces


@dataclass(frozen=True, slots=True)
class Origin:
    """`host` is bare: an IPv6 address has no brackets here."""

    scheme: str
    host: str
    port: int

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def uri_host(self) -> str:
        """The host as written in a URL and in `bootstrap_host`: IPv6 in brackets (sglang 0.5.13+ expects them)."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.uri_host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Return the origin of `http://host:port`. Raise UsageError, which says what part of the text is invalid."""
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


MARK = "REHEARSAL"
KEY = "pdctl_rehearsal"


class Incident(str, Enum):
    MISSING = "missing-bootstrap-port"
    WRONG = "wrong-bootstrap-port"
    SWAPPED = "swapped-bootstrap-ports"
    PATIENT = "wait-for-both-legs"


DOCS = {
    Incident.MISSING: "send `bootstrap_port: null` for every prefill, as sglang-router 0.3.2 does without ports",
    Incident.WRONG: "send PORT for the first prefill, whatever its bootstrap port is",
    Incident.SWAPPED: "send each prefill's bootstrap port for the next one",
    Incident.PATIENT: "when a leg has failed wait until the other one ends too, as sglang-router 0.3.2 does",
}
REHEARSAL_HELP = "\n".join((
    "a real incident on request, off by default, marked in the log, /readiness, /workers and /server_info:",
    *(f"  {one.value}{'=PORT' if one is Incident.WRONG else ''}: {doc}" for one, doc in DOCS.items()),
))  # fmt: skip


def read_incident(text: str) -> tuple[Incident, int]:
    """Return the incident, and the wrong port (0 for the others). Raise UsageError with what is valid."""
    name, equals, value = text.partition("=")
    try:
        incident = Incident(name)
    except ValueError:
        known = ", ".join(one.value for one in Incident)
        raise UsageError(f"--rehearse {text}: no such rehearsal", f"there are {known}") from None
    if incident is not Incident.WRONG and not equals:
        return incident, 0
    if incident is Incident.WRONG and value.isdecimal() and 0 < int(value) < 65536:
        return incident, int(value)
    fix = "write wrong-bootstrap-port=PORT" if incident is Incident.WRONG else f"write {name} alone"
    raise UsageError(f"--rehearse {text}: not understood", fix)


def misleads(text: str) -> bool:
    """Return whether ports are then sent as configured, without a check of the prefill."""
    return bool(text) and read_incident(text)[0] is not Incident.PATIENT


def misled(args: RouterArgs) -> tuple[WorkerArg, ...]:
    """Return the prefills with the ports this router will send. Raise UsageError if that cannot be rehearsed."""
    if not misleads(args.rehearse):
        return args.prefill
    incident, wrong = read_incident(args.rehearse)
    ports = [one.bootstrap_port for one in args.prefill]
    if incident is Incident.MISSING:
        ports = [None] * len(ports)
    elif incident is Incident.WRONG:
        ports = [wrong, *ports[1:]] if ports else []
    elif len(ports) < 2 or None in ports:
        raise UsageError(f"--rehearse {args.rehearse}: two prefills with their ports are needed", "--prefill URL PORT")
    else:
        ports = [*ports[1:], ports[0]]
    return tuple(dataclasses.replace(one, bootstrap_port=port) for one, port in zip(args.prefill, ports, strict=True))


def start_lines(args: RouterArgs) -> tuple[str, str]:
    """Return the marked warning, and sglang-router 0.3.2's own line, where only a `None` shows a missing port.

    The latter is marked too: otherwise log readers would take this log for that router's.
    """
    prefills = ", ".join(f'("{one.origin.url}", {_some(one.bootstrap_port)})' for one in misled(args))
    decodes = ", ".join(f'"{one.origin.url}"' for one in args.decode)
    policies = [_camel(policy.value) if policy else None for policy in (args.prefill_policy, args.decode_policy)]
    loud = f"{MARK}: {args.rehearse}: {DOCS[read_incident(args.rehearse)[0]]}"
    return loud, (
        f"{MARK}: Starting router on {args.host}:{args.port} | mode: PrefillDecode {{ prefill_urls: [{prefills}], "
        f"decode_urls: [{decodes}], prefill_policy: {_some(policies[0])}, decode_policy: {_some(policies[1])} }} | "
        f"policy: {_camel(args.policy.value)} | max_payload: {args.max_payload_size >> 20}MB"
    )


def _some(value: str | int | None) -> str:
    return "None" if value is None else f"Some({value})"


def _camel(name: str) -> str:
    return name.title().replace("_", "")


HELP = {
    "host": "address to listen on",
    "port": "port to listen on",
    "policy": "how a pair is chosen; round_robin walks every prefill-decode pair",
    "prefill_policy": "policy for prefills alone (default: --policy)",
    "decode_policy": "policy for decodes alone (default: --policy)",
    "bootstrap_check": "require: use a prefill only if its bootstrap server answers; warn: note it; off: never ask",
    "retries": "further attempts after the first, each on a fresh room, while nothing has reached the client",
    "retry_backoff": "pause before the first retry; doubles each time",
    "request_timeout": "whole request, all attempts together",
    "prefill_timeout": "prefill leg of one attempt",
    "first_byte_timeout": "first byte of a stream, per attempt",
    "connect_timeout": "TCP connection to a worker",
    "read_timeout": "a client that stops in the middle of sending its request",
    "idle_timeout": "client connection without a request",
    "upstream_idle_timeout": "pooled connection without a request; keep it below the workers' keep-alive (5 s)",
    "health_path": "path asked on every worker",
    "health_interval": "between health checks of a worker in use",
    "health_timeout": "one health check",
    "liveness_interval": "between looks at /ready of a pdctl engine in use; one that is gone gets no new request",
    "health_failure_threshold": "failed checks in a row until a worker is not routed to",
    "health_success_threshold": "good checks in a row until a worker is routed to again",
    "probe_interval": "between looks at a worker that is not routed to",
    "probe_timeout": "/server_info and the bootstrap server, each",
    "cb_failure_threshold": "failures in a row that open a pair's breaker",
    "cb_timeout": "until an open breaker lets one request try the pair again",
    "cache_threshold": "cache_aware: share of a prompt that must match for affinity to count",
    "balance_abs_threshold": "cache_aware: more requests than the least loaded that break affinity, together with …",
    "balance_rel_threshold": "cache_aware: … this multiple of the least load",
    "max_payload_memory": "all request bodies together; beyond it, and of one address beyond a half, they get 503",
    "max_connections": "clients at once, of one address a half; the longest idle one makes room for a new one",
    "max_payload_size": "request body; a larger one is answered 413",
    "ledger_size": "rooms remembered for GET /rooms",
    "shutdown_grace": "for requests in flight after SIGTERM; a second signal ends at once",
    "log_level": "debug, info, warning or error",
    "rehearse": "one of these",
}
# sglang_router 0.3.2 spells these differently; both are accepted.
SPELLINGS = {
    "request_timeout": ("--request-timeout-secs",),
    "health_interval": ("--health-check-interval-secs",),
    "health_timeout": ("--health-check-timeout-secs",),
    "health_path": ("--health-check-endpoint",),
    "cb_timeout": ("--cb-timeout-duration-secs",),
    "shutdown_grace": ("--shutdown-grace-period-secs",),
}
LOG_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"}
NOT_BY_FIELD = (
    "prefill", "decode", "rehearse", "api_key", "admin_api_key", "secret", "allow_unauthenticated_workers",
)  # fmt: skip
UNAUTHENTICATED = (
    "let whoever reaches --host add and remove workers, as sglang_router does; "
    "needed on an address that other machines reach, where there is neither a key nor a deployment secret"
)
KINDS = {"int": int, "float": float, "BootstrapCheck": BootstrapCheck}
# Not argparse's own usage, which is twenty lines: the error stands below it and must be seen.
USAGE = "python -m pdctl.router --prefill URL [PORT] --decode URL [FLAG ...]; --help lists every flag"


def parse(argv: Sequence[str]) -> RouterArgs:
    """Return RouterArgs from a command line. Exit 2, naming the flag, if one is unknown, wrong or contradictory."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m pdctl.router", usage=USAGE, allow_abbrev=False, formatter_class=raw
    )
    _add_workers(parser)
    for setting in dataclasses.fields(RouterArgs):
        if setting.name in NOT_BY_FIELD:
            continue
        kind = KINDS.get(str(setting.type), PolicyName if "PolicyName" in str(setting.type) else str)
        choices = [item.value for item in kind] if isinstance(kind, type) and issubclass(kind, Enum) else None
        parser.add_argument(
            "--" + setting.name.replace("_", "-"),
            *SPELLINGS.get(setting.name, ()),
            dest=setting.name,
            type=str if choices else kind,
            choices=sorted(LOG_LEVELS) if setting.name == "log_level" else choices,
            default=setting.default.value if isinstance(setting.default, Enum) else setting.default,
            help=f"{HELP[setting.name]} (default: %(default)s)",
            metavar=None if choices else kind.__name__.upper(),
        )
    http_auth.add_flags(parser)
    parser.add_argument("--allow-unauthenticated-workers", action="store_true", help=UNAUTHENTICATED)
    parser.add_argument("--deployment-secret-file", default="", metavar="FILE", help=deployment_secret.HELP)
    incidents = parser.add_argument_group("rehearsal", REHEARSAL_HELP)
    incidents.add_argument("--rehearse", default="", metavar="INCIDENT", help=HELP["rehearse"])
    values = vars(parser.parse_args(argv))
    del values["pd_disaggregation"]
    try:
        deployment_secret.choose(str(values.pop("deployment_secret_file")), os.environ)
        keys = http_auth.chosen(values, os.environ)
        values.update(api_key=keys.api, admin_api_key=keys.admin, secret=keys.secret)
        return _checked(values)
    except UsageError as error:
        parser.error(f"{error.message}{f'; {error.fix}' if error.fix else ''}")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pd-disaggregation", action="store_true", help="accepted for sglang_router's sake: always on")
    parser.add_argument(
        "--prefill",
        nargs="+",
        action="append",
        default=[],
        metavar=("URL", "PORT"),
        help="a prefill, and its bootstrap port; without one (or with `none`) the port is read from its /server_info",
    )
    parser.add_argument("--decode", nargs="+", action="append", default=[], metavar=("URL", ""), help="a decode")


def _checked(values: dict[str, object]) -> RouterArgs:
    prefill, decode = values.pop("prefill"), values.pop("decode")
    for name in ("policy", "prefill_policy", "decode_policy"):
        values[name] = PolicyName(values[name]) if values[name] else None
    values["bootstrap_check"] = BootstrapCheck(values["bootstrap_check"])
    values["log_level"] = LOG_LEVELS[str(values["log_level"])]
    args = RouterArgs(
        prefill=tuple(_prefill(words) for words in prefill),  # type: ignore[attr-defined]
        decode=tuple(WorkerArg(Origin.parse(url)) for words in decode for url in words),  # type: ignore[attr-defined]
        **values,  # type: ignore[arg-type]
    )
    seen: set[Origin] = set()
    for worker in (*args.prefill, *args.decode):
        if worker.origin in seen:
            raise UsageError(f"{worker.origin.url} is given twice", "name every worker once, in one role")
        seen.add(worker.origin)
    _check_numbers(args)
    if args.rehearse:
        start_lines(args)  # raises if that cannot be rehearsed
    return args


def _prefill(words: Sequence[str]) -> WorkerArg:
    url, *port = words
    if len(port) > 1:
        raise UsageError(f"--prefill {' '.join(words)}: takes URL and PORT", "repeat --prefill for every prefill")
    if not port or port[0].lower() == "none":
        return WorkerArg(Origin.parse(url))
    if not port[0].isdigit() or not 0 < int(port[0]) < 65536:
        raise UsageError(f"--prefill {url} {port[0]}: a bootstrap port is 1 to 65535, or `none`", "give the port alone")
    return WorkerArg(Origin.parse(url), int(port[0]))


def _check_numbers(args: RouterArgs) -> None:
    for setting in dataclasses.fields(args):
        value = getattr(args, setting.name)
        flag = "--" + setting.name.replace("_", "-")
        least = {"retries": 0, "port": 0, "retry_backoff": 0.0, "shutdown_grace": 0.0}.get(setting.name)
        # `not`: NaN is neither larger nor smaller.
        if str(setting.type) in ("int", "float") and not (value > 0 if least is None else value >= least):
            raise UsageError(f"{flag} {value}: too small", "give a larger number")
    if args.port > 65535:
        raise UsageError(f"--port {args.port}: a port is 1 to 65535", "give a smaller number")
