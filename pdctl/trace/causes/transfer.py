"""Prefill and decode met, and the KV cache did not arrive, or took its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.sign import Sign
from pdctl.trace.case import Case, Finding, Proof
from pdctl.trace.causes.unresponsive import hung
from pdctl.trace.durations import moved
from pdctl.trace.story import waited

if TYPE_CHECKING:
    from pdctl.logs.event import Event

# Codes whose lines only mean something next to others; the causes that know those ask for them.
ELSEWHERE = frozenset(
    {"PD205", "PD302", "PD303", "PD304", "PD325", "PD706", "PD707", "PD709", "PD714", "PD715", "PD704"}
)
UNREACHED = "PD210"  # written by the decode, about an address that the prefill gave
SLOW = 1.0  # GB/s; a healthy transfer on any fabric is above it
LONG = 2.0  # seconds; shorter ones nobody waits for


def spoken(case: Case) -> Finding | None:
    """A line about this very room that names its cause."""
    if case.who.arrived is not None:
        return None
    for event in case.story.events:
        if event.row.cause and not event.row.echo and event.row.cause not in ELSEWHERE:
            owner = event.instance
            if event.row.cause == UNREACHED:
                if hung(case) is not None:
                    continue  # its address was right
                prefill = case.who.contacted or case.who.requested
                owner = prefill.value if prefill is not None else ""
            fills = {
                "instance": owner, "prefill": event.instance, "decode": event.instance,
                "observed": event.values.get("other_room") or event.values.get("addr") or _said(event),
                "expected": event.values.get("limit", "all"), "other": "",
            }  # fmt: skip
            proof = Proof("its own line names the cause", event)
            side = "prefill" if event.row.cause == UNREACHED else event.role or "prefill"
            return Finding(event.row.cause, side, _said(event), (proof,), owner, fills)
    return None


def never_completed(case: Case) -> Finding | None:
    """The right prefill had the request and the page list, and the decode timed out."""
    failed, asked, met = case.decode_failed, case.who.requested, case.who.contacted
    if failed is None or asked is None or met is None or asked.value != met.value:
        return None
    if not (waited(failed) or failed.proves(Sign.GAVE_UP_WAITING)):
        return None
    sent = next((event for event in case.story.by("prefill") if event.proves(Sign.CACHE_SENDS)), None)
    seconds = waited(failed)
    fills = {
        "prefill": asked.value, "decode": failed.instance, "instance": asked.value,
        "observed": f"{failed.instance} waited {seconds:g} s" if seconds else f"{failed.instance} timed out",
    }  # fmt: skip
    why = f"{asked.value} had the request and the page list, and the cache did not reach {failed.instance} in time"
    proofs = [Proof("no cache came until the decode gave up", failed)]
    if sent is not None:
        proofs.insert(0, Proof(f"{asked.value} began to send it", sent))
    return Finding("PD708", "prefill", why, tuple(proofs), asked.value, fills)


def slow(case: Case) -> Finding | None:
    """The cache moved at a crawl: it took seconds, at a speed no fabric has."""
    crawling = []
    for event in case.story.events:
        size, seconds = moved(event) or (0.0, 0.0)
        if seconds >= LONG and size / seconds < SLOW * 1e9:
            crawling.append((seconds, size, event))
    if not crawling:
        return None
    seconds, size, event = max(crawling, key=lambda one: one[0])
    speed = f"{size / seconds / 1e9:.3g} GB/s"
    observed = f"{speed} for {seconds:.3g} s"
    fills = {"instance": event.instance, "observed": observed, "expected": f"{SLOW:g} GB/s or more"}
    proof = Proof(f"{size / 1e6:.3g} MB took {seconds:.3g} s", event)
    why = f"the KV cache moved at {speed}: {size / 1e6:.3g} MB in {seconds:.3g} s"
    return Finding("PD412", "prefill", why, (proof,), event.instance, fills)


def _said(event: Event) -> str:
    return (event.values.get("reason") or event.text).strip()[:200]


CAUSES = (never_completed, slow)
