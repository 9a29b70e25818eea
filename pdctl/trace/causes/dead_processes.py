"""A process was gone or fell over this room: dead engines, rooms used twice, settings that do not fit."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from pdctl.engines import phrases
from pdctl.engines.sglang import behaviour
from pdctl.engines.sign import Phase, Sign
from pdctl.trace.case import NEAR, Case, CauseFinding, Proof, is_mismatch, what_it_shows
from pdctl.trace.room import MissingEvidence
from pdctl.trace.room_events import is_failure, seconds_waited

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.logs.event import Event
    from pdctl.trace.case import DeathProof

AT_ONCE = 2.0  # seconds between a router's loss of one leg and the end of the other it drops for that
# Code → (value of the prefill, value of the decode, the flag both must give).
COMPARED = {
    "PD302": ("prefill_page_size", "decode_page_size", "--page-size"),
    "PD303": ("prefill_dtype", "decode_dtype", "--kv-cache-dtype"),
    "PD304": ("prefill_layout", "decode_layout", "--attention-backend"),
    "PD325": ("prefill_policy", "decode_policy", "--disaggregation-decode-allocation-policy"),
}
KERNEL = "sudo dmesg -T | grep -iE 'out of memory|killed process'"


def reused(case: Case) -> CauseFinding | None:
    """One room, two requests: the second finds the tables of the first."""
    keyed = next((event for event in case.room_events.events if event.proves(Sign.ROOM_USED_UP)), None)
    twice = [name for name, rids in case.room_events.rids.items() if len(rids) > 1]
    spoken = next((event for event in case.room_events.events if event.row.cause == "PD707"), None)
    if keyed is None and spoken is None:
        return None
    proofs: list[Proof] = []
    for name in twice:
        proofs += _had_the_room(case, name, "request")
    if keyed is not None:
        proofs.append(Proof("the scheduler fell over the room's missing entry and crashed", keyed))
    if spoken is not None:
        proofs.append(Proof("its own line says so", spoken))
    culprit = keyed or spoken or proofs[0].event
    fills = {"room": str(case.room_events.room), "instance": culprit.instance}
    why = "two requests shared the room: the second one looked for an entry that the first one had used up"
    return CauseFinding("PD707", "router", why, tuple(proofs), culprit.instance, fills)


def zero(case: Case) -> CauseFinding | None:
    """A decode takes the 0 it finds for "nothing written yet", and waits."""
    first = next((event for event in case.room_events.events if event.role == "decode"), None)
    decode = case.decode
    if case.room_events.room != 0 or first is None or decode is None or case.done is not None:
        return None
    if decode.identity.since is None or not behaviour.ROOM_ZERO_IS_UNWRITTEN.holds(decode.identity.since):
        return None
    why = "a request used room 0, which the decode reads as: nothing was written yet"
    proof = Proof("room 0 in a real transfer", first)
    fix = "draw the room in the router, from 1 to 2^63 - 1"
    return CauseFinding("PD716", "client", why, (proof,), decode.name, {"instance": decode.name}, fix)


def shared(case: Case) -> CauseFinding | None:
    """Two requests had the room at one engine at the same time, and it failed; nothing else explains it."""
    twice = [name for name, rids in case.room_events.rids.items() if len(rids) > 1 and _overlap(case, name)]
    if not twice or not case.failed:
        return None
    proofs: list[Proof] = []
    for name in twice:
        proofs += _had_the_room(case, name, "request")
    name = twice[0]
    fills = {"room": str(case.room_events.room), "instance": name}
    return CauseFinding("PD707", "router", "two requests had this room at once", tuple(proofs), name, fills)


def _overlap(case: Case, name: str) -> bool:
    """One of the requests came while another was there; one without a line of its end is taken to go on."""
    rids = case.room_events.rids[name]
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for event in case.room_events.events:
        rid = event.rid
        if event.instance != name or rid is None or event.t is None:
            continue
        first[rid] = min(first.get(rid, math.inf), event.t - seconds_waited(event))
        if event.proves(Sign.REQUEST_FINISHED) or is_failure(event):
            last[rid] = max(last.get(rid, -math.inf), event.t)
    spans = sorted((first[rid], last.get(rid, math.inf)) for rid in rids if rid in first)
    # Inside one second nobody knows which came first: that counts as at once.
    return len(spans) < 2 or any(after[0] <= before[1] for before, after in pairwise(spans))


def _had_the_room(case: Case, name: str, what: str) -> list[Proof]:
    """The first line of each request that `name` had the room for."""
    rids = frozenset(case.room_events.rids[name])
    first = {rid: event for event in reversed(case.room_events.events) if (rid := event.rid or "") in rids}
    return [Proof(f"{name} had the room for {what} {rid}", event) for rid, event in first.items()]


def sampled(case: Case) -> CauseFinding | None:
    """One request with n > 1: every sample has the room, and an id of its own."""
    for name, rids in case.room_events.rids.items():
        came = [
            event for event in case.room_events.events if event.instance == name and event.proves(Sign.REQUEST_ARRIVED)
        ]
        asked = [event for event in came if phrases.several_samples(event.text)]
        dispatched = [event for event in case.room_events.by("router") if event.row.phase is Phase.DISPATCHED]
        one_request = len(came) == 1 or (not came and len(dispatched) == 1)
        if len(rids) < 2 or not case.failed or not (asked or (one_request and _overlap(case, name))):
            continue
        proofs = [Proof("the request asks for several samples", event) for event in asked[:1]]
        proofs += [Proof(f"one request came to {name}", event) for event in (came or dispatched)[:1] if not asked]
        proofs += _had_the_room(case, name, "sample")
        why = f"one request became {len(rids)} samples at {name}, and each of them has this room"
        return CauseFinding("PD319", "client", why, tuple(proofs), name, {"instance": name, "observed": str(len(rids))})
    return None


def decode_gone(case: Case) -> CauseFinding | None:
    """No decode, so no page list; or no decode any more, so no answer."""
    decode = case.decode
    if case.decode_failed is not None or decode is None or decode.name not in case.deaths:
        return None
    death = case.deaths[decode.name]
    broken = _legs_broken(case)
    # That it died is not enough: something must show that the room was not through by then.
    if not _in_time(case, death) or not (case.prefill_failed or broken or _fell_on(case, death)):
        return None
    missed = [Proof(what_it_shows(event, death), event) for event in death.evidence]
    waiting = [Proof("the prefill waited for it in vain", case.prefill_failed)] if case.prefill_failed else []
    waiting += [Proof("the router's connection to it broke", event) for event in broken[:1]]
    if death.of is not None and death.of.row.cause and not death.of.proves(Sign.ROOM_USED_UP):
        return described(death.of, case, (*missed, *waiting), f"{decode.name} crashed on it")
    why = f"{decode.name} was gone: {_reason_of(death)}"
    fills = {"decode": decode.name, "instance": decode.name, "observed": _reason_of(death)}
    return CauseFinding("PD704", "decode", why, (*missed, *waiting), decode.name, fills, fix_of_death(death))


def prefill_gone(case: Case) -> CauseFinding | None:
    """The prefill the room was sent to does not answer: its KV cache will never come."""
    failed = case.decode_failed
    gone = [death for death in _prefills(case) if _in_time(case, death)]
    if len(gone) != 1 or failed is None:
        return None
    death = gone[0]
    name = death.instance.name
    proofs = [Proof(what_it_shows(event, death), event) for event in death.evidence]
    proofs.append(Proof("so the decode gave the room up", failed))
    if death.of is not None and death.of.row.cause and not death.of.proves(Sign.ROOM_USED_UP):
        return described(death.of, case, tuple(proofs), f"{name} crashed on it")
    why = f"{name} was gone: {_reason_of(death)}"
    fills = {"prefill": name, "instance": name, "observed": _reason_of(death)}
    return CauseFinding("PD705", "prefill", why, tuple(proofs), name, fills, fix_of_death(death))


def first_request(case: Case) -> CauseFinding | None:
    """No line names the room, but the only decode fell over the first request it ever had: any room ended there."""
    decode = case.decode
    if case.room_events.events or decode is None or decode.name not in case.deaths:
        return None
    death = case.deaths[decode.name]
    served = [event for event in case.around if event.instance == decode.name and event.proves(Sign.SERVES)]
    if death.of is None or death.of.proves(Sign.ROOM_USED_UP) or not death.of.row.cause or served:
        return None
    how = f"{decode.name} crashed on the first request it had, before it could name a room"
    return described(death.of, case, tuple(Proof("the crash", event) for event in death.evidence), how)


def _prefills(case: Case) -> Iterable[DeathProof]:
    """Dead prefills this room can have had: contacted, asked, sent to, or behind the address its decode dialled."""
    names = {known.value for known in (case.who.contacted, case.who.requested) if known is not None}
    if case.prefill is not None:
        names.add(case.prefill.name)
    if not names:
        names |= {name for name in case.deaths if _dialled(case, name)}
    if not names:
        names |= _dropped_prefills(case)
    return [case.deaths[name] for name in sorted(names) if name in case.deaths]


def _dropped_prefills(case: Case) -> set[str]:
    """The prefill a router lost when the decode's leg was aborted: it drops the one when the other breaks.

    Nobody there names a room: it is this prefill only if the router lost as many legs as rooms were aborted.
    """
    failed = case.decode_failed
    if failed is None or failed.t is None or failed.row.phase is not Phase.ABORTED:
        return set()
    near = [event for event in case.around if event.t is not None and abs(event.t - failed.t) <= AT_ONCE]
    legs = [event for event in near if event.proves(Sign.PREFILL_LEG_BROKE)]
    aborted = {room for event in near if event.row.phase is Phase.ABORTED and (room := event.values.get("room"))}
    owners = {
        one.name for event in legs if (one := case.deployment.at_url(event.values.get("prefill", ""))) is not None
    }
    return owners & set(case.deaths) if len(owners) == 1 and len(legs) >= len(aborted) else set()


def _dialled(case: Case, name: str) -> bool:
    """The decode's failure names this prefill's bootstrap server."""
    found = case.dialled(case.decode_failed) if case.decode_failed is not None else None
    owner = found and case.deployment.bootstrap_owner(found[0])
    return bool(owner and owner.name == name)


def _in_time(case: Case, death: DeathProof) -> bool:
    """It died before the room ended; a room that was over by then ended of something else."""
    span = case.room_events.span
    if span is None or case.done is not None:
        return False
    ended = max((one.t for one in (case.decode_failed, case.prefill_failed) if one and one.t is not None), default=None)
    if ended is not None and death.at > ended + 1.0:
        return False
    # Whoever had died before the request came, and was back, is no cause of it.
    until = span[1] if ended is None else ended
    return death.at >= span[0] - NEAR or not any(death.at < start <= until for start in death.instance.started)


def _legs_broken(case: Case) -> list[Event]:
    """The lines in which the router lost the decode, when that is how every attempt this room can be ended."""
    own = [event for event in case.room_events.by("router") if is_failure(event)]
    if own and all(phrases.lost_leg(event.text) == "decode" for event in own):
        return own  # it names the room, which was one attempt
    lost = [[event for event in one.lines if event.proves(Sign.DECODE_LEG_BROKE)] for one in case.joined.attempts]
    return [events[0] for events in lost] if lost and all(lost) else []


def _fell_on(case: Case, death: DeathProof) -> bool:
    """The decode crashed in the second of its last line about this room."""
    last = max((event.t for event in case.room_events.by("decode") if event.t is not None), default=None)
    return death.of is not None and last is not None and abs(death.at - last) < 1.0


def _reason_of(death: DeathProof) -> str:
    told = death.of or launchers_line(death) or rehearsed(death)
    return told.text.strip().removeprefix("pdctl: ")[:160] if told is not None else "no line of its log says why"


def _first_traceback(crash: Event) -> str:
    return f"grep -m1 -n -A30 Traceback {crash.place.path}"


def crashed(case: Case) -> CauseFinding | None:
    """A scheduler crash that took the room, with no better name."""
    for name in {event.instance for event in case.room_events.events}:
        death = case.deaths.get(name)
        if death is None or not _in_time(case, death) or death.of is not None or not case.failed:
            continue
        crash = next((event for event in death.evidence if event.row.cause == "PD709"), None)
        if crash is not None:
            fills = {"instance": name, "observed": crash.text.strip()[:120]}
            why = f"a scheduler of {name} crashed while it had the room"
            proof = Proof("the crash", crash)
            return CauseFinding("PD709", death.instance.role, why, (proof,), name, fills, _first_traceback(crash))
    return None


def described(line: Event, case: Case, proofs: tuple[Proof, ...], how: str) -> CauseFinding:
    """The finding a mismatch line stands for."""
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


def mismatch_logged(case: Case) -> CauseFinding | None:
    """A mismatch the decode or prefill wrote down while the room was with it."""
    span = case.room_events.span
    if span is None or case.done is not None or case.who.arrived is not None:
        return None
    names = {event.instance for event in case.room_events.events}
    for line in case.around:
        near = line.t is not None and span[0] - NEAR <= line.t <= span[1] + NEAR
        if near and line.instance in names and is_mismatch(line):
            return described(line, case, (), f"{line.instance} says so")
    return None


def attention_tp(case: Case) -> CauseFinding | None:
    """The transfer never completes, and the two sides cut their heads differently."""
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


def launchers_line(death: DeathProof) -> Event | None:
    """`pdctl: decode-0 generation 1 was killed by SIGKILL …`, or that it was lost with its node."""
    return next((event for event in death.evidence if event.proves(Sign.DIED)), None)


def rehearsed(death: DeathProof) -> Event | None:
    """`REHEARSAL: this instance ends itself …`: it was told to, and its own log says so."""
    return next((event for event in death.evidence if event.proves(Sign.REHEARSED)), None)


def fix_of_death(death: DeathProof) -> str:
    """Fits how it was launched, as far as its log tells: pdctl writes such a line on a host or in a Slurm job."""
    name, line = death.instance.name, launchers_line(death)
    if rehearsed(death) is not None:
        return f"start {name} again: its end was a rehearsal"
    if line is None:
        return f"{KERNEL}   # on the host of {name}; on Kubernetes: kubectl describe pod"
    if not line.values.get("signal"):  # it was lost
        node = phrases.lost_node(line.text)
        return f"scontrol show node {node}" if node else "sinfo -R"
    if line.values.get("signal") == "SIGKILL":
        return f"{KERNEL}   # on the host of {name}: a line there is the OOM killer's"
    return f"tail -n 50 {line.place.path}"


def unknown_of_death(death: DeathProof) -> tuple[MissingEvidence, ...]:
    """What is left to find out. A launcher's line that names a signal, or the node, has told the rest."""
    name, line = death.instance.name, launchers_line(death)
    if rehearsed(death) is not None:
        return ()
    if line is None:
        how = f"`{KERNEL}` on its host, its exit code, on Kubernetes `kubectl describe pod`"
        return (MissingEvidence(f"what ended {name}: its log stops without a word", how),)
    if line.values.get("signal") == "SIGKILL":
        how = f"`{KERNEL}` on its host: the OOM killer writes there, a `kill -9` leaves no line"
        return (MissingEvidence(f"who sent SIGKILL to {name}: no process can log that of itself", how),)
    return ()
