"""One of four ranks in a process of its own, through every shape; see forked_ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from pdctl.engine.model.parallel import Groups
from pdctl.engine.scheduler.scheduler_rank import Sizing
from tests.engine.model.passes import FEWEST_PAGES, LONGEST, RANKS, WORLDS, make_runner, run
from tests.ports import HOST


def main(rank: int, first_port: str, folder: str) -> None:
    """Leave what this rank has computed in `folder`/rank`rank`.pt. Each world meets at a port of its own."""
    directory = Path(folder)
    torch.set_num_threads(1)
    results: dict[object, object] = {}
    for number, world in enumerate(WORLDS):
        stage, tp_rank = divmod(rank, world.shape.tp)
        groups = Groups.join(world.shape, tp_rank, stage, "cpu", f"tcp://{HOST}:{int(first_port) + number}")
        row = torch.randn(64, generator=torch.Generator().manual_seed(rank))
        results["sums", world.name] = [groups.tp.all_reduce(row.repeat(count, 1)) for count in (2, 3, 40)]
        for kind in world.kinds:
            runner = make_runner(directory / kind, groups)
            results[world.name, kind] = run(runner, groups)
        # Every rank has room for a number of its own; in each world another has the least.
        room = FEWEST_PAGES + (rank - number) % RANKS
        sizing = Sizing(runner.device, torch.float32, LONGEST, replace(runner.pool.geometry, num_pages=room))
        results["pages", world.name] = (room, sizing.agreed(groups).geometry.num_pages)
        groups.replica.barrier()
        groups.close()
    torch.save(results, directory / f"rank{rank}.pt")
