"""Overlap scheduling beside plain turns: the same decode steps and prompts, in blocks that take turns.

    python tests/bench/overlap.py                          # t4 and t8, batch 1, 8 and 32
    python tests/bench/overlap.py --shapes t8 --batches 1 --blocks 20

Milliseconds per turn of one scheduler: wall clock, and CPU time of the whole process. `gain` is the plain wall clock
divided by the overlapped one: above 1 the overlap is faster. The first column says what the engine would choose.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from pdctl.engine.ipc.messages import Reply, reply_codec
from pdctl.engine.scheduler.loop import WORTH_A_THREAD
from tests.bench.engine_decode import SHAPES, make_model
from tests.engine.scheduler.rig import TINY, Box, Station, ask, ids, settings


class EncodingBox(Box):
    """What a rank's mailbox costs besides the socket."""

    def send(self, reply: Reply) -> None:
        reply_codec.encode(reply)
        super().send(reply)


def station(model: Path, disabled: bool) -> Station:
    made = Station(
        settings(
            model_path=str(model), page_size=16, max_total_tokens=32768, max_running_requests=64, context_length=2048,
            chunked_prefill_size=256, disable_overlap_schedule=disabled, disable_radix_cache=True,
        )
    )  # fmt: skip
    made.box = EncodingBox()
    made.scheduler._mailbox = made.box  # type: ignore[assignment]
    return made


def decode(made: Station, batch: int, block: int, turns: int) -> tuple[float, float]:
    """Milliseconds of wall clock and CPU per decode turn of `batch` requests."""
    rids = [f"{batch}-{block}-{index}" for index in range(batch)]
    made.turn(*(ask(rid, ids(64, index), tokens=turns + 8) for index, rid in enumerate(rids)))
    while made.queues.running < batch:
        made.turn()
    result = timed(made, turns)
    made.run()
    return result


def prefill(made: Station, block: int) -> tuple[float, float]:
    """The same for chunks of 256 tokens of long prompts."""
    made.turn(*(ask(f"p{block}-{index}", ids(1024, block * 7 + index), tokens=1) for index in range(2)))
    result = timed(made, 6)
    made.run()
    return result


def timed(made: Station, turns: int) -> tuple[float, float]:
    wall, used = time.perf_counter(), time.process_time()
    for _ in range(turns):
        made.turn()
    return (time.perf_counter() - wall) / turns * 1e3, (time.process_time() - used) / turns * 1e3


def report(shape: str, work: str, chosen: bool, measured: list[list[tuple[float, float]]]) -> None:
    (plain, plain_cpu), (overlapped, overlapped_cpu) = (
        [statistics.median(column) for column in zip(*blocks, strict=True)] for blocks in measured
    )
    print(
        f"{'overlap' if chosen else 'plain':9}{shape:6}{work:>12}{plain:10.2f}{overlapped:11.2f}"
        f"{plain / overlapped:8.3f}{plain_cpu:12.2f}{overlapped_cpu:15.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--turns", type=int, default=20)
    args = parser.parse_args()
    print(
        f"{'chosen':9}{'shape':6}{'work':>12}{'plain':>10}{'overlap':>11}{'gain':>8}{'plain CPU':>12}{'overl. CPU':>15}"
    )
    for shape in args.shapes:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder)
            make_model(shape, model)
            for part in TINY.glob("token*"):
                shutil.copy(part, model)
            both = [station(model, disabled) for disabled in (True, False)]
            weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
            for batch in args.batches:
                blocks = [[decode(made, batch, block, args.turns) for made in both] for block in range(args.blocks)]
                report(shape, f"decode x{batch}", batch * weights >= WORTH_A_THREAD, list(zip(*blocks, strict=True)))  # type: ignore[arg-type]
            blocks = [[prefill(made, block) for made in both] for block in range(args.blocks)]
            report(shape, "prefill 256", 256 * weights >= WORTH_A_THREAD, list(zip(*blocks, strict=True)))  # type: ignore[arg-type]
            for made in both:
                made.close()


if __name__ == "__main__":
    main()
