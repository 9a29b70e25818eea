"""One turn of the event loop, agreed on by every attention DP group that shares a TP group.

Their MLP and expert layers are computed together: when one group has a batch, the others join its forward pass with no
tokens of their own (sglang 0.5.23 prepare_mlp_sync_batch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.engine.model.forward_batch import Share

if TYPE_CHECKING:
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.scheduler.queues import Queues
    from pdctl.engine.scheduler.schedule_batch import Batch


class Agreed(NamedTuple):
    """What holds for all groups of the replica in this turn; without attention DP there is one.

    shares    what each group brings to the pass, in rank order; () without attention DP
    busy      some group has a batch: all run the pass
    remote    some group waits for the other side: the leader must look again soon
    held      requests anywhere that have not ended, and those that still hold pages
    stopping  every group has been told to stop
    """

    shares: tuple[Share, ...]
    busy: bool
    remote: bool
    held: int
    stopping: bool


class Turn:
    """Collective over the attention DP groups; without attention DP it asks nobody."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def agree(self, batch: Batch | None, queues: Queues, stopping: bool) -> Agreed:
        """`queues` as they are before the pass; every rank of the replica calls it once a turn."""
        held = queues.total + queues.draining
        peers = self._groups.attn_dp
        if peers.size == 1:
            return Agreed((), batch is not None, queues.remote > 0, held, stopping)
        own = (batch.tokens, len(batch.parts), int(batch.prefill)) if batch else (0, 0, 0)
        told = peers.gather_ints((*own, int(queues.remote > 0), held, int(stopping)))
        shares = tuple(Share(tokens, seqs, bool(prefill)) for tokens, seqs, prefill, *_ in told)
        return Agreed(
            shares,
            any(share.tokens for share in shares),
            any(row[3] for row in told),
            sum(row[4] for row in told),
            all(row[5] for row in told),
        )
