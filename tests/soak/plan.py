"""What a soak does, and the prompts it asks, each with the answer a unified engine gave beforehand."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from tests.e2e.conftest import ROOT, TINY, wait_for
from tests.ports import free_block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST_ANSWER = 40  # tokens
SHORT, LONG = (4, 120), (200, 1400)  # tokens of a prompt; three of four are short
LONG_SHARE = 0.25
VOCABULARY = (16, 1200)


@dataclass(frozen=True, slots=True)
class Plan:
    """Times in seconds. `deadline`: for an answer or an error. `faults`: the engines' PDCTL_FAULTS."""

    seconds: float = 120.0
    prefills: int = 2
    decodes: int = 2
    tp: int = 1
    clients: int = 6
    kill_every: float = 30.0
    abort_share: float = 0.05
    deadline: float = 60.0
    prompts: int = 64
    seed: int = 1
    backend: str = "auto"
    faults: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """`answer` is the greedy one of LONGEST_ANSWER tokens; a shorter one is its beginning."""

    input_ids: tuple[int, ...]
    answer: tuple[int, ...]


def body(input_ids: tuple[int, ...], tokens: int) -> dict[str, object]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": list(input_ids), "sampling_params": sampling}


def prompts(plan: Plan) -> list[tuple[int, ...]]:
    """Mixed lengths; every third one begins as the one before, as chats do."""
    dice = random.Random(plan.seed)
    made: list[tuple[int, ...]] = []
    for number in range(plan.prompts):
        length = dice.randint(*(LONG if dice.random() < LONG_SHARE else SHORT))
        start = made[-1][: length // 2] if number % 3 == 2 else ()
        made.append((*start, *(dice.randint(*VOCABULARY) for _ in range(length - len(start)))))
    return made


@contextmanager
def unified(directory: Path) -> Iterator[str]:
    port = free_block(1)
    command = [sys.executable, "-m", "pdctl.engine", "--model-path", str(TINY), "--port", str(port)]
    with (directory / "unified.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for("unified engine", lambda: httpx.get(f"{url}/health", timeout=5).status_code == 200, 90)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def ask(url: str, input_ids: tuple[int, ...]) -> Question:
    answer = httpx.post(f"{url}/generate", json=body(input_ids, LONGEST_ANSWER), timeout=60)
    answer.raise_for_status()
    return Question(input_ids, tuple(answer.json()["output_ids"]))


def questions(plan: Plan, directory: Path) -> list[Question]:
    with unified(directory) as url, ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda ids: ask(url, ids), prompts(plan)))
