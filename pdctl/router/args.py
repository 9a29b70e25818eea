"""The router's command line: sglang_router's spelling of workers and policies, seconds for every time."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.router import rehearsal
from pdctl.router.origin import Origin

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    ledger_size: int = 4096
    shutdown_grace: float = 30.0
    api_key: str = ""
    log_level: str = "info"
    rehearse: str = ""

    @property
    def misled(self) -> bool:
        """A rehearsal: bootstrap ports, or none, are sent without a look at the prefill."""
        return rehearsal.misleads(self.rehearse)


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
    "health_failure_threshold": "failed checks in a row until a worker is not routed to",
    "health_success_threshold": "good checks in a row until a worker is routed to again",
    "probe_interval": "between looks at a worker that is not routed to",
    "probe_timeout": "/server_info and the bootstrap server, each",
    "cb_failure_threshold": "failures in a row that open a pair's breaker",
    "cb_timeout": "until an open breaker lets one request try the pair again",
    "cache_threshold": "cache_aware: share of a prompt that must match for affinity to count",
    "balance_abs_threshold": "cache_aware: more requests than the least loaded that break affinity, together with …",
    "balance_rel_threshold": "cache_aware: … this multiple of the least load",
    "max_payload_size": "request body; a larger one is answered 413",
    "ledger_size": "rooms remembered for GET /rooms",
    "shutdown_grace": "for requests in flight after SIGTERM; a second signal ends at once",
    "api_key": "clients must send it as bearer token; the router sends it on its own requests to workers",
    "log_level": "debug, info, warning or error",
    "rehearse": "one of these",
}
# sglang_router 0.3.2 spells these differently; both are taken.
SPELLINGS = {
    "request_timeout": ("--request-timeout-secs",),
    "health_interval": ("--health-check-interval-secs",),
    "health_timeout": ("--health-check-timeout-secs",),
    "health_path": ("--health-check-endpoint",),
    "cb_timeout": ("--cb-timeout-duration-secs",),
    "shutdown_grace": ("--shutdown-grace-period-secs",),
}
LOG_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"}
KINDS = {"int": int, "float": float, "BootstrapCheck": BootstrapCheck}


def parse(argv: Sequence[str]) -> RouterArgs:
    """RouterArgs from a command line; exits 2 naming the flag when one is unknown, misspelt or contradicts another."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m pdctl.router", allow_abbrev=False, formatter_class=raw)
    _add_workers(parser)
    for field in dataclasses.fields(RouterArgs):
        if field.name in ("prefill", "decode", "rehearse"):
            continue
        kind = KINDS.get(str(field.type), PolicyName if "PolicyName" in str(field.type) else str)
        choices = [item.value for item in kind] if isinstance(kind, type) and issubclass(kind, Enum) else None
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            *SPELLINGS.get(field.name, ()),
            dest=field.name,
            type=str if choices else kind,
            choices=sorted(LOG_LEVELS) if field.name == "log_level" else choices,
            default=field.default.value if isinstance(field.default, Enum) else field.default,
            help=f"{HELP[field.name]} (default: %(default)s)",
            metavar=None if choices else kind.__name__.upper(),
        )
    incidents = parser.add_argument_group("rehearsal", rehearsal.HELP)
    incidents.add_argument("--rehearse", default="", metavar="INCIDENT", help=HELP["rehearse"])
    values = vars(parser.parse_args(argv))
    del values["pd_disaggregation"]
    try:
        return _checked(values)
    except UsageError as error:
        parser.error(f"{error.message}; {error.fix}")


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
        rehearsal.start_lines(args)  # raises when that cannot be rehearsed
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
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        flag = "--" + field.name.replace("_", "-")
        least = {"retries": 0, "port": 0, "retry_backoff": 0.0, "shutdown_grace": 0.0}.get(field.name)
        if str(field.type) in ("int", "float") and (value < least if least is not None else value <= 0):
            raise UsageError(f"{flag} {value}: too small", "give a larger number")
    if args.port > 65535:
        raise UsageError(f"--port {args.port}: a port is 1 to 65535", "give a smaller number")
