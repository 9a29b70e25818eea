"""One of four ranks as its own process, through every shape: `python -m tests.engine.model.shape_rank RANK DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from pdctl.engine.model.parallel import Groups
from tests.engine.model.passes import WORLDS, make_runner, run


def main() -> None:
    rank, directory = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    results = {}
    for number, world in enumerate(WORLDS):
        stage, tp_rank = divmod(rank, world.shape.tp)
        groups = Groups.join(world.shape, tp_rank, stage, "cpu", f"file://{directory}/world{number}")
        for kind in world.kinds:
            results[world.name, kind] = run(make_runner(directory / kind, groups), groups)
        groups.replica.barrier()
        groups.close()
    torch.save(results, directory / f"rank{rank}.pt")


if __name__ == "__main__":
    main()
