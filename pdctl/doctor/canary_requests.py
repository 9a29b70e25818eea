"""Which real requests are sent, and what they carry: exactly what the router would send.

A router that holds no port sends null, and so does the canary; without a router, it sends the port that the prefill
itself names.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pdctl.doctor import server_info
from pdctl.doctor.bootstrap_ports import port_claims
from pdctl.doctor.request import Progress
from pdctl.engines.sglang.faults import RunningRelease, hits
from pdctl.fleet import canary_probe
from pdctl.fleet.address import bracketed
from pdctl.fleet.canary_probe import Prompt, Side
from pdctl.fleet.observations import CANCEL, N2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.doctor.check import Facts
    from pdctl.doctor.request import Request
    from pdctl.fleet.observations import Canary, HeldRequests, ObservedEngine

WHOLE = 180.0  # seconds for all pairs together
DRAIN = 10.0  # seconds within which the queues must become empty
LEAST, MANY = (
    5.0,
    10.0,
)  # an extra may take this many times as long as the pair's request, but at least these seconds
BEYOND = 64  # tokens above a limit
LONGEST = 1_000_000  # tokens; a limit above this is not tested with an over-long prompt
# Kinds of canary that must not be sent to a release with that fault (engines/sglang/faults.py), because they end a
# thread or a process of the prefill.
HARM: dict[str, tuple[str, ...]] = {
    "abort-kills-bootstrap-thread": (CANCEL, N2),
    "samples-end-prefill": (N2,),
}
PLAIN_IDS = tuple(range(5, 17))  # for engines without a tokenizer: any valid ids will do


def send(request: Request, facts: Facts) -> tuple[tuple[Canary, ...], tuple[HeldRequests, ...]]:
    """One request per pair, then the extras on the first pair that works, then what is left in the queues."""
    prefills, decodes = sides(facts)
    if not prefills or not decodes:
        return (), ()
    prompt = Prompt(ids=PLAIN_IDS) if any(engine.info.get("skip_tokenizer_init") for engine in facts.engines) else None
    counter = Counter(request, len(prefills) * len(decodes))
    cells = canary_probe.matrix(
        prefills,
        decodes,
        WHOLE,
        prompt=prompt,
        patience=request.canary_deadline,
        key=request.key,
        told=counter.told,
    )
    working = next((cell for cell in cells if cell.ok), None)
    more: tuple[Canary, ...] = ()
    if working is not None and request.extras:
        prefill = next(side for side in prefills if side.name == working.prefill)
        decode = next(side for side in decodes if side.name == working.decode)
        more = canary_probe.extras(
            prefill,
            decode,
            WHOLE,
            kinds=kinds([one for one in facts.engines if one.endpoint.name in (prefill.name, decode.name)]),
            too_long=too_long([one for one in facts.engines if one.endpoint.name in (prefill.name, decode.name)]),
            prompt=prompt,
            patience=min(request.canary_deadline, max(LEAST, MANY * working.seconds)),
            key=request.key,
        )
        request.progress(Progress("other canaries", len(more), len(more)))
    return (*cells, *more), canary_probe.queues(facts.endpoints, DRAIN, key=request.key)


def kinds(engines: Sequence[ObservedEngine]) -> tuple[str, ...]:
    """The kinds of canary to send; one that breaks the release of any of `engines` is left out."""
    harmful: set[str] = set()
    for engine in engines:
        release = None if server_info.embedded(engine) else server_info.release(engine)
        if release is not None:
            # It is the prefill that is harmed, and both sides run the same release.
            faulty = {hit.fault.id for hit in hits(RunningRelease(release, "prefill", server_info.backend(engine)))}
            harmful.update(kind for fault, some in HARM.items() if fault in faulty for kind in some)
    return tuple(kind for kind in canary_probe.EXTRAS if kind not in harmful)


class Counter:
    """Counts finished cells, which end on several threads, and reports progress."""

    def __init__(self, request: Request, total: int) -> None:
        self._request, self._total, self._done = request, total, 0
        self._lock = threading.Lock()

    def told(self, _: Canary) -> None:
        with self._lock:
            self._done += 1
            self._request.progress(Progress("canary pairs", self._done, self._total))


def sides(facts: Facts) -> tuple[list[Side], list[Side]]:
    """The prefills, with the bootstrap host and port that a request would carry, and the decodes."""
    prefills = [
        Side(claim.prefill, claim.url, bracketed(claim.host), claim.router if claim.routed else claim.truth)
        for claim in port_claims(facts, True).claims
    ]
    decodes = [Side(one.name, one.url) for one in facts.endpoints if one.role == "decode"]
    return prefills, decodes


def too_long(engines: Sequence[ObservedEngine]) -> int | None:
    """A number of tokens that no engine may accept; None if a limit is unknown or too large to test."""
    limits = [limit for engine in engines if (limit := server_info.longest(engine)) is not None]
    if len(limits) < len(engines) or not limits or max(limits) > LONGEST:
        return None
    return max(limits) + BEYOND
