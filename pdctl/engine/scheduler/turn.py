"""One turn of the event loop, agreed on by every attention DP group that shares a TP group.

Their MLP and expert layers are computed together: when one group has a batch, the others join its forward pass with no
tokens of their own (sglang 0.5.23 prepare_mlp_sync_batch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.model.batch import Share

if TYPE_CHECKING:
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.scheduler.batch import Batch


class Turn:
    """Collective over the TP group; without attention DP it asks nobody."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def agree(self, batch: Batch | None) -> tuple[Share, ...]:
        """What each attention DP group computes in this pass, in rank order; () without attention DP."""
        peers = self._groups.attn_dp
        if peers.size == 1:
            return ()
        own = (batch.tokens, len(batch.parts), int(batch.prefill)) if batch else (0, 0, 0)
        return tuple(Share(tokens, seqs, bool(prefill)) for tokens, seqs, prefill in peers.gather_ints(own))
