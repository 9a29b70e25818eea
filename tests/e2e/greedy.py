"""Prompts of every edge length, what an engine answers greedily, and what one rank computes in this process."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import httpx

from tests import plain_http
from tests.engine.scheduler.rig import ask, unified

PAGE = 16
CHUNK = 512
ANSWER = 12  # tokens
EDGES = [1, 2, PAGE - 1, PAGE, PAGE + 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + PAGE + 1, 3 * CHUNK - 1]


def prompts(count: int, vocabulary: int) -> list[list[int]]:
    """Every edge length first, then random ones, mostly short: up to several chunks."""
    rng = random.Random(7)
    lengths = [*EDGES, *(min(1600, int(rng.expovariate(1 / 120)) + 1) for _ in range(count - len(EDGES)))]
    return [[rng.randrange(5, vocabulary) for _ in range(length)] for length in lengths]


async def answers(url: str, inputs: list[list[int]], concurrency: int) -> tuple[list[list[int]], Counter[str]]:
    gate = asyncio.Semaphore(concurrency)
    used: Counter[str] = Counter()
    async with plain_http.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=64)) as client:

        async def one(ids: list[int]) -> list[int]:
            body = {
                "input_ids": ids,
                "sampling_params": {"temperature": 0, "max_new_tokens": ANSWER, "ignore_eos": True},
            }
            async with gate:
                answer = await client.post("/generate", json=body)
            assert answer.status_code == 200, answer.text
            used[answer.headers.get("x-pd-prefill", "")] += 1
            return list(answer.json()["output_ids"])

        return await asyncio.gather(*(one(ids) for ids in inputs)), used


def alone(model: Path, inputs: list[list[int]]) -> list[list[int]]:
    """What one rank that does both answers: a real scheduler, whose prompts come as they would over HTTP."""
    sizes = {"page_size": PAGE, "chunked_prefill_size": CHUNK, "max_total_tokens": 8192, "context_length": 4096}
    with unified(model_path=str(model), **sizes) as rank:
        rank.run(*(ask(str(number), ids, ANSWER) for number, ids in enumerate(inputs)))
        return [rank.answer[str(number)] for number in range(len(inputs))]
