"""Settings of prefill and decode that must agree but differ: a line says so, or their attention TP sizes do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.sign import Sign
from pdctl.trace.case import NEAR, Case, CauseFinding, Proof, is_mismatch
from pdctl.trace.room_events import seconds_waited

if TYPE_CHECKING:
    from pdctl.logs.event import Event

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
        f"{names[0]} got the page list, and no cache came whole: its attention TP is {sizes[0]}, "
        f"{names[1]}'s is {sizes[1]}, so every page is cut by heads"
    )
    proofs = [Proof("the page list arrived", event) for event in (met.events[:1] if met else ())]
    proofs.append(Proof("no cache came until the decode gave up", failed))
    fix = f"start {names[0]} and {names[1]} with the same --tp-size and --dp-size"
    return CauseFinding("PD305", "prefill", why, tuple(proofs), names[0], fills, fix)


def described(line: Event, case: Case, proofs: tuple[Proof, ...], how: str) -> CauseFinding:
    """The finding for a line that reports a mismatch."""
    prefill, decode, flag = COMPARED.get(line.row.cause, ("", "", ""))
    names = _pair(case)
    fills = {
        "observed": line.values.get(prefill, line.text.strip()[:120]), "expected": line.values.get(decode, "the same"),
        "instance": names[0], "other": names[1], "prefill": names[0], "decode": names[1], "model": "the model",
    }  # fmt: skip
    fix = f"start {names[0]} and {names[1]} with the same {flag}" if flag else ""
    proof = Proof("both sides were compared, and differ", line)
    rest = tuple(one for one in proofs if one.event is not line)
    return CauseFinding(
        line.row.cause, "decode", f"{line.text.strip()[:200]}: {how}", (proof, *rest), names[1], fills, fix
    )


def _pair(case: Case) -> tuple[str, str]:
    met = case.who.contacted or case.who.requested
    prefill = met.value if met else case.prefill.name if case.prefill else "prefill"
    return prefill, case.decode.name if case.decode else "decode"
