"""docs/elastic.md shows the tables as they are. `PDCTL_UPDATE=1 pytest tests/replica/test_page.py` writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pdctl.replica.states import STATES, LoadMark
from pdctl.replica.transitions import COMMANDS, TRANSITIONS, LockEffect, ReplicaEvent, Trigger

PAGE = Path(__file__).resolve().parents[2] / "docs" / "elastic.md"
HOW = "write it anew: PDCTL_UPDATE=1 pytest tests/replica/test_page.py"


def test_the_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    said = page
    for name, text in (
        ("states", states()),
        ("diagram", diagram()),
        ("transitions", transitions()),
        ("commands", commands()),
    ):
        between = rf"(<!-- {name}: printed from the table -->\n).*?(<!-- {name}: end -->)"
        said, count = re.subn(between, lambda found, text=text: found[1] + text + found[2], said, flags=re.DOTALL)
        assert count == 1, f"the page has no place for {name}"
    if os.environ.get("PDCTL_UPDATE"):
        PAGE.write_text(said, encoding="utf-8")
        page = said
    assert page == said, HOW


def test_the_page_names_the_marks() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"**{mark.value}**" in page for mark in LoadMark)


def states() -> str:
    head = ("state", "counts as", "weights", "ingress lock", "takes requests", "takes KV", "computes", "what it is")
    rows = [
        (
            f"`{state.value}`",
            facts.counts_as.value,
            facts.weights.value,
            facts.ingress_lock.value,
            *("yes" if true else "" for true in (facts.takes_requests, facts.takes_kv, facts.computes)),
            facts.meaning,
        )
        for state, facts in STATES.items()
    ]
    return table(head, rows)


def diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> inactive"]
    lines += [
        f"    {row.source.value} --> {row.target.value}: {row.event.value}"
        for row in TRANSITIONS
        if row.event is not ReplicaEvent.DIED
    ]
    return "\n".join([*lines, "```", ""])


def transitions() -> str:
    head = ("from", "event", "to", "by", "must hold", "lock", "known from", "what differs")
    rows = [
        (
            f"`{row.source.value}`",
            row.event.value,
            f"`{row.target.value}`",
            row.event.trigger.value,
            row.guard.sentence,
            "" if row.lock is LockEffect.KEEP else row.lock.value,
            row.known_from,
            row.differs,
        )
        for row in TRANSITIONS
        if row.event is not ReplicaEvent.DIED
    ]
    return table(head, rows)


def commands() -> str:
    head = ("command", "what it means", "legal from", "in BlitzScale's route")
    rows = [
        (
            event.value,
            event.meaning,
            ", ".join(f"`{row.source.value}`" for row in TRANSITIONS if row.event is event),
            name,
        )
        for event, name in COMMANDS.items()
    ]
    others = ("event", "what has happened", "by")
    automatic = [
        (event.value, event.meaning, event.trigger.value)
        for event in ReplicaEvent
        if event.trigger is not Trigger.PLANNER
    ]
    return table(head, rows) + "\n" + table(others, automatic)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n" for cells in lines)
