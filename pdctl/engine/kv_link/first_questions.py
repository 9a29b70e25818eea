"""Blocking questions to hosts nobody has heard of: many at once, and never all of them to one host."""

from __future__ import annotations

import threading
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class FirstQuestions:
    """`of_one_host` questions to one host run at a time, the others wait without a thread; `threads` run in all."""

    def __init__(self, name: str, threads: int, of_one_host: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most = of_one_host
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._closed = False

    def submit(self, host: str, job: Callable[[], T]) -> Future[T]:
        answer: Future[T] = Future()

        def ask() -> None:
            self._pool.submit(job).add_done_callback(ended)

        def ended(asked: Future[T]) -> None:
            self._ended(host)
            error = None if asked.cancelled() else asked.exception()
            if asked.cancelled():
                answer.cancel()
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(asked.result())

        with self._lock:
            if self._running[host] >= self._most:
                self._waiting.setdefault(host, deque()).append(ask)
                return answer
            self._running[host] += 1
        ask()
        return answer

    def _ended(self, host: str) -> None:
        with self._lock:
            waiting = self._waiting.get(host)
            following = waiting.popleft() if waiting and not self._closed else None
            if following is None:
                self._running[host] -= 1
                if not self._running[host]:
                    del self._running[host]
            if not waiting:
                self._waiting.pop(host, None)
        if following is not None:
            following()

    def close(self) -> None:
        """What waits is never asked."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
