"""What a line about one room proves: who has its request, who was contacted, how far it came.

SGLang's failure lines are four heads (`prefill-bootstrap-…`, `prefill-transfer-…`, `decode-handshake-…`,
`decode-transfer-…`): the head says in which queue the room was, the rest of the id says why it left.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.phase import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.logs.event import Event

# Rows of a prefill that only a prefill with the room's request can write, beside all that name its rid.
REQUESTED = frozenset({"kv-chunk-sending", "dp-rank-announced", "transfer-worker-error", "nixl-transport-error"})
# Rows of a prefill that need the decode's page list (TransferInfo).
CONTACTED = frozenset({"transfer-info-arrived", "room-bootstrapped", "kv-chunk-sending"})
SENT = frozenset({"transfer-info-sent"})
# The queue a failed room was in, by the head of its row: what it had reached.
REACHED = (
    ("prefill-bootstrap-", Phase.BOOTSTRAP),
    ("prefill-transfer-", Phase.TRANSFER),
    ("decode-handshake-", Phase.PREALLOC),
    ("decode-transfer-", Phase.HANDSHAKE),
    ("waiting-timeout", Phase.HANDSHAKE),
    ("room-failed-with-", Phase.HANDSHAKE),
    ("failure-recorded-prefill", Phase.BOOTSTRAP),
    ("failure-recorded-decode", Phase.HANDSHAKE),
)
# What a prefill calls finished is its own half.
HALF = {Phase.FINISHED: Phase.TRANSFER}
RECEIVED = ("request-received", "openai-request-received", "request-received-json")
FINISHED = ("request-finished", "request-finished-json")
DECODE_TIMES = ("decode-times", "decode-times-old")
# The KV cache is on the decode.
ARRIVED = frozenset({*DECODE_TIMES, "step-running", "kv-arrived"})
PREFILL_TIMES = ("prefill-times", "prefill-times-old")


def rooms(event: Event) -> tuple[int, ...]:
    """All rooms the line names: a batch has a list of them."""
    if event.room is not None:
        return (event.room,)
    return numerals.wholes(event.values.get("rooms", ""))


def rid(event: Event, room: int) -> str:
    """The request's id next to `room`; in a batch the lists of rooms and rids go together."""
    if event.rid:
        return event.rid
    names = re.findall(r"'([^']*)'", event.values.get("rids", ""))
    named = rooms(event)
    return names[named.index(room)] if room in named and len(names) == len(named) else ""


def requested(event: Event) -> bool:
    """Only a prefill that got the HTTP request writes this line about the room."""
    if event.role != "prefill" or (not event.room and not event.values.get("rooms")):
        return False
    named = bool(event.rid or event.values.get("rids"))
    return named or event.row.id in REQUESTED


def contacted(event: Event) -> bool:
    """Only a prefill that got the decode's page list writes this line about the room."""
    # A request leaves the bootstrap queue only when the list has come: its transfer can fail only then.
    return event.role == "prefill" and (event.row.id in CONTACTED or event.row.id.startswith("prefill-transfer-"))


def failed(event: Event) -> bool:
    """The room ended badly here; an abort notice of the other side is no more than an echo of its own failure."""
    return event.row.phase in (Phase.FAILED, Phase.TIMED_OUT, Phase.ABORTED)


def failed_on(events: Iterable[Event], role: str) -> Event | None:
    """The first line in which this side gives the room up; one that names only the request if there is no other."""
    found = [event for event in events if event.role == role and failed(event) and not notice(event)]
    return next((event for event in found if event.room), found[0] if found else None)


def notice(event: Event) -> bool:
    """Talk about an abort between the two sides, which the one that failed first began."""
    return event.row.id.startswith(("abort-", "late-", "chunk-skipped"))


def reached(event: Event) -> Phase | None:
    """The furthest step of the room this line proves."""
    phase = event.row.phase
    if phase is None:
        return None
    if phase.ends and phase is not Phase.FINISHED:
        return next((found for head, found in REACHED if event.row.id.startswith(head)), None)
    if event.row.id in FINISHED and not answered(event):
        return Phase.RECEIVED
    if event.role == "prefill":
        return HALF.get(phase, phase)
    return phase


def answered(event: Event) -> bool:
    """`Finish:` of a request that was not cut short."""
    return event.row.id in FINISHED and finish(event) not in ("", "abort")


def finish(event: Event) -> str:
    """How a `Finish:` line says the request ended: stop, length, abort, …; "" when it does not."""
    found = re.search(r"'type': '(\w+)'", event.values.get("finish", "")) or re.match(
        r"'(\w+)'", event.values.get("finish", "")
    )
    return found[1] if found else ""
