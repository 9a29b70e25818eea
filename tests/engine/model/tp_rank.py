"""One rank of a group of two in a process of its own; see forked_ranks."""

from __future__ import annotations

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
RANKS = 2
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


def main(rank: int, init: str, folder: str) -> None:
    """Leave what this rank has computed in `folder`/rank`rank`.pt; `init`: where the ranks meet."""
    directory = Path(folder)
    torch.set_num_threads(1)
    groups = Groups.join(Shape(tp=RANKS, nnodes=1), rank, 0, "cpu", init)
    agreed = groups.tp.min_ints([rank + 2, 5 - rank, 9])
    logits = {case.name: steps(make_runner(case, directory / case.name, groups=groups), case) for case in TP_CASES}
    groups.tp.barrier()
    torch.save({"agreed": agreed, "logits": logits}, directory / f"rank{rank}.pt")
    groups.close()
    groups.close()
