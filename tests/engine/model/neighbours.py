"""Whether a row's bits depend on its neighbours here: `python -m tests.engine.model.neighbours DIRECTORY [CASE ...]`.

DIRECTORY holds a checkpoint for each case of peers.py, by its name. Each is tried with 1, 2 and 4 threads, under the
processor features that the environment leaves to this process. Prints JSON: what was used, and what differs.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from pdctl.engine.model.model_runner import ModelRunner
from tests.engine.model.peers import CASES, Case, forward, make_runner, run_of_pages, token_ids

THREADS = (1, 2, 4)
LENGTHS = (18, 18, 18, 33, 5, 18, 41, 1)  # in the cache; three of one length side by side are read as one
PROMPT = 23
Piece = tuple[np.ndarray, np.ndarray, int, int]


def differences(case: Case, directory: Path) -> Iterator[str]:
    """What comes out in other bits than alone with one thread: logits of decodes and prompts, and the KV cache."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        # Two runners: what the second one's pool holds before is other rubbish.
        alone, among = make_runner(case, directory), make_runner(case, directory)
        work = _work(case)
        for runner in (alone, among):
            for ids, pages, length, _ in work[:-1]:
                forward(runner, (ids, pages, 0, length))
        expected = [forward(alone, piece)[0] for piece in work]
        for threads in THREADS:
            torch.set_num_threads(threads)
            for name, numbers in _batches(len(work)):
                got = forward(among, *(work[number] for number in numbers))
                wrong = [
                    number for row, number in zip(got, numbers, strict=True) if not torch.equal(row, expected[number])
                ]
                if wrong:
                    yield f"{case.name}, {threads} threads, {name}: {len(wrong)} of {len(numbers)} rows"
            if not all(torch.equal(_cached(alone, piece), _cached(among, piece)) for piece in work):
                yield f"{case.name}, {threads} threads: the KV cache"
    finally:
        torch.set_num_threads(before)


def _work(case: Case) -> list[Piece]:
    """Sequences that decode one token each, and at the end a prompt; no page is another's."""
    work: list[Piece] = []
    first = 1
    for number, length in enumerate((*LENGTHS, 0)):
        new = 1 if length else PROMPT
        pages = run_of_pages(case, first, length + new)
        first = int(pages[-1]) + 1 + number % 2
        if number == 5:
            pages = pages[::-1].copy()  # not one run: gathered
        work.append((token_ids(case, length + new, 0 if length == LENGTHS[0] else number), pages, length, length + new))
    return work


def _batches(count: int) -> Iterator[tuple[str, list[int]]]:
    """The last one is the prompt."""
    decodes = list(range(count - 1))
    yield "one decode", decodes[:1]
    yield "another decode", decodes[3:4]
    yield "two decodes", decodes[1:3]
    yield "all decodes", decodes
    yield "all decodes, the other way round", decodes[::-1]
    yield "each decode many times over", decodes * 5
    yield "the prompt", [count - 1]
    yield "decodes beside the prompt", [*decodes[3:], count - 1, *decodes[:3]]


def _cached(runner: ModelRunner, piece: Piece) -> torch.Tensor:
    _, pages, _, length = piece
    pool = runner.pool
    geometry = pool.geometry
    rows = pool.rows.view(-1)
    start = torch.from_numpy(pages.astype(np.int64)) * geometry.page_stride
    slabs = torch.arange(geometry.num_slabs) * geometry.slab_stride
    places = (slabs[:, None] + start[: length // geometry.page_size]) // rows.element_size()
    strip = torch.arange(geometry.item_bytes // rows.element_size())
    return rows[(places[..., None] + strip).flatten()]


def main() -> int:
    logging.basicConfig(level=logging.INFO)
    directory, names = Path(sys.argv[1]), sys.argv[2:]
    found = [
        line for case in CASES if case.name in names or not names for line in differences(case, directory / case.name)
    ]
    used = torch.backends.cpu.get_cpu_capability()
    print(json.dumps({"capability": used, "differences": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
