"""One rank of a group as its own process: `python -m tests.engine.model.tp_rank RANK SIZE INIT DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from pdctl.engine.model.parallel import Groups
from pdctl.layout.shape import Shape
from tests.engine.model.peers import CASES, Case, forward, make_runner, run_of_pages, token_ids

# One for each way in which tensors are cut.
CUT = (
    "llama-gqa2-tied",
    "llama-mqa-llama3-rope-page64",
    "qwen2-bias-gqa3",
    "qwen3-qk-norm-page64",
    "gpt-oss-window-within-a-page",
    "qwen2-moe-shared-expert-gate",
    "qwen3-moe-page5",
    "deepseek2-groups-yarn",
    "deepseek3-yarn-halves",
)
TP_CASES = (
    *(case for case in CASES if case.name in CUT),
    Case("wide", "llama", (4, 2), 12, 16, "layer-major", vocab=64),
)


def steps(runner, case: Case) -> torch.Tensor:
    """Logits of a prefill, a continuation next to another prompt, and a decode step."""
    ids, first = token_ids(case, 60), run_of_pages(case, 1, 60)
    second = run_of_pages(case, int(first[-1]) + 1, 60)
    return torch.cat(
        (
            forward(runner, (ids, first, 0, 20)),
            forward(runner, (ids, first, 20, 41), (ids, second, 0, 9)),
            forward(runner, (ids, first, 41, 42), (ids, second, 9, 10)),
        )
    )


def main() -> None:
    rank, size, init, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    torch.set_num_threads(1)
    groups = Groups.join(Shape(tp=size, nnodes=1), rank, 0, "cpu", init)
    agreed = groups.tp.min_ints([rank + 2, 5 - rank, 9])
    logits = {case.name: steps(make_runner(case, directory / case.name, groups=groups), case) for case in TP_CASES}
    groups.tp.barrier()
    torch.save({"agreed": agreed, "logits": logits}, directory / f"rank{rank}.pt")
    groups.close()
    groups.close()


if __name__ == "__main__":
    main()
