"""Do the running prefills and decodes agree on what they must? PD302 to PD312, PD315, PD316 and PD414, from the rows of
diff.py; PD313 and PD314, which concern one side."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pdctl.catalogue.entry import Needs, Severity
from pdctl.doctor import diff, reading
from pdctl.doctor.check import Check, Skipped, Unknown, finding
from pdctl.doctor.words import few, names
from pdctl.engines.sglang import behaviour
from pdctl.engines.sglang.agreement import common_page_size

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from pdctl.doctor.diff import Row
    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Finding
    from pdctl.fleet.facts import Engine

Groups = dict["Hashable", "list[Engine]"]


class Clash(NamedTuple):
    """Engines of one side with a value the other side's engines cannot take."""

    prefills: list[Engine]
    decodes: list[Engine]
    prefill: Hashable
    decode: Hashable


def compare(row: Row, facts: Facts) -> list[Finding] | Skipped | Unknown:
    """One row over every pair. Engines with one value are one group, so 256 × 2 pairs cost as much as 1 × 1."""
    sides = [_groups(row, facts, role) for role in ("prefill", "decode")]
    if not all(sides):
        return Skipped("a prefill and a decode are needed to compare")
    clashes: list[Clash] = []
    unsure: list[Clash] = []
    for one, prefills in sides[0].items():
        for other, decodes in sides[1].items():
            verdict = row.clashes(one, other)
            if verdict is not False:
                (unsure if verdict is None else clashes).append(Clash(prefills, decodes, one, other))
    if clashes:
        return [_found(row, clash, sides) for clash in clashes]
    return _unsure(row, unsure[0]) if unsure else []


def _groups(row: Row, facts: Facts, role: str) -> Groups:
    groups: Groups = {}
    for engine in facts.engines:
        if engine.endpoint.role == role:
            groups.setdefault(row.value(engine), []).append(engine)
    return groups


def _unsure(row: Row, clash: Clash) -> Unknown:
    for engines, value in ((clash.prefills, clash.prefill), (clash.decodes, clash.decode)):
        if value is reading.HERE:
            unread = [engine.endpoint.name for engine in engines]
            why = engines[0].reason or f"its /server_info has no {row.key}"
            return Unknown(f"{names(unread)}: {why}")
    prefill, decode = (_names(side) for side in (clash.prefills, clash.decodes))
    return Unknown(
        f"{row.key} is {diff.show(clash.prefill)} on {prefill} and {diff.show(clash.decode)} on {decode}: whether that "
        "comes to the same cannot be read"
    )


def _found(row: Row, clash: Clash, sides: Sequence[Groups]) -> Finding:
    decode_odd = _decode_odd(row, clash, sides)
    odd, other = (clash.decodes, clash.prefills) if decode_odd else (clash.prefills, clash.decodes)
    value, against = (clash.decode, clash.prefill) if decode_odd else (clash.prefill, clash.decode)
    evidence = [f"{one.endpoint.url}/server_info: {row.key} {diff.show(row.value(one))}" for one in (*odd, *other)]
    found = finding(
        row.code,
        _names(odd),
        observed=diff.show(value),
        expected=diff.show(against),
        evidence=(*few(evidence), row.why),
        other=_names(other),
        model=reading.architecture(odd[0]) or "its model",
        size=_size(sides),
        fix="make one a multiple of the other: equal --tp-size and DP width on both roles",
    )
    return replace(found, instance=odd[0].endpoint.name if len(odd) == 1 else "")


def _size(sides: Sequence[Groups]) -> int:
    return common_page_size(*(value for side in sides for value in side if isinstance(value, int)))


def _decode_odd(row: Row, clash: Clash, sides: Sequence[Groups]) -> bool:
    """Whoever fits with somebody else is not the odd one; where that tells nothing, the smaller group is, or decode."""
    decode_fits = any(row.clashes(other, clash.decode) is False for other in sides[0])
    prefill_fits = any(row.clashes(clash.prefill, other) is False for other in sides[1])
    if decode_fits is not prefill_fits:
        return prefill_fits
    return len(clash.decodes) <= len(clash.prefills)


def _names(engines: Sequence[Engine]) -> str:
    return names([engine.endpoint.name for engine in engines])


def versions(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD310: an error where the two releases are known not to understand each other, else a warning."""
    (row,) = diff.rows(("PD310",))
    verdict = compare(row, facts)
    if not isinstance(verdict, list):
        return verdict
    return [_graded(found, facts) for found in verdict]


def _graded(found: Finding, facts: Facts) -> Finding:
    prefills, decodes = ([one for one in facts.engines if one.endpoint.role == role] for role in ("prefill", "decode"))
    said = (found.observed, found.expected)
    for prefill in prefills:
        for decode in decodes:
            if {prefill.version, decode.version} != set(said):
                continue
            one, other = reading.release(prefill), reading.release(decode)
            broken = behaviour.breaks(one, other, reading.backend(decode)) if one and other else None
            if broken is not None:
                return replace(found, evidence=(*found.evidence, f"{broken}"))
    note = "no break between these two is known; a release between the ones pdctl knows may have one"
    return replace(found, severity=Severity.WARNING, evidence=(*found.evidence, note))


def page_sizes(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD302, and what the release makes of it."""
    (row,) = diff.rows(("PD302",))
    verdict = compare(row, facts)
    if not isinstance(verdict, list):
        return verdict
    releases = [known for engine in facts.engines if (known := reading.release(engine)) is not None]
    silent = not all(behaviour.PAGE_SIZES_COMPARED.holds(known) for known in releases)
    note = "this release does not compare them: the cache is corrupted in silence" if silent else ""
    return [replace(one, evidence=(*one.evidence, note)) if note else one for one in verdict]


def dp_contract(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD313: a prefill with several DP ranks whose requests decode would look for on another rank."""
    prefills = [engine for engine in facts.engines if engine.endpoint.role == "prefill"]
    found = [one for engine in prefills for one in _dp(engine)]
    unread = [engine.endpoint.name for engine in prefills if reading.dp_ranks(engine) is None]
    if found or not unread:
        return found or ([] if prefills else Skipped("no prefill was given"))
    return Unknown(f"{names(unread)}: dp_size could not be read")


def _dp(engine: Engine) -> list[Finding]:
    ranks, copies, known = reading.dp_ranks(engine), reading.replicas(engine), reading.release(engine)
    method = engine.text("load_balance_method")
    if ranks is None or ranks < 2 or known is None:
        return []
    follows = method in (None, "auto", "follow_bootstrap_room")
    if behaviour.RANK_OF_ROOM_CHECKED.holds(known) and copies is not None and copies > 1 and follows:
        what = f"dp_size {copies} without DP attention, and this release checks the attention rank of the room"
        fix = "use DP attention on prefill, or export SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 on both roles"
    elif behaviour.ONLY_ROUND_ROBIN_FOLLOWS_ROOM.holds(known) and method != "round_robin":
        what = f"load_balance_method {method}: before 0.5.8 only round_robin follows the room"
        fix = "start prefill with --load-balance-method round_robin and decode with --prefill-round-robin-balance"
    else:
        return []
    evidence = (f"{engine.endpoint.url}/server_info: version {engine.version}, {ranks} DP ranks, {what}",)
    name = engine.endpoint.name
    return [finding("PD313", name, observed=what, expected="one rank for both", evidence=evidence, fix=fix)]


def chunks(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD314: a chunk that does not end on a page border. /server_info has it divided by the DP width already."""
    prefills = [engine for engine in facts.engines if engine.endpoint.role == "prefill"]
    found: list[Finding] = []
    for engine in prefills:
        chunk, page = engine.number("chunked_prefill_size"), engine.number("page_size")
        if chunk is None or page is None or chunk < 1 or page < 1 or chunk % page == 0:
            continue
        evidence = (f"{engine.endpoint.url}/server_info: chunked_prefill_size {chunk}, page_size {page}",)
        whole = (max(page, chunk - chunk % page)) * (reading.width(engine) or 1)
        name = engine.endpoint.name
        found.append(finding("PD314", name, observed=str(chunk), expected=str(page), evidence=evidence, fix=whole))
    unread = [engine.endpoint.name for engine in prefills if engine.number("page_size") is None]
    if found or not unread:
        return found or ([] if prefills else Skipped("no prefill was given"))
    return Unknown(f"{names(unread)}: page_size could not be read")


OWN = ("PD301", "PD302", "PD310")  # judged by more than their row
LIVE = (Needs.ENDPOINT,)
CHECKS = (
    Check("PD302", LIVE, page_sizes),
    Check("PD310", LIVE, versions),
    Check("PD313", LIVE, dp_contract),
    Check("PD314", LIVE, chunks),
    *(Check(row.code, LIVE, partial(compare, row)) for row in diff.ROWS if row.code and row.code not in OWN),
)
