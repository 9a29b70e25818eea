"""Prefill and decode met, and the KV cache did not arrive, or took its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.dialect.phase import Phase
from pdctl.trace import signs
from pdctl.trace.case import Case, Finding, Proof
from pdctl.trace.durations import moved
from pdctl.trace.story import waited
from pdctl.trace.upstreams import sent_address

if TYPE_CHECKING:
    from pdctl.logs.event import Event

# Codes whose lines only mean something next to others; the causes that know those ask for them.
ELSEWHERE = frozenset({"PD205", "PD302", "PD303", "PD304", "PD706", "PD707", "PD709", "PD714", "PD715", "PD704"})
SLOW = 1.0  # GB/s; a healthy transfer on any fabric is above it
LONG = 2.0  # seconds; shorter ones nobody waits for


def spoken(case: Case) -> Finding | None:
    """A line about this very room that names its cause."""
    if case.who.arrived is not None:
        return None
    for event in case.story.events:
        if event.row.cause and not event.row.echo and event.row.cause not in ELSEWHERE:
            fills = {
                "instance": event.instance, "prefill": event.instance, "decode": event.instance,
                "observed": event.values.get("other_room") or event.values.get("addr") or _said(event),
                "expected": event.values.get("limit", "all"), "other": "",
            }  # fmt: skip
            proof = Proof("its own line names the cause", event)
            return Finding(event.row.cause, event.role or "prefill", _said(event), (proof,), event.instance, fills)
    return None


def never_completed(case: Case) -> Finding | None:
    """The right prefill had the request and the page list, and the decode timed out."""
    failed, asked, met = case.decode_failed, case.who.requested, case.who.contacted
    if failed is None or asked is None or met is None or asked.value != met.value:
        return None
    if not (waited(failed) or failed.row.id == "waiting-timeout"):
        return None
    sent = next((event for event in case.story.by("prefill") if event.row.id == "kv-chunk-sending"), None)
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


def client_left(case: Case) -> Finding | None:
    """The request was aborted from outside, before anything else went wrong."""
    if not case.failed or case.who.crossed or not _sound(case):
        return None
    ends = [event for event in case.story.events if signs.failed(event) and event.role != "router"]
    gone = next((event for event in case.story.events if event.row.id in GONE), None)
    aborts = [event for event in ends if event.row.phase is Phase.ABORTED and event.t is not None]
    others = [event for event in ends if event not in aborts and not signs.notice(event)]
    if not aborts or others or not _alive(case, aborts[0]):
        return None
    span = case.story.span
    seconds = aborts[0].t - span[0] if span and aborts[0].t is not None else 0.0
    fills = {"observed": f"{seconds:g} s" if seconds else "some time", "instance": aborts[0].instance}
    proofs = [Proof("the request was aborted here", event) for event in aborts[:2]]
    if gone is not None:
        proofs.insert(0, Proof("the client closed the connection", gone))
    why = "the request was aborted from outside before anything failed: the client, or a router on its behalf, gave up"
    return Finding("PD706", "client", why, tuple(proofs), "", fills)


def _alive(case: Case, abort: Event) -> bool:
    """Both sides went on after it: nobody was waiting for one that was gone, or whose log is not here."""
    decode, prefill = case.decode, case.prefill
    others = [one for one in (decode, prefill) if one is not None and one.name != abort.instance]
    return decode is not None and all(abort.t is not None and one.lived_past(abort.t) for one in others)


def _sound(case: Case) -> bool:
    """Nothing would have kept the room from going well: an abort after a vain wait has another cause."""
    asked, met = case.who.requested, case.who.contacted
    if case.who.arrived is not None or (asked and met and asked.value == met.value):
        return True
    heads = {event.row.id.rpartition("-")[0] for event in case.story.events}
    if "decode-transfer" in heads and "prefill-bootstrap" in heads:
        return False  # the decode had sent a page list, and the prefill that waited for it had none
    router, decode = case.router, case.decode
    if router is None:
        return False
    for one in router.prefills:
        address = sent_address(one, decode.default_port if decode else None)
        owner = address and case.deployment.bootstrap_owner(address)
        if owner is None or owner is not case.deployment.at_url(one.url):
            return False
    return True


GONE = frozenset({"client-left", "client-gone", "client-disconnected"})
CAUSES = (never_completed, slow, client_left)
