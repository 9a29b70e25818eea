"""Clients that ask through routers without pause, and remember every answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from tests import plain_http

PROMPTS = ("two boats", "a quick farmer", "The quick brown fox jumps over", "seven", "the house on the hill by the sea")
TOKENS = 24


@dataclass
class Load:
    """`clients` threads, each with one router and one request after the other; greedy, so that answers compare."""

    routers: Sequence[str]
    clients: int = 6
    answers: list[tuple[str, int, str]] = field(default_factory=list)  # prompt, status, text or error
    served: dict[str, int] = field(default_factory=dict)  # by router

    def __enter__(self) -> Load:
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()

    def _work(self, number: int) -> None:
        url, turn = self.routers[number % len(self.routers)], number
        with plain_http.Client(base_url=url, timeout=60) as client:
            while not self._over.is_set():
                turn += 1
                self._ask(client, url, PROMPTS[turn % len(PROMPTS)], stream=turn % 2 == 0)

    def _ask(self, client: httpx.Client, url: str, prompt: str, *, stream: bool) -> None:
        sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
        body = {"text": prompt, "sampling_params": sampling, "stream": stream}
        try:
            answer = client.post("/generate", json=body)
            text = answer.text
            if answer.status_code == 200:
                events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
                last = httpx.Response(200, content=events[-2]).json() if stream else answer.json()
                text = last.get("text", str(last))
            self.answers.append((prompt, answer.status_code, text))
        except (httpx.HTTPError, ValueError, IndexError) as error:
            self.answers.append((prompt, 0, repr(error)))
        self.served[url] = self.served.get(url, 0) + 1

    @property
    def lost(self) -> list[tuple[str, int, str]]:
        return [answer for answer in self.answers if answer[1] != 200]

    @property
    def texts(self) -> dict[str, set[str]]:
        """Every answer that a prompt got."""
        found: dict[str, set[str]] = {}
        for prompt, status, text in self.answers:
            if status == 200:
                found.setdefault(prompt, set()).add(text)
        return found
