"""Prompts of every edge length, and what an engine answers greedily."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import httpx

from tests import plain_http

PAGE = 16
CHUNK = 512
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
            body = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}}
            async with gate:
                answer = await client.post("/generate", json=body)
            assert answer.status_code == 200, answer.text
            used[answer.headers.get("x-pd-prefill", "")] += 1
            return list(answer.json()["output_ids"])

        return await asyncio.gather(*(one(ids) for ids in inputs)), used
