"""The verdict: of all causes that fit, the earliest one; the others are its consequences. None is a verdict too."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.catalogue.book import entry
from pdctl.catalogue.entry import fill
from pdctl.trace.causes import departures, ends, legs, listed, mismatches, ports, refusals, transfer, unresponsive
from pdctl.trace.room import Cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.trace.case import Case, Finding

# In causal order: what stands earlier brings about what stands later. The first that fits is the cause.
ORDER: tuple[Callable[[Case], Finding | None], ...] = (
    refusals.turned_away,
    ends.sampled,
    ends.reused,
    ends.zero,
    ports.crossed,
    ports.unreachable,
    mismatches.spoken,
    transfer.spoken,
    ends.decode_gone,
    ends.prefill_gone,
    unresponsive.hung,
    listed.misdirected,
    listed.null_ports,
    ends.crashed,
    mismatches.attention_tp,
    legs.full,
    legs.missing,
    ends.shared,
    departures.client_left,
    transfer.slow,
    transfer.never_completed,
    legs.unannounced,
    ends.first_request,
    refusals.refused,
)


class Verdict(NamedTuple):
    cause: Cause | None
    finding: Finding | None
    consequences: tuple[str, ...]
    fix: str


def judge(case: Case) -> Verdict:
    if case.warm_up:
        return Verdict(None, None, (), "")
    found = [finding for check in ORDER if (finding := check(case)) is not None]
    if not found:
        return Verdict(None, None, (), "")
    first, *rest = found
    seen = {first.code}
    consequences = []
    for finding in rest:
        if finding.code not in seen:
            seen.add(finding.code)
            consequences.append(f"{finding.code} {entry(finding.code).slug}: {finding.why}")
    known = entry(first.code)
    cause = Cause(
        first.code, known.slug, fill(known.headline, first.fills), first.why, first.side, first.instance
    )  # fmt: skip
    return Verdict(cause, first, tuple(consequences), first.fix or fill(known.fix, first.fills))
