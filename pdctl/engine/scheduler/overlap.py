"""Overlap scheduling: a pass computes on a thread of its own while the results of the one before are handed on.

Tokens are encoded and sent, pages given to the KV sender, requests taken in and rooms polled while torch computes (it
releases the interpreter's lock). What the next pass consists of is decided only when the tokens of the last one are
known, so no request ever runs a step too many, as it may in sglang 0.5.23's overlap, and nothing has to be undone.

Passing work between threads costs a small pass more than it gains (tests/bench/overlap.py), and any pass beside which
there is nothing to hand on: it runs on another core than the one that holds the weights of the last (9.2 instead of
7.4 ms for 256 tokens). Those stay on the loop's own thread.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pdctl.engine.drill import fault_points
from pdctl.engine.scheduler.schedule_batch import Batch, Outcome, Pass, compute, conclude, prepare

if TYPE_CHECKING:
    from pdctl.engine.model.sampler import Sampled
    from pdctl.engine.scheduler.resources import Resources

WORTH_A_THREAD = 4e8  # tokens of a pass × bytes of the checkpoint: a pass of some 5 ms on one CPU core


class Overlap:
    """At most one pass is under way. Off where stages or attention DP groups compute in step with one another."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        groups = resources.groups
        self._enabled = not resources.args.disable_overlap_schedule and groups.attn_dp.size == 1 and groups.pp.size == 1
        self._weights = sum(file.stat().st_size for file in Path(resources.args.model_path).glob("*.safetensors"))
        self._reach = fault_points.raiser("thread.forward", resources.tp_rank)
        self.threshold = WORTH_A_THREAD if self._reach is None else 0  # a rehearsed fault meets small models, too
        self.lone = False  # whether the last pass of everything the rank holds is taken too
        # OpenMP counts threads per thread: without this a pass here would take every core, whatever --num-threads says.
        self._thread = ThreadPoolExecutor(1, "forward", torch.set_num_threads, (torch.get_num_threads(),))
        self._pass: tuple[Pass, Future[Sampled | None]] | None = None

    @property
    def under_way(self) -> bool:
        return self._pass is not None

    def takes(self, batch: Batch, held: int) -> bool:
        """Whether `batch` is worth a thread: large enough, and not alone on the rank, which holds `held` requests.

        Every rank of the group decides alike: no clock is asked.
        """
        others = self.lone or held > len(batch.parts) or not all(part.completes for part in batch.parts)
        return self._enabled and others and batch.tokens * self._weights >= self.threshold

    def begin(self, batch: Batch) -> None:
        if self._pass is not None:
            raise AssertionError("a forward pass is under way already")
        prepared = prepare(batch, self._resources.eos)
        self._pass = prepared, self._thread.submit(self._compute, prepared)

    def _compute(self, prepared: Pass) -> Sampled | None:
        if self._reach is not None:
            self._reach()
        return compute(prepared, self._resources)

    def end(self) -> Outcome | None:
        """Wait for the pass under way, if any; raises what it raised."""
        if self._pass is None:
            return None
        (prepared, future), self._pass = self._pass, None
        return conclude(prepared, future.result(), self._resources)

    def close(self) -> None:
        self._thread.shutdown()
