"""Decode and prefill of the embedded engine in two checkouts of this repository, step by step in turns.

    git worktree add ../before COMMIT
    PYTHONPATH=. python tests/bench/engine_checkouts.py ../before .    # t8, batch 1, 8, 32 and a prefill of 256

Prints, for each kind of step, the medians and the median of the rounds' ratios: above 1 the second checkout is slower.
With one thread the time is that thread's CPU time, and waiting does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE, EACH, CONTEXT, VOCAB = 16, 24, 256, 4096  # tokens of a page, pages of a sequence, tokens before the first step
SEQUENCES = 32
KINDS = ("1", "8", "32", "prefill")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs=2, type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "t8"
        _make_model(model)
        steppers = [_start(root.resolve(), model, args.threads) for root in args.checkouts]
        rounds: list[list[dict[str, float]]] = [[], []]
        for number in range(args.rounds + 1):  # the first one warms up
            for which in (0, 1) if number % 2 else (1, 0):
                rounds[which].append(_ask(steppers[which]))
        for stepper in steppers:
            stepper.communicate(timeout=30)
    print(f"{'STEP':8} {'FIRST ms':>9} {'SECOND ms':>9} {'RATIO':>6}")
    for kind in KINDS:
        first, second = ([took[kind] for took in part[1:]] for part in rounds)
        ratio = statistics.median(b / a for a, b in zip(first, second, strict=True))
        print(f"{kind:8} {statistics.median(first):9.2f} {statistics.median(second):9.2f} {ratio:6.3f}")


def _make_model(directory: Path) -> None:
    from tests.engine import checkpoints

    shape = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "head_dim": 64, "vocab_size": VOCAB}
    heads = {"num_key_value_heads": 4, "num_attention_heads": 8}
    checkpoints.CONFIGS["t8"] = {**checkpoints.CONFIGS["gqa"], **shape, **heads}
    checkpoints.VOCAB = VOCAB
    checkpoints.make_checkpoint("t8", directory)


def _start(root: Path, model: Path, threads: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--step", str(model), str(threads)]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen(command, cwd=root, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ask(stepper: subprocess.Popen[str]) -> dict[str, float]:
    assert stepper.stdin is not None
    assert stepper.stdout is not None
    stepper.stdin.write("\n")
    stepper.stdin.flush()
    return json.loads(stepper.stdout.readline())


def step(model: str, threads: int) -> None:
    """In a process of its own, with the checkout's package: a line on stdin is answered with one of milliseconds."""
    from pdctl.engine.scheduler.__main__ import prefer_huge_pages

    prefer_huge_pages(os.environ)

    import numpy as np
    import torch

    from pdctl.engine.config.checkpoint_config import ModelConfig
    from pdctl.engine.kvcache.kv_pool import KVPool
    from pdctl.engine.model.forward_pass import ForwardBatch, SeqSlice
    from pdctl.engine.model.model_runner import ModelRunner
    from pdctl.engine.model.parallel import Groups

    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    config = ModelConfig.from_dir(model)
    pool = KVPool(KVPool.geometry_for(config, 1, PAGE, 1 + SEQUENCES * EACH, torch.float32, "layer-major"))
    runner = ModelRunner(config, model, pool, Groups.single())
    pages = np.arange(1, 1 + SEQUENCES * EACH, dtype=np.int32).reshape(SEQUENCES, EACH)
    ids = np.random.default_rng(0).integers(0, VOCAB, CONTEXT)
    for row in pages:
        runner.forward(ForwardBatch(ids, [SeqSlice(row, 0, CONTEXT)]))
    batches = {
        kind: ForwardBatch(ids, [SeqSlice(pages[0], 0, CONTEXT)])
        if kind == "prefill"
        else ForwardBatch(ids[: int(kind)], [SeqSlice(row, CONTEXT, 1) for row in pages[: int(kind)]])
        for kind in KINDS
    }
    for _ in sys.stdin:
        took = {kind: _fastest(runner.forward, batch, clock) for kind, batch in batches.items()}
        print(json.dumps(took), flush=True)


def _fastest(forward, batch, clock) -> float:
    """Milliseconds of the fastest of a few passes."""
    times = []
    for _ in range(4):
        start = clock()
        forward(batch)
        times.append(clock() - start)
    return min(times) * 1e3


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        step(sys.argv[2], int(sys.argv[3]))
    else:
        main()
