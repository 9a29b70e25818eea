"""One side waited for the other: the page list never came, a leg was never sent, or the decode had no room for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.sign import Phase, Sign
from pdctl.trace.case import Case, CauseFinding, Proof
from pdctl.trace.room_events import seconds_waited, step_reached

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.logs.event import Event
    from pdctl.trace.observed_deployment import ObservedInstance

LESS = "start the router with --max-concurrent-requests N, or add decode instances"


def full(case: Case) -> CauseFinding | None:
    """The decode had the room in its prealloc queue and no pages to give."""
    failed = next((event for event in case.room_events.by("prefill") if _bootstrapping(event)), None)
    decode, span = case.decode, case.room_events.span
    if failed is None or decode is None or span is None:
        return None
    late = _queued(case, failed)
    if late is not None:
        return late
    if case.who.contacted:
        return None
    batches = case.lines(decode.name, (Sign.RUNNING,), *span)
    held = [event for event in batches if event.values.get("prealloc", "0") != "0"]
    mine = [event for event in case.room_events.by("decode") if step_reached(event) is Phase.PREALLOC]
    if not held or not (mine or case.who.decode is None):
        return None
    queued = held[-1].values["prealloc"]
    fills = {"short": f"{queued} rooms wait for KV pages or slots of {decode.name}"}
    proofs = (
        Proof(f"{queued} rooms wait for pages on {decode.name}", held[-1]),
        Proof("no page list came until the prefill gave up", failed),
        *(Proof("this room is one of them", event) for event in mine[:1]),
    )
    why = f"{decode.name} had no pages or slots to give, so it never sent its page list"
    fix = LESS
    return CauseFinding("PD501", "decode", why, proofs, decode.name, fills, fix)


def _queued(case: Case, failed: Event) -> CauseFinding | None:
    """The decode logged that the room was in its prealloc queue for longer than the prefill waited."""
    for event in case.room_events.by("decode"):
        seconds = numerals.real(event.values.get("seconds")) or 0.0
        if not event.proves(Sign.WAITED_FOR_PAGES) or not seconds > seconds_waited(failed) > 0:
            continue
        name = event.instance
        fills = {
            "observed": f"{seconds:.0f} s in {name}'s prealloc queue", "expected": "more KV pages or slots",
            "instance": name,
        }  # fmt: skip
        proofs = (
            Proof(f"the room stood in {name}'s prealloc queue for {seconds:.0f} s", event),
            Proof("no page list came until the prefill gave up", failed),
        )
        why = f"{name} had no pages or slots to give until the prefill had given up"
        fix = LESS
        return CauseFinding("PD501", "decode", why, proofs, name, fills, fix)
    return None


def leg_missing(case: Case) -> CauseFinding | None:
    """One side logs every request it gets, and did not log this one."""
    if case.who.arrived is not None or not case.failed:
        return None
    decodes, prefills = case.deployment.decodes, case.deployment.prefills
    if case.prefill_failed and not case.room_events.by("decode") and _bootstrapping(case.prefill_failed):
        missing = _logging(decodes, case.prefill_failed)
        if decodes and len(missing) == len(decodes):
            return _leg_missing(case, ", ".join(missing), case.prefill_failed)
    if case.decode_failed and not case.room_events.by("prefill") and case.deployment.complete():
        missing = _logging(prefills, case.decode_failed)
        if prefills and len(missing) == len(prefills):
            return _leg_missing(case, ", ".join(missing), case.decode_failed)
    return None


def _leg_missing(case: Case, names: str, failed: Event) -> CauseFinding:
    seconds = seconds_waited(failed)
    fills = {"missing": names, "observed": f"{seconds:g} s" if seconds else "in vain", "url": "http://ROUTER"}
    why = f"no line of {names} has this room, and every request is logged there"
    return CauseFinding("PD703", "router", why, (Proof("the other side waited in vain", failed),), names, fills)


def unannounced(case: Case) -> CauseFinding | None:
    """The prefill waited in Bootstrapping, and nothing says why the decode did not come."""
    failed = case.prefill_failed
    if failed is None or not _bootstrapping(failed) or case.who.contacted or case.decode_failed:
        return None
    name = failed.instance
    decode = case.decode.name if case.decode else "the decode"
    fills = {"prefill": name, "decode": decode, "observed": f"{seconds_waited(failed):g} s in KVPoll.Bootstrapping"}
    why = f"{name} had the request and waited for a page list that never came"
    proof = Proof("no page list came until the prefill gave up", failed)
    return CauseFinding("PD702", "decode", why, (proof,), name, fills)


def _bootstrapping(failed: Event) -> bool:
    return failed.row.phase is Phase.TIMED_OUT and step_reached(failed) is Phase.BOOTSTRAP


def _logging(instances: Iterable[ObservedInstance], failed: Event) -> list[str]:
    """Names of those that log every request and whose logs cover the whole wait."""
    if failed.t is None:
        return []
    began = failed.t - seconds_waited(failed)
    return [one.name for one in instances if one.identity.log_requests and one.covers(began, failed.t)]
