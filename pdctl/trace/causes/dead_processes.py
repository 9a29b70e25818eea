"""An engine or the router died: its launcher or a crash line says so, or others could not reach it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pdctl.engines import message_details
from pdctl.engines.base import Phase, Sign
from pdctl.shell_quoting import pasteable
from pdctl.trace.case import NEAR, Case, CauseFinding, Proof, death_of, is_crash, what_it_shows
from pdctl.trace.causes.pairing import described
from pdctl.trace.room import MissingEvidence
from pdctl.trace.room_events import is_failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.case import DeathProof

AT_ONCE = 2.0  # seconds between a router losing one leg and the end of the other leg, which it then drops
UNKNOWN_WHEN = "before the room was over"  # no line shows that the decode had it
KERNEL = "sudo dmesg -T | grep -iE 'out of memory|killed process'"


def router_gone(case: Case) -> CauseFinding | None:
    """The router died while it had the room; the engines then dropped it, as for a client that left."""
    death = _router_death(case)
    if death is None or case.done is not None:
        return None
    name = death.instance.name
    ends = [event for event in case.room_events.events if is_failure(event) and event.t is not None]
    dispatched = any(event.instance == name for event in case.room_events.by("router"))
    for event in ends:
        assert event.t is not None
        late = event.t > death.at + message_details.CLIENT_POLL + NEAR or event.row.phase is not Phase.ABORTED
        # If the router names no room, only rooms dropped as it died are known to have been its own.
        if event.t < death.at - NEAR or (late and not dispatched):
            return None
    if not (ends or dispatched):
        return None
    proofs = [Proof(what_it_shows(event, death), event) for event in death.evidence]
    proofs += [Proof("so its request was dropped", event) for event in ends[:1]]
    why = f"{name} was gone: {_reason_of(death)}"
    fills = {"router": name, "instance": name, "observed": _reason_of(death)}
    return CauseFinding("PD720", "router", why, tuple(proofs), name, fills, fix_of_death(death))


def _router_death(case: Case) -> DeathProof | None:
    """The first death since the room began of the router that had it and did not log its end.

    Also None if an engine of the room died before: then the router's death is not the cause.
    """
    span, own = case.room_events.span, case.room_events.by("router")
    if span is None or any(event.row.phase is not None and event.row.phase.ends for event in own):
        return None
    names = {event.instance for event in own} or {attempt.router for attempt in case.joined.attempts}
    names = names or {one.name for one in case.deployment.instances.values() if one.role == "router"}
    if len(names) != 1 or any(attempt.status is not None for attempt in case.joined.attempts):
        return None
    router = case.deployment.instances[names.pop()]
    death = death_of(router, case.deployment, case.around, since=span[0])
    if death is None or any(one.since < death.at - NEAR and _in_time(case, one) for one in case.deaths.values()):
        return None
    return death


def decode_gone(case: Case) -> CauseFinding | None:
    """The decode died, before it sent the page list or before it had answered."""
    decode = case.decode
    if case.decode_failed is not None or decode is None or decode.name not in case.deaths:
        return None
    death = case.deaths[decode.name]
    broken = _legs_broken(case)
    # Its death is not enough: something must show that the room was not finished by then.
    if not _in_time(case, death) or not (case.prefill_failed or broken or _fell_on(case, death)):
        return None
    missed = [Proof(what_it_shows(event, death), event) for event in death.evidence]
    waiting = [Proof("the prefill waited for it in vain", case.prefill_failed)] if case.prefill_failed else []
    waiting += [Proof("the router's connection to it broke", event) for event in broken[:1]]
    if death.of is not None and death.of.row.cause and not death.of.proves(Sign.ROOM_USED_UP):
        return described(death.of, case, (*missed, *waiting), f"{decode.name} crashed on it")
    why = f"{decode.name} was gone: {_reason_of(death)}"
    fills = {"decode": decode.name, "instance": decode.name, "observed": _reason_of(death)}
    if broken and all(message_details.unreached_leg(event.text) for event in broken):
        fills["when"] = "before it got the room"
    elif not _had_room(case, broken):
        fills["when"] = UNKNOWN_WHEN
    return CauseFinding("PD704", "decode", why, (*missed, *waiting), decode.name, fills, fix_of_death(death))


def _had_room(case: Case, broken: Sequence[Event]) -> bool:
    """Whether any line shows that the decode got the room; a request that could not be sent may not have reached it."""
    if case.who.contacted is not None or case.room_events.by("decode"):
        return True
    return any("error sending request" not in event.text for event in broken)


def prefill_gone(case: Case) -> CauseFinding | None:
    """The prefill to which the room was sent died: its KV cache will never come."""
    failed = case.decode_failed
    gone = [death for death in _prefills(case) if _in_time(case, death)]
    if len(gone) != 1 or failed is None:
        return None
    death = gone[0]
    name = death.instance.name
    proofs = [Proof(what_it_shows(event, death), event) for event in death.evidence]
    refused = [
        event for event in case.room_events.by("router") if message_details.unreached_leg(event.text) == "prefill"
    ]
    proofs += [Proof("so the router could not connect to it", event) for event in refused[:1]]
    proofs.append(Proof("so the decode gave the room up", failed))
    if death.of is not None and death.of.row.cause and not death.of.proves(Sign.ROOM_USED_UP):
        return described(death.of, case, tuple(proofs), f"{name} crashed on it")
    why = f"{name} was gone: {_reason_of(death)}"
    fills = {"prefill": name, "instance": name, "observed": _reason_of(death)}
    return CauseFinding("PD705", "prefill", why, tuple(proofs), name, fills, fix_of_death(death))


def first_request(case: Case) -> CauseFinding | None:
    """No line names the room, but the only decode crashed on the first request it ever had, which ends any room."""
    decode = case.decode
    if case.room_events.events or decode is None or decode.name not in case.deaths:
        return None
    death = case.deaths[decode.name]
    served = [event for event in case.around if event.instance == decode.name and event.proves(Sign.SERVES)]
    if death.of is None or death.of.proves(Sign.ROOM_USED_UP) or not death.of.row.cause or served:
        return None
    how = f"{decode.name} crashed on the first request it had, before it could name a room"
    return described(death.of, case, tuple(Proof("the crash", event) for event in death.evidence), how)


def crashed(case: Case) -> CauseFinding | None:
    """A scheduler that had the room crashed, with no more specific reason."""
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


def _prefills(case: Case) -> Iterable[DeathProof]:
    """Dead prefills this room can have had: contacted, requested, sent to, or at the address its decode dialled."""
    names = {known.value for known in (case.who.contacted, case.who.requested) if known is not None}
    if case.prefill is not None:
        names.add(case.prefill.name)
    if not names:
        names |= {name for name in case.deaths if _dialled(case, name)}
    if not names:
        names |= _dropped_prefills(case)
    return [case.deaths[name] for name in sorted(names) if name in case.deaths]


def _dropped_prefills(case: Case) -> set[str]:
    """The prefill a router lost when the decode's leg was aborted: it drops one leg when the other breaks.

    None of those lines names a room, so it is this prefill only if the router lost as many legs as rooms were aborted.
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
    """Whether the decode's failure names this prefill's bootstrap server."""
    found = case.dialled(case.decode_failed) if case.decode_failed is not None else None
    owner = found and case.deployment.bootstrap_owner(found[0])
    return bool(owner and owner.name == name)


def _in_time(case: Case, death: DeathProof) -> bool:
    """Whether it died before the room ended; a room that was over by then ended for another reason."""
    span = case.room_events.span
    if span is None or case.done is not None:
        return False
    ended = max((one.t for one in (case.decode_failed, case.prefill_failed) if one and one.t is not None), default=None)
    if ended is not None and death.since > ended + 1.0:
        return False
    # A process that died before the request came, and was up again, is not the cause.
    until = span[1] if ended is None else ended
    return death.since >= span[0] - NEAR or not any(death.at < start <= until for start in death.instance.started)


def _legs_broken(case: Case) -> list[Event]:
    """The lines in which the router lost the decode, if every attempt that can be this room ended that way."""
    own = [event for event in case.room_events.by("router") if is_failure(event)]
    if own and all(message_details.lost_leg(event.text) == "decode" for event in own):
        return own  # it names the room, which was one attempt
    lost = [[event for event in one.lines if event.proves(Sign.DECODE_LEG_BROKE)] for one in case.joined.attempts]
    return [events[0] for events in lost] if lost and all(lost) else []


def _fell_on(case: Case, death: DeathProof) -> bool:
    """Whether the decode crashed within a second of its last line about this room."""
    last = max((event.t for event in case.room_events.by("decode") if event.t is not None), default=None)
    return death.of is not None and last is not None and abs(death.at - last) < 1.0


def _reason_of(death: DeathProof) -> str:
    told = death.of or launchers_line(death) or rehearsed(death)
    return told.text.strip().removeprefix("pdctl: ")[:160] if told is not None else "no line of its log says why"


def _first_traceback(crash: Event) -> str:
    """The command that shows the crash, whose line need not be a traceback: a library that aborts writes none."""
    return f"grep -nE -m1 -A100 'Traceback|killed by SIG' {pasteable(crash.place.on_disk)}"


def launchers_line(death: DeathProof) -> Event | None:
    """The line `pdctl: decode-0 generation 1 was killed by SIGKILL …`, or the one that it was lost with its node."""
    return next((event for event in death.evidence if event.proves(Sign.DIED)), None)


def rehearsed(death: DeathProof) -> Event | None:
    """The line `REHEARSAL: this instance ends itself …`: it was told to end, and its own log says so."""
    return next((event for event in death.evidence if event.proves(Sign.REHEARSED)), None)


def fix_of_death(death: DeathProof) -> str:
    """What mends the reason its log gives for a crash; else a command that suits how it was launched, by its log.

    pdctl writes an end line on a host or in a Slurm job.
    """
    name, line = death.instance.name, launchers_line(death)
    if death.of is not None and death.of.proves(Sign.ROOM_USED_UP):
        from pdctl.catalogue.book import entry  # imported late: most rooms go well

        return entry("PD707").fix
    crash = next(filter(is_crash, death.evidence), None)
    if crash is not None:
        return _first_traceback(crash)
    if rehearsed(death) is not None:
        return f"start {pasteable(name)} again: its end was a rehearsal"
    if line is None:
        return f"{KERNEL}   # on the host of {pasteable(name)}; on Kubernetes: kubectl describe pod"
    if line.values.get("reason"):  # it was lost
        node = message_details.lost_node(line.text)
        return f"scontrol show node {pasteable(node)}" if node else "sinfo -R"
    if line.values.get("signal") == "SIGKILL":
        return f"{KERNEL}   # on the host of {pasteable(name)}: a line there is the OOM killer's"
    return f"tail -n 50 {shlex.quote(line.place.on_disk)}"


def unknown_of_death(death: DeathProof) -> tuple[MissingEvidence, ...]:
    """What is left to find out: nothing if its launcher's line names a signal other than SIGKILL, or the node."""
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
