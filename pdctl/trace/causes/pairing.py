"""Prefill and decode did not meet: their settings differ, a leg is missing, or the decode had no pages to give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.base import Phase, Sign
from pdctl.shell_quoting import pasteable
from pdctl.trace.case import NEAR, Case, CauseFinding, Proof, is_mismatch
from pdctl.trace.room_events import seconds_waited, step_reached

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.logs.event import Event
    from pdctl.trace.observed_deployment import ObservedInstance


# Code → (value of the prefill, value of the decode, the flag both must give).
COMPARED = {
    "PD302": ("prefill_page_size", "decode_page_size", "--page-size"),
    "PD303": ("prefill_dtype", "decode_dtype", "--kv-cache-dtype"),
    "PD304": ("prefill_layout", "decode_layout", "--attention-backend"),
    "PD325": ("prefill_policy", "decode_policy", "--disaggregation-decode-allocation-policy"),
}


def mismatch_logged(case: Case) -> CauseFinding | None:
    """The decode or prefill logged a mismatch while it had the room."""
    span = case.room_events.span
    if span is None or case.done is not None or case.who.arrived is not None:
        return None
    names = {event.instance for event in case.room_events.events}
    for line in case.around.once("mismatches", lambda: list(filter(is_mismatch, case.around))):
        near = line.t is not None and span[0] - NEAR <= line.t <= span[1] + NEAR
        if near and line.instance in names:
            return described(line, case, (), f"{line.instance} says so")
    return None


def attention_tp(case: Case) -> CauseFinding | None:
    """The transfer never completes, and the two sides split their heads differently."""
    failed = case.decode_failed
    if failed is None or not (seconds_waited(failed) or failed.proves(Sign.GAVE_UP_WAITING)) or case.who.crossed:
        return None
    met = case.who.contacted
    prefill = case.deployment.instances.get(met.value) if met else None
    decode = case.decode
    if prefill is None or decode is None:
        return None
    sizes = case.unequal_attention_tp
    if sizes is None:
        return None
    names = (prefill.name, decode.name)
    fills = {
        "observed": str(sizes[0]), "expected": str(sizes[1]), "instance": names[0], "other": names[1],
        "model": "the model",
    }  # fmt: skip
    why = (
        f"{names[0]} got the page list, and the KV cache never arrived complete: its attention TP is {sizes[0]}, "
        f"{names[1]}'s is {sizes[1]}, so every page is sent in small slices"
    )
    proofs = [Proof("the page list arrived", event) for event in (met.events[:1] if met else ())]
    proofs.append(Proof("no cache came until the decode gave up", failed))
    fix = f"start {pasteable(names[0])} and {pasteable(names[1])} with the same --tp-size and --dp-size"
    return CauseFinding("PD305", "prefill", why, tuple(proofs), names[0], fills, fix)


def described(line: Event, case: Case, proofs: tuple[Proof, ...], how: str) -> CauseFinding:
    """The finding for a line that reports a mismatch."""
    prefill, decode, flag = COMPARED.get(line.row.cause, ("", "", ""))
    names = _pair(case)
    fills = {
        "observed": line.values.get(prefill, line.text.strip()[:120]), "expected": line.values.get(decode, "the same"),
        "instance": names[0], "other": names[1], "prefill": names[0], "decode": names[1], "model": "the model",
    }  # fmt: skip
    fix = f"start {pasteable(names[0])} and {pasteable(names[1])} with the same {flag}" if flag else ""
    proof = Proof("both sides were compared, and differ", line)
    rest = tuple(one for one in proofs if one.event is not line)
    return CauseFinding(
        line.row.cause, "decode", f"{line.text.strip()[:200]}: {how}", (proof, *rest), names[1], fills, fix
    )


def _pair(case: Case) -> tuple[str, str]:
    met = case.who.contacted or case.who.requested
    prefill = met.value if met else case.prefill.name if case.prefill else "prefill"
    return prefill, case.decode.name if case.decode else "decode"


LESS = "start the router with --max-concurrent-requests N, or add decode instances"


def full(case: Case) -> CauseFinding | None:
    """The decode had the room in its prealloc queue and no pages to give."""
    starved = next((one for one in case.room_events.by("decode") if one.proves(Sign.GAVE_UP_WITHOUT_PAGES)), None)
    if starved is not None:
        return _without_slot(case, starved.instance, starved) or _starved(starved)
    failed = next((event for event in case.room_events.by("prefill") if _bootstrapping(event)), None)
    decode, span = case.decode, case.room_events.span
    if failed is None or decode is None or span is None:
        return None
    late = _queued(case, failed)
    if late is not None:
        return late
    if case.who.contacted:
        return None
    unserved = _without_slot(case, decode.name, failed)
    if unserved is not None:
        return unserved
    batches = case.lines(decode.name, (Sign.RUNNING,), *span)
    held = [event for event in batches if event.values.get("prealloc", "0") != "0"]
    mine = [event for event in case.room_events.by("decode") if step_reached(event) is Phase.PREALLOC]
    if not held or not (mine or case.who.decode is None):
        return None
    queued = held[-1].values["prealloc"]
    fills = {"short": f"{queued} rooms wait for KV pages or slots of {decode.name}"}
    proofs = (
        Proof(f"{queued} rooms wait for pages on {decode.name}", held[-1]),
        _in_vain(failed),
        *(Proof("this room is one of them", event) for event in mine[:1]),
    )
    why = f"{decode.name} had no pages or slots to give, so it never sent its page list"
    fix = LESS
    return CauseFinding("PD501", "decode", why, proofs, decode.name, fills, fix)


def _starved(failed: Event) -> CauseFinding:
    """The decode gave the room up itself."""
    name, reason = failed.instance, failed.values["reason"]
    fills = {"short": f"{name} had no pages or slot for the room until its time-out"}
    return CauseFinding("PD501", "decode", reason, (_in_vain(failed),), name, fills, LESS)


def _in_vain(failed: Event) -> Proof:
    if failed.role == "decode":
        return Proof("no pages or slot came free until the decode gave up", failed)
    return Proof("no page list came until the prefill gave up", failed)


def _without_slot(case: Case, name: str, failed: Event) -> CauseFinding | None:
    """The decode says, while this room stood in its prealloc queue, that rooms without KV cache hold its slots."""
    mine = [event for event in case.room_events.by("decode") if step_reached(event) is Phase.PREALLOC]
    began = mine[0].t if mine else None
    if began is None or failed.t is None:
        return None
    said = case.lines(name, (Sign.SLOTS_HELD,), began, failed.t)
    if not said:
        return None
    line = said[-1]
    held = f"{line.values['held']} slots of {name} are held by rooms whose KV cache does not come"
    proofs = (
        Proof(held, line),
        _in_vain(failed),
        Proof("this room waited for a slot", mine[0]),
    )
    why = f"{name} had no slot to give, so it never sent its page list: {line.text.strip()[:240]}"
    fix = "pdctl diagnose   # on the same logs: what became of the rooms that hold the slots"
    return CauseFinding("PD501", "decode", why, proofs, name, {"short": held}, fix)


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
            _in_vain(failed),
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
    return _request_missing(case)


def _request_missing(case: Case) -> CauseFinding | None:
    """The prefill got the page list, and no prefill the request, until the decode timed out."""
    met = case.who.contacted
    failed = next((event for event in case.room_events.by("decode") if seconds_waited(event)), None)
    prefill = case.deployment.instances.get(met.value) if met is not None else None
    asked = case.who.requested is not None or "requested" in case.who.several
    if failed is None or prefill is None or asked:
        return None
    return _leg_missing(case, prefill.name, failed) if _logging([prefill], failed) else None


def _leg_missing(case: Case, names: str, failed: Event) -> CauseFinding:
    seconds = seconds_waited(failed)
    fills = {"missing": names, "observed": f"{seconds:g} s" if seconds else "in vain", "url": "http://ROUTER"}
    why = f"no line of {names} has this room, and every request is logged there"
    side = "router" if case.routed else ""
    return CauseFinding("PD703", side, why, (Proof("the other side waited in vain", failed),), names, fills)


def unannounced(case: Case) -> CauseFinding | None:
    """The prefill waited in Bootstrapping, and nothing says why the decode did not come."""
    failed = case.prefill_failed
    if failed is None or not _bootstrapping(failed) or case.who.contacted or case.decode_failed:
        return None
    name = failed.instance
    decode = case.decode.name if case.decode else "the decode"
    fills = {"prefill": name, "decode": decode, "observed": f"{seconds_waited(failed):g} s in KVPoll.Bootstrapping"}
    why = f"{name} had the request and waited for a page list that never came"
    return CauseFinding("PD702", "decode", why, (_in_vain(failed),), name, fills)


def _bootstrapping(failed: Event) -> bool:
    return failed.row.phase is Phase.TIMED_OUT and step_reached(failed) is Phase.BOOTSTRAP


def _logging(instances: Iterable[ObservedInstance], failed: Event) -> list[str]:
    """Names of those that log every request and whose logs cover the whole wait."""
    if failed.t is None:
        return []
    began = failed.t - seconds_waited(failed)
    return [one.name for one in instances if one.logs_every_request and one.covers(began, failed.t)]
