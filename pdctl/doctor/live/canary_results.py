"""What the canary requests showed: PD319, PD505 and PD610 to PD613."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs
from pdctl.doctor import server_info
from pdctl.doctor.check import Check, Skipped, Unknown, finding, names, shorten_lines
from pdctl.fleet import peer_json
from pdctl.fleet.observations import BURST, N2, OVER_LENGTH, PAIR

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.doctor.check import Facts, Finding
    from pdctl.fleet.observations import Canary, ObservedEngine

PROMPT = 5.0  # seconds within which a bad request must be refused
LOADS = ("num_running_reqs", "num_waiting_reqs")


def pairs(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD610: pairs that failed, grouped by the instance they share."""
    cells = _of(facts, PAIR)
    failed = [cell for cell in cells if cell.ok is False]
    groups = _grouped(failed, cells)
    found = [_failed(name, some) for name, some in groups.items()]
    works = {(cell.prefill, cell.decode) for cell in cells if cell.ok}
    crowd = [one for one in _of(facts, BURST) if one.ok is False and (one.prefill, one.decode) in works]
    if crowd:
        found.append(_crowd(crowd))
    if found:
        return found
    unsent = [f"{cell.prefill} → {cell.decode}" for cell in cells if cell.ok is None]
    if unsent:
        return Unknown(f"{names(unsent)}: not tried")
    return [] if cells else Unknown("no pair was there to send a request through")


def _grouped(failed: Sequence[Canary], cells: Sequence[Canary]) -> dict[str, list[Canary]]:
    """Failed pairs by instance: a decode that fails with every prefill gets its column, the rest go by prefill."""
    columns = Counter(cell.decode for cell in cells)
    bad = Counter(cell.decode for cell in failed)
    lost = {decode for decode, count in bad.items() if count == columns[decode] and count > 1}
    rows = Counter(cell.prefill for cell in cells)
    bad_rows = Counter(cell.prefill for cell in failed)
    if len(lost) == len(columns) > 1 and any(bad_rows[prefill] == rows[prefill] for prefill in rows):
        lost = set()  # everything fails: no single decode is to blame
    groups: dict[str, list[Canary]] = {}
    for cell in failed:
        groups.setdefault(cell.decode if cell.decode in lost else cell.prefill, []).append(cell)
    return groups


def _failed(instance: str, cells: Sequence[Canary]) -> Finding:
    first = cells[0]
    prefills, decodes = (_unique(values) for values in zip(*((one.prefill, one.decode) for one in cells), strict=True))
    return finding(
        "PD610",
        instance,
        observed=first.reason or "no answer",
        expected="an answer through every pair",
        evidence=shorten_lines([_line(cell) for cell in cells]),
        prefill=names(prefills),
        decode=names(decodes),
        room=first.room,
    )


def _crowd(failed: Sequence[Canary]) -> Finding:
    first = failed[0]
    found = finding(
        "PD610",
        first.prefill,
        observed=f"{len(failed)} of several requests at once failed: {first.reason}",
        expected="all of them, as one alone did",
        evidence=shorten_lines([_line(one) for one in failed]),
        prefill=first.prefill,
        decode=first.decode,
        room=first.room,
    )
    return replace(found, headline=f"{first.prefill} → {first.decode} serves one request, but not several at once")


def _line(cell: Canary) -> str:
    room = f", room {cell.room}" if cell.room else ""
    return f"{cell.prefill} → {cell.decode}: {cell.reason or 'no answer'} ({cell.seconds:.1f} s{room})"


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def answers(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD611: a greedy prompt must give one text. The most frequent text is taken as right; a tie blames nobody."""
    cells = [cell for cell in (*_of(facts, PAIR), *_of(facts, BURST)) if cell.ok and cell.text]
    if len(cells) < 2:
        return Unknown("fewer than two answers came back: nothing to compare")
    counted = Counter(cell.text for cell in cells).most_common()
    if len(counted) == 1:
        return []
    tie = counted[0][1] == counted[1][1]
    odd = [cell for cell in cells if cell.text != counted[0][0]]
    first = odd[0]
    shared = len({cell.prefill for cell in odd}) == 1, len({cell.decode for cell in odd}) == 1
    instance = "" if tie else first.prefill if shared[0] else first.decode if shared[1] else ""
    found = finding(
        "PD611",
        instance,
        observed=f"{first.text!r:.80}",
        expected=f"{counted[0][0]!r:.80}",
        evidence=shorten_lines(
            [f"{cell.prefill} → {cell.decode}: {cell.text!r:.60} (room {cell.room})" for cell in cells], 8
        ),
        prefill=names(_unique(cell.prefill for cell in odd)),
        decode=names(_unique(cell.decode for cell in odd)),
    )
    return [found]


def slow_errors(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD612: a prompt that is too long was refused late."""
    sent = _decided(facts, OVER_LENGTH)
    if not isinstance(sent, list):
        return sent
    return [
        finding(
            "PD612",
            one.decode if not one.decode_status else one.prefill,
            observed=f"{one.seconds:.1f} s",
            expected=f"{PROMPT:g} s",
            evidence=(_line(one), f"statuses: {one.prefill} {one.prefill_status}, {one.decode} {one.decode_status}"),
        )
        for one in sent
        if one.seconds > PROMPT and not _took(one)
    ]


def too_long(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD505: a prompt above the limit was accepted."""
    sent = _decided(facts, OVER_LENGTH)
    if not isinstance(sent, list):
        return sent
    limits = {engine.endpoint.name: server_info.longest(engine) for engine in facts.engines}
    return [
        replace(
            finding(
                "PD505",
                _taker(one),
                observed="a longer prompt was answered",
                expected=f"{limits.get(_taker(one)) or 'not known'} tokens",
                evidence=(
                    _line(one),
                    f"statuses: {one.prefill} {one.prefill_status}, {one.decode} {one.decode_status}",
                ),
            ),
            headline=f"{_taker(one)} took a prompt above its limit of {limits.get(_taker(one)) or 'unknown'} tokens",
        )
        for one in sent
        if _took(one)
    ]


def _taker(one: Canary) -> str:
    return one.prefill if one.prefill_status == 200 else one.decode


def _took(one: Canary) -> bool:
    return 200 in (one.prefill_status, one.decode_status)


def samples(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD319: a request for two samples did not return both."""
    sent = _decided(facts, N2)
    if not isinstance(sent, list):
        return sent
    return [
        finding(
            "PD319",
            observed=one.reason or "no answer",
            expected="two answers",
            evidence=(_line(one),),
        )
        for one in sent
        if one.ok is False
    ]


def held_requests(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD613: what an idle engine still holds afterwards.

    An engine that was serving other requests before cannot be judged, nor one that reports only a gauge in /metrics,
    which may be half a minute old.
    """
    if not facts.queues:
        return Unknown("the queues were not read")
    engines = {engine.endpoint.name: engine for engine in facts.engines}
    held = [one.instance for one in facts.queues if one.left and not one.late]
    busy = [name for name in held if not _idle(engines.get(name))]
    late = [one.instance for one in facts.queues if one.late]
    found = [
        finding(
            "PD613",
            one.instance,
            observed=", ".join(f"{gauge} {value:g}" for gauge, value in one.left.items()),
            expected="no request after the last canary",
            evidence=("it held nothing before the canaries",),
        )
        for one in facts.queues
        if one.read and one.left and not one.late and one.instance not in busy
    ]
    unread = [one.instance for one in facts.queues if not one.read]
    if found or not (busy or unread or late):
        return found
    if busy:
        return Unknown(f"{names(busy)}: whether it was idle before the canaries is not known")
    if unread:
        return Unknown(f"{names(unread)}: neither /v1/loads nor /get_load nor /metrics says what it holds")
    return Unknown(f"{names(late)}: only /metrics says what it holds, and its gauges may be half a minute old")


def _idle(engine: ObservedEngine | None) -> bool:
    """Whether it was seen to have no requests before the canaries."""
    loads = engine.loads if engine is not None else ()
    return bool(loads) and not any((peer_json.number(load.get(key)) or 0) > 0 for load in loads for key in LOADS)


def _of(facts: Facts, kind: str) -> list[Canary]:
    return [one for one in facts.canaries if one.kind == kind]


def _decided(facts: Facts, kind: str) -> list[Canary] | Skipped | Unknown:
    """The canaries of one kind that were sent, else why there are none."""
    sent = _of(facts, kind)
    if not sent:
        return Skipped("only the pairs were tried" if _of(facts, PAIR) else "no pair was there to try it on")
    decided = [one for one in sent if one.ok is not None]
    return decided or Unknown(sent[0].reason or "not sent")


REAL = (Needs.CANARY,)
CHECKS = (
    Check("PD319", REAL, samples),
    Check("PD505", (Needs.ENDPOINT, Needs.CANARY), too_long),
    Check("PD610", REAL, pairs),
    Check("PD611", REAL, answers),
    Check("PD612", REAL, slow_errors),
    Check("PD613", (Needs.ENDPOINT, Needs.CANARY), held_requests),
)
