"""Ranks of one group share a memory that is too small: every one must evict, retract and resume as the others do.

If one of them decided otherwise, their collectives would no longer match: an answer would be wrong, or none would come.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests import plain_http
from tests.e2e.conftest import TINY, wait_for
from tests.ports import free_block

TIGHT = ["--max-total-tokens", "1024", "--num-reserved-decode-tokens", "16", "--max-running-requests", "12"]
Answer = tuple[list[int], int, int]  # tokens, retractions, cached tokens


@contextlib.contextmanager
def engines(*commands: list[str]) -> Iterator[list[str]]:
    """One engine for each list of flags; all must end well."""
    processes, urls = [], []
    try:
        for flags in commands:
            port = free_block(1)
            argv = [sys.executable, "-m", "pdctl.engine", "--model-path", str(TINY), "--port", str(port)]
            argv += ["--page-size", "4", "--num-threads", "1", *flags]
            processes.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            urls.append(f"http://127.0.0.1:{port}")
        for url in urls:
            wait_for(
                f"health of {url}", lambda url=url: plain_http.get(f"{url}/health", timeout=5).status_code == 200, 90
            )
        yield urls
        for url in urls:
            wait_for(f"return of every page of {url}", lambda url=url: free(url))
    finally:
        for process in processes:
            process.terminate()
        codes = [process.wait(30) for process in processes]
    assert codes == [0] * len(processes)


def free(url: str) -> bool:
    states = plain_http.get(f"{url}/server_info", timeout=10).json()["internal_states"]
    return all(state["free_pages"] == state["num_pages"] for state in states)


def workload(seed: int, count: int) -> list[tuple[list[int], int]]:
    """Prompts with beginnings in common, and how many tokens each answer has."""
    draw = random.Random(seed)
    starts = [[5 + draw.randrange(200) for _ in range(300)] for _ in range(3)]
    made = []
    for _ in range(count):
        own = [5 + draw.randrange(200) for _ in range(draw.randrange(1, 60))]
        made.append((starts[draw.randrange(3)][: draw.choice((0, 10, 130, 250))] + own, draw.choice((1, 5, 40, 120))))
    return made


async def answers(
    legs: list[str], work: list[tuple[list[int], int]], hosts: dict[str, object], leave: int = 0
) -> list[Answer | None]:
    """What the last of `legs` says; every `leave`-th client goes before it has its answer."""
    gate = asyncio.Semaphore(12)
    async with plain_http.AsyncClient(timeout=90) as client:

        async def one(index: int, ids: list[int], length: int) -> Answer | None:
            body: dict[str, object] = {
                "input_ids": ids,
                "sampling_params": {"max_new_tokens": length, "temperature": 0, "ignore_eos": True},
            }
            if hosts:
                body |= {**hosts, "bootstrap_room": random.getrandbits(53) or 1}
            goes = bool(leave) and index % leave == leave - 1
            async with gate:
                calls = [client.post(f"{leg}/generate", json=body, timeout=0.2 if goes else 90) for leg in legs]
                *_, last = await asyncio.gather(*calls, return_exceptions=True)
            if isinstance(last, httpx.TimeoutException):
                return None
            assert isinstance(last, httpx.Response), last
            if goes and last.status_code != 200:
                return None
            assert last.status_code == 200, last.text
            answer = last.json()
            return answer["output_ids"], answer["meta_info"]["num_retractions"], answer["meta_info"]["cached_tokens"]

        return await asyncio.gather(*(one(index, *job) for index, job in enumerate(work)))


def compare(expected: list[Answer | None], got: list[Answer | None]) -> list[Answer]:
    pairs = [(mine, theirs) for mine, theirs in zip(expected, got, strict=True) if mine and theirs]
    assert [mine[0] for mine, _ in pairs] == [theirs[0] for _, theirs in pairs]
    return [theirs for _, theirs in pairs]


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_two_ranks_of_a_unified_engine() -> None:
    with engines(["--disable-radix-cache"], ["--tp-size", "2", *TIGHT]) as (plain, tight):
        work = workload(5, 40)
        expected = asyncio.run(answers([plain], work, {}))
        for leave in (0, 5):
            seen = compare(expected, asyncio.run(answers([tight], work, {}, leave)))
            assert sum(cached for _, _, cached in seen) > 0
            assert leave or sum(retractions for _, retractions, _ in seen) > 0


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_two_ranks_on_either_side_of_a_pair() -> None:
    bootstrap = free_block(1)
    both = [
        "--tp-size",
        "2",
        "--disaggregation-transfer-backend",
        "shm",
        "--disaggregation-bootstrap-port",
        str(bootstrap),
    ]
    prefill = ["--disaggregation-mode", "prefill", "--max-total-tokens", "1024", *both]
    decode = ["--disaggregation-mode", "decode", "--disaggregation-decode-enable-radix-cache", *TIGHT, *both]
    with engines(["--disable-radix-cache"], prefill, decode) as (plain, *pair):
        hosts: dict[str, object] = {"bootstrap_host": "127.0.0.1", "bootstrap_port": bootstrap}
        work = workload(6, 40)
        expected = asyncio.run(answers([plain], work, {}))
        for leave in (0, 5):
            seen = compare(expected, asyncio.run(answers(pair, work, hosts, leave)))
            assert sum(cached for _, _, cached in seen) > 0
            assert leave or sum(retractions for _, retractions, _ in seen) > 0
