"""Mistakes of real routers on request (`--rehearse`): ports missing, wrong or swapped, sent without a question.

What is copied is sglang-router 0.3.2: it takes the ports of its command line as they are, and an attempt ends only when
both of its legs have (so it does in every rehearsal). Off unless asked for; the log, /readiness, /workers and
/server_info say so.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from pdctl.router.router_args import RouterArgs, WorkerArg

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
HELP = "a real incident on request, off by default, marked in the log, /readiness, /workers and /server_info:\n" + (
    "\n".join(f"  {one.value}{'=PORT' if one is Incident.WRONG else ''}: {doc}" for one, doc in DOCS.items())
)


def read(text: str) -> tuple[Incident, int]:
    """The incident, and the wrong port (0 with the others). UsageError says what may stand there."""
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
    """Whether ports are then sent as they are believed to be, with no look at the prefill."""
    return bool(text) and read(text)[0] is not Incident.PATIENT


def misled(args: RouterArgs) -> tuple[WorkerArg, ...]:
    """The prefills of the command line with the ports this router sends. UsageError when it cannot be rehearsed."""
    if not misleads(args.rehearse):
        return args.prefill
    incident, wrong = read(args.rehearse)
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
    """The loud one, and sglang-router 0.3.2's own, in which nothing but a `None` tells of a missing port.

    That one is marked too: by itself it would make readers take this log for that router's.
    """
    prefills = ", ".join(f'("{one.origin.url}", {_some(one.bootstrap_port)})' for one in misled(args))
    decodes = ", ".join(f'"{one.origin.url}"' for one in args.decode)
    policies = [_camel(policy.value) if policy else None for policy in (args.prefill_policy, args.decode_policy)]
    loud = f"{MARK}: {args.rehearse}: {DOCS[read(args.rehearse)[0]]}"
    return loud, (
        f"{MARK}: Starting router on {args.host}:{args.port} | mode: PrefillDecode {{ prefill_urls: [{prefills}], "
        f"decode_urls: [{decodes}], prefill_policy: {_some(policies[0])}, decode_policy: {_some(policies[1])} }} | "
        f"policy: {_camel(args.policy.value)} | max_payload: {args.max_payload_size >> 20}MB"
    )


def _some(value: str | int | None) -> str:
    return "None" if value is None else f"Some({value})"


def _camel(name: str) -> str:
    return name.title().replace("_", "")
