"""What must hold after every step, and what must have happened at the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from pdctl.engine.ipc.messages import Tokens
from tests.engine.invariants.instance import DisagreementError, Instance, SimRank
from tests.engine.invariants.model import reference


class InvariantError(AssertionError):
    """Something happened that must never happen."""


@dataclass(eq=False)
class Asked:
    """One request on one instance. `ends`: how often it was told that it has ended."""

    rid: str
    room: int
    prompt: tuple[int, ...]
    most: int
    where: Instance
    output: list[int] = field(default_factory=list)
    ends: int = 0
    why: str = ""
    reason: str = ""


def check_rank(rank: SimRank) -> None:
    """The books of one rank: every page is free, cached, or held by exactly one row; every row by one request."""
    resources = rank.resources
    allocator, table, prefix = resources.allocator, resources.table, resources.prefix
    allocator.check()
    table.check()
    resources.metadata.check()
    rows = np.flatnonzero(table._taken)
    owned = [int(page) for row in rows for page in table.pages(int(row))[~table._lent[row, : table._used[row]]]]
    twice = [page for page, count in Counter(owned).items() if count > 1]
    if twice:
        raise InvariantError(f"pages {twice} are held by two requests")
    if not allocator._used[owned].all():
        raise InvariantError(f"pages {[page for page in owned if not allocator._used[page]]} are held and free")
    cached = prefix.pages if prefix else 0
    if allocator.used_pages != len(owned) + cached:
        raise InvariantError(f"{allocator.used_pages} pages are out: requests hold {len(owned)}, the cache {cached}")
    if prefix:
        prefix.check(idle=False)


def check_agreement(instance: Instance) -> None:
    """Ranks of a group tell the same tokens and the same ends, and have the same requests in the same queues."""
    if instance.crippled or len(instance.ranks) == 1:
        return
    stories = [[told(item) for item in rank.outbox.story] for rank in instance.ranks]
    queues = [[(queue, req.rid) for queue, req in rank.role.members()] for rank in instance.ranks]
    for what in (stories, queues):
        if any(other != what[0] for other in what[1:]):
            raise DisagreementError(f"ranks differ: {what}")


def told(item: Tokens) -> tuple[str, tuple[int, ...], str]:
    return item.rid, tuple(item.ids), item.finish.type if item.finish else ""


def take(asked: dict[str, Asked], items: list[Tokens]) -> None:
    """Give each request what its instance's leader said, and judge it."""
    for item in items:
        if item.drained is not None:
            continue
        one = asked[item.rid]
        if one.ends:
            raise InvariantError(f"rid {one.rid} (room {one.room}) is told {told(item)} after its end")
        one.output.extend(item.ids)
        expected = reference(one.prompt, one.most)[: len(one.output)]
        if one.output != expected:
            raise InvariantError(f"rid {one.rid} (room {one.room}) answers {one.output}, not {expected}")
        if item.finish is not None:
            one.ends += 1
            one.why, one.reason = item.finish.type, item.finish.message
            if item.finish.type == "abort" and not item.finish.message:
                raise InvariantError(f"rid {one.rid} (room {one.room}) ended without a reason")
            if item.finish.type != "abort" and len(one.output) != one.most:
                raise InvariantError(f"rid {one.rid} ended after {len(one.output)} of {one.most} tokens")
