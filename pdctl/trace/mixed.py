"""Logs that hold lines of several processes without names: what may still be said of a room in them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.trace.room import Missing, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.engines.identify import Identity
    from pdctl.logs.library import Library
    from pdctl.logs.source import Log
    from pdctl.trace.room import Room

APART = (
    "give each process's log by itself, or let the collector name the source: kubectl logs --prefix, stern, docker "
    "compose logs (without --no-log-prefix), journalctl -o json"
)


def mixed(log: Log, identity: Identity) -> bool:
    """Lines of several roles stand in the log, or of several processes, and it could not be taken apart."""
    several = not identity.role and any(reason.startswith("several roles") for reason in identity.reasons)
    return log.mixed or several


def names(library: Library) -> frozenset[str]:
    return frozenset(log.instance for log in library.logs if mixed(log, library.identity(log)))


def refused(room: Room, among: Iterable[str]) -> Room:
    """The room without anything that rests on who wrote a line: only that a line calls it failed stays."""
    names = ", ".join(sorted({step.instance for step in room.events} & set(among)))
    what = f"which process wrote which line: {names} holds lines of several processes, and none names its own"
    return replace(
        room, outcome=Outcome.FAILED if room.outcome is Outcome.FAILED else Outcome.UNKNOWN, prefill_requested=None,
        prefill_contacted=None, decode=None, cause=None, wrong_prefill=None, consequences=(), fix="", gap=None,
        evidence=(), known={}, missing_evidence=(Missing(what, APART),),
        notes=(f"no verdict: {what}",),
    )  # fmt: skip
