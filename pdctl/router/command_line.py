"""The router's command line: sglang_router's spelling of workers and policies, seconds for every time."""

from __future__ import annotations

import argparse
import dataclasses
import os
from enum import Enum
from typing import TYPE_CHECKING

from pdctl import deployment_secret, http_auth
from pdctl.errors import UsageError
from pdctl.router import rehearsal
from pdctl.router.router_args import BootstrapCheck, Origin, PolicyName, RouterArgs, WorkerArg

if TYPE_CHECKING:
    from collections.abc import Sequence

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
NOT_BY_FIELD = (
    "prefill", "decode", "rehearse", "api_key", "admin_api_key", "secret", "allow_unauthenticated_workers",
)  # fmt: skip
UNAUTHENTICATED = (
    "let whoever reaches --host add and remove workers, as sglang_router does; "
    "needed on an address that other machines reach, where there is neither a key nor a deployment secret"
)
KINDS = {"int": int, "float": float, "BootstrapCheck": BootstrapCheck}
# Not argparse's own, which is twenty lines: what is wrong stands below it, and must be seen.
USAGE = "python -m pdctl.router --prefill URL [PORT] --decode URL [FLAG ...]; --help lists every flag"


def parse(argv: Sequence[str]) -> RouterArgs:
    """RouterArgs from a command line; exits 2 naming the flag when one is unknown, misspelt or contradicts another."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m pdctl.router", usage=USAGE, allow_abbrev=False, formatter_class=raw
    )
    _add_workers(parser)
    for field in dataclasses.fields(RouterArgs):
        if field.name in NOT_BY_FIELD:
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
    http_auth.add_flags(parser)
    parser.add_argument("--allow-unauthenticated-workers", action="store_true", help=UNAUTHENTICATED)
    parser.add_argument("--deployment-secret-file", default="", metavar="FILE", help=deployment_secret.HELP)
    incidents = parser.add_argument_group("rehearsal", rehearsal.HELP)
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
        # `not`: NaN is neither larger nor smaller.
        if str(field.type) in ("int", "float") and not (value > 0 if least is None else value >= least):
            raise UsageError(f"{flag} {value}: too small", "give a larger number")
    if args.port > 65535:
        raise UsageError(f"--port {args.port}: a port is 1 to 65535", "give a smaller number")
