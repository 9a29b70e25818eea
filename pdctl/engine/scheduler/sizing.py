"""Device, dtype, threads and pool size of a rank: what `auto` and 0 in the arguments turn into."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from pdctl.engine.kvcache.allocator import RESERVED_PAGES
from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.model.model_runner import resolve_dtype
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from pdctl.engine.config.checkpoint_config import ModelConfig
    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.model.parallel import Groups

# A laptop rehearsal wants a pool that is quick to pre-touch (1.2 GB/s of page faults) and small beside the model.
CPU_POOL_BYTES = 96 << 20
GPU_POOL_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Sizing:
    """Resolved sizes. `context` counts prompt and answer together; `tokens` is what the pool can hold."""

    device: torch.device
    dtype: torch.dtype
    context: int
    geometry: PoolGeometry

    @property
    def tokens(self) -> int:
        return (self.geometry.num_pages - RESERVED_PAGES) * self.geometry.page_size

    @classmethod
    def resolve(cls, args: ServerArgs, config: ModelConfig, stage: int = 0) -> Sizing:
        """For a rank of pipeline stage `stage`. Raises UsageError naming the flag when not even one page would fit."""
        device = _device(args)
        dtype = resolve_dtype(args.dtype, config, device)
        context = min(args.context_length or config.max_position, config.max_position)
        stages = args.shape.pp

        def geometry(pages: int, stage: int) -> PoolGeometry:
            return KVPool.geometry_for(
                config, args.shape.attn_tp_size, args.page_size, pages, dtype, args.kv_layout, stage, stages
            )

        # What a page takes where there are most layers: it is handed out on every stage alike, so all hold as many.
        most = max(geometry(1, each).nbytes for each in range(stages))
        if args.max_total_tokens:
            pages = args.max_total_tokens // args.page_size
        else:
            useful = -(-args.max_running_requests * context // args.page_size)
            pages = min(useful, max(_budget(device) // most, -(-2 * context // args.page_size)))
        if pages < 1:
            raise UsageError(
                f"--max-total-tokens {args.max_total_tokens} is less than one page of {args.page_size} tokens"
            )
        return cls(device, dtype, context, geometry(pages + RESERVED_PAGES, stage))

    def agreed(self, groups: Groups) -> Sizing:
        """With as many pages as the rank of the replica that has room for the fewest. Every rank of it calls this.

        A rank sees only what is free on its own device; all of one schedule hand out the same pages.
        """
        pages = self.geometry.num_pages
        for group in (groups.tp, groups.pp):  # each stage for itself, then all stages
            (pages,) = group.min_ints([pages])
        return replace(self, geometry=replace(self.geometry, num_pages=pages))


def use_threads(args: ServerArgs) -> int:
    """One compute thread per rank where ranks share the cores: prefill and decode on a laptop do."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = args.num_threads or max(1, cores // (2 * args.tp_size * args.dp_size))
    torch.set_num_threads(threads)
    return threads


def _device(args: ServerArgs) -> torch.device:
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: this torch finds no CUDA device", "use --device cpu")
    cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    return torch.device("cuda", args.base_gpu_id) if cuda else torch.device("cpu")


def _budget(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * GPU_POOL_SHARE)
    return CPU_POOL_BYTES
