"""What the attention DP groups of a replica agree on before a pass, and what its pipeline stages share after one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pdctl.engine.ipc.messages import Sampling
from pdctl.engine.model.forward_pass import Share
from pdctl.engine.model.model_runner import Sampled, SamplingRow
from pdctl.engine.model.parallel import Group, Groups
from pdctl.engine.scheduler import schedule_batch
from pdctl.engine.scheduler.loop import Turn
from pdctl.engine.scheduler.role import Queues


class Told(Group):
    """A group whose other ranks have said their part already."""

    def __init__(self, rank: int, *others: Sequence[int]) -> None:
        super().__init__(tuple(range(len(others) + 1)), rank)
        self._others = [tuple(other) for other in others]

    def gather_ints(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        told = list(self._others)
        told.insert(self.rank, tuple(values))
        return told

    def share_ints(self, values: Sequence[int], source: int) -> list[int]:
        return list(values) if source == self.rank else list(self._others[source - (source > self.rank)])


def test_without_attention_dp_nobody_is_asked() -> None:
    turn = Turn(Groups.single())
    idle = turn.agree(None, Queues(), stopping=False)
    assert (idle.shares, idle.busy, idle.remote, idle.held, idle.stopping) == ((), False, False, 0, False)
    waiting = turn.agree(None, Queues(transfer=2, draining=1), stopping=True)
    assert (waiting.busy, waiting.remote, waiting.held, waiting.stopping) == (False, True, 3, True)


@pytest.mark.parametrize(
    ("other", "shares", "busy", "remote", "held", "stopping"),
    [
        ((0, 0, 0, 0, 0, 1), (Share(0, 0, False), Share(0, 0, False)), False, False, 0, True),
        ((0, 0, 0, 0, 0, 0), (Share(0, 0, False), Share(0, 0, False)), False, False, 0, False),
        ((0, 0, 0, 1, 4, 1), (Share(0, 0, False), Share(0, 0, False)), False, True, 4, True),
        ((7, 2, 1, 0, 2, 1), (Share(0, 0, False), Share(7, 2, True)), True, False, 2, True),
    ],
    ids=["all idle", "one not told to stop", "another waits for its peer", "another has a batch"],
)
def test_an_idle_group_does_what_the_others_need(
    other: tuple[int, ...], shares: tuple[Share, ...], busy: bool, remote: bool, held: int, stopping: bool
) -> None:
    groups = replace(Groups.single(), attn_dp=Told(0, other))
    assert Turn(groups).agree(None, Queues(), stopping=True) == (shares, busy, remote, held, stopping)


ROWS = (
    SamplingRow(Sampling()),
    SamplingRow(Sampling(), return_logprob=True),
    SamplingRow(Sampling(), return_logprob=True, top_logprobs_num=3),
)
SAMPLED = Sampled(
    np.array([7, 1279, 0], dtype=np.int64),
    (math.nan, -0.125, -1e-30),
    ([], [], [(0, -0.5), (5, -2.25)]),  # a vocabulary of two: fewer than asked for
)


def test_every_stage_gets_what_the_last_one_sampled() -> None:
    last = replace(Groups.single(), pp=Told(1, ()), attn_tp=Told(0), replica=Told(1, ()))
    sent: list[int] = []

    class Sending(Told):
        def share_ints(self, values: Sequence[int], source: int) -> list[int]:
            assert source == 1
            sent.extend(values)
            return list(values)

    mine = schedule_batch.share(SAMPLED, ROWS, replace(last, replica=Sending(1, ())))
    theirs = schedule_batch.share(None, ROWS, replace(last, pp=Told(0, ()), replica=Told(0, sent)))
    for taken in (mine, theirs):
        assert taken.ids.tolist() == [7, 1279, 0]
        assert math.isnan(taken.logprobs[0])
        assert taken.logprobs[1:] == SAMPLED.logprobs[1:]
        assert taken.top_logprobs == SAMPLED.top_logprobs


def test_one_stage_shares_with_nobody() -> None:
    assert schedule_batch.share(SAMPLED, ROWS, Groups.single()) is SAMPLED
