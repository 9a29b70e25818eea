"""The clients: each asks again and again, some leave in the middle, and every end is judged."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx

from tests.soak.plan import LONGEST_ANSWER, body

if TYPE_CHECKING:
    from tests.soak.plan import Plan, Question

PAUSE = 0.05  # after an error
EXAMPLES = 12  # of each kind of trouble
PATIENCE = 1.2  # of a client, as a multiple of the deadline: what ends between the two is late


@dataclass
class Tally:
    """`ok` and `error` are fair ends, `aborted` our own doing; `wrong`, `late` and `unclear` are what a soak is for."""

    ends: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    trouble: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def note(self, end: str, seconds: float, detail: str = "") -> None:
        self.ends[end] += 1
        self.slowest = max(self.slowest, seconds)
        if end == "error":
            self.errors[detail] += 1
        if end in ("wrong", "late", "unclear") and self.ends[end] <= EXAMPLES:
            self.trouble.append(f"{end} after {seconds:.1f}s: {detail}")


class Load:
    def __init__(self, plan: Plan, url: str, asked: list[Question], tally: Tally) -> None:
        self._plan, self._url, self._asked = plan, url, asked
        self._dice = random.Random(plan.seed + 1)
        self.tally = tally

    async def run(self, until: float) -> None:
        """Until monotonic time `until`, and the last answers."""
        async with self._open() as client:
            await asyncio.gather(*(self._client(client, until) for _ in range(self._plan.clients)))

    def _open(self) -> httpx.AsyncClient:
        patience = httpx.Timeout(self._plan.deadline * PATIENCE, connect=self._plan.deadline)
        return httpx.AsyncClient(timeout=patience, limits=httpx.Limits(max_connections=None))

    async def _client(self, client: httpx.AsyncClient, until: float) -> None:
        while time.monotonic() < until:
            question, tokens = self._dice.choice(self._asked), self._dice.randint(1, LONGEST_ANSWER)
            leave = self._dice.uniform(0.0, 0.4) if self._dice.random() < self._plan.abort_share else None
            stream = self._dice.random() < 0.5
            began = time.monotonic()
            try:
                if leave is None:
                    end, detail = await self._one(client, question, tokens, stream)
                else:
                    end, detail = await self._leaving(question, tokens, stream, leave)
            except asyncio.TimeoutError:
                end, detail = "aborted", ""
            except httpx.TimeoutException:
                end, detail = "late", "no answer and no error"
            except httpx.TransportError as error:
                end, detail = "unclear", f"{type(error).__name__}: {error}"
            seconds = time.monotonic() - began
            if end in ("ok", "error") and seconds > self._plan.deadline:
                end, detail = "late", f"{end} {detail}"
            self.tally.note(end, seconds, detail)
            if end not in ("ok", "aborted"):
                await asyncio.sleep(PAUSE)

    async def _leaving(self, question: Question, tokens: int, stream: bool, after: float) -> tuple[str, str]:
        """Over a connection of its own: a pool loses count of one that is given up in the middle."""
        async with self._open() as client:
            return await asyncio.wait_for(self._one(client, question, tokens, stream), after)

    async def _one(self, client: httpx.AsyncClient, question: Question, tokens: int, stream: bool) -> tuple[str, str]:
        asked = body(question.input_ids, tokens)
        expected = list(question.answer[:tokens])
        if not stream:
            answer = await client.post(f"{self._url}/generate", json=asked)
            return judged(answer.status_code, answer.json(), expected, answer.headers)
        async with client.stream("POST", f"{self._url}/generate", json={**asked, "stream": True}) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return judged(answer.status_code, answer.json(), expected, answer.headers)
            last: dict[str, object] = {}
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    return judged(200, last, expected, answer.headers)
                if line.startswith("data: "):
                    last = json.loads(line.removeprefix("data: "))
                    if "error" in last:
                        return judged(200, last, expected, answer.headers)
        return "unclear", f"the stream ended without [DONE]; last {str(last)[:200]}"


def judged(status: int, answer: dict[str, object], expected: list[int], headers: httpx.Headers) -> tuple[str, str]:
    """How a request ended, and what there is to say about it."""
    where = f"{headers.get('x-pd-prefill', '?')}→{headers.get('x-pd-decode', '?')} room {headers.get('x-pd-room', '?')}"
    error = answer.get("error")
    if isinstance(error, dict):
        message = str(error.get("message", ""))
        if not message:
            return "unclear", f"HTTP {status} without a message: {answer}"
        return "error", f"HTTP {status} {error.get('code', '')}"
    if status != 200:
        return "unclear", f"HTTP {status}: {str(answer)[:200]}"
    meta = answer.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    if isinstance(reason, dict) and reason.get("type") == "abort":
        return "unclear", f"{where}: HTTP 200 with an abort: {reason}"
    if answer.get("output_ids") != expected:
        return "wrong", f"{where}: {answer.get('output_ids')} is not {expected}"
    return "ok", ""
