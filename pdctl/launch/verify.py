"""One real request through every prefill and decode pair, sent to both legs as a router would.

Body and rules: sglang 0.5.23. Both legs get the same body at the same time; the prefill answers when its KV has left,
the decode with the tokens. Rooms are drawn below 2^53, so that every JSON tool can carry them, and never 0 (which
sglang takes for "not written").
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pdctl.fleet import http
from pdctl.launch.mailbox import Paired

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.launch.deployment import Spec

PROMPT = "Hello"
TOKENS = 2
AT_ONCE = 8


def pairs(prefills: tuple[Spec, ...], decodes: tuple[Spec, ...]) -> tuple[tuple[Spec, Spec], ...]:
    return tuple((prefill, decode) for prefill in prefills for decode in decodes)


def start(todo: tuple[tuple[Spec, Spec], ...], timeout: float, post: Callable[[Paired], None]) -> None:
    """Try all pairs, a few at once, off the caller's thread; one message each."""

    def attempt(pair: tuple[Spec, Spec]) -> None:
        post(try_pair(*pair, timeout))

    def work() -> None:
        with ThreadPoolExecutor(AT_ONCE, "verify") as pool:
            list(pool.map(attempt, todo))

    threading.Thread(target=work, name="verify", daemon=True).start()


def try_pair(prefill: Spec, decode: Spec, timeout: float) -> Paired:
    body = {
        "text": PROMPT,
        "sampling_params": {"max_new_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True},
        "bootstrap_host": prefill.host,
        "bootstrap_port": prefill.bootstrap_port,
        "bootstrap_room": random.randrange(1, 2**53),
    }
    began = time.monotonic()
    with ThreadPoolExecutor(2, "leg") as pool:
        sent = pool.submit(http.post, prefill.url + "/generate", body, timeout)
        received = http.post(decode.url + "/generate", body, timeout)
        problems = (
            refusal(prefill.name, sent.result()),
            refusal(decode.name, received) or no_token(decode.name, received),
        )
    problem = "; ".join(text for text in problems if text)
    return Paired(prefill.name, decode.name, problem, time.monotonic() - began)


def refusal(name: str, answer: http.Answer) -> str:
    if not answer.reached:
        return f"{name}: {answer.reason}"
    return "" if answer.ok else f"{name} answered {answer.status}: {answer.text.strip()[:300]}"


def no_token(name: str, answer: http.Answer) -> str:
    """Empty when the answer holds at least one token."""
    body = answer.json()
    meta = body.get("meta_info") if isinstance(body, dict) else None
    tokens = meta.get("completion_tokens") if isinstance(meta, dict) else None
    if isinstance(tokens, int) and tokens >= 1:
        return ""
    return f"{name} answered 200 without a token: {answer.text.strip()[:200]}"
