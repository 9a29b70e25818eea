"""Questions to every DP replica's scheduler, each answered by all of them or by a deadline."""

from __future__ import annotations

import asyncio
import uuid
from typing import Generic, Protocol, TypeVar

from pdctl.engine.frontend.refusal import HttpRefusal


class Identified(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Identified)


class Questions(Generic[T]):
    """Open questions of one kind. `replicas` answers complete one; their order is the order of arrival."""

    def __init__(self, what: str, replicas: int) -> None:
        self._what = what
        self._replicas = replicas
        self._open: dict[str, tuple[list[T], asyncio.Future[list[T]]]] = {}

    def ask(self) -> str:
        """A new question's id; the caller sends it."""
        name = uuid.uuid4().hex
        self._open[name] = ([], asyncio.get_running_loop().create_future())
        return name

    def answer(self, reply: T) -> None:
        """Count an answer; one that comes after the deadline is dropped."""
        answers, complete = self._open.get(reply.id, (None, None))
        if answers is None or complete is None:
            return
        answers.append(reply)
        if len(answers) == self._replicas and not complete.done():
            complete.set_result(answers)

    def fail(self, reason: str) -> None:
        """Nobody will answer any more: whoever waits gets a HttpRefusal (503) with `reason` now."""
        for _, complete in self._open.values():
            if not complete.done():
                complete.set_exception(HttpRefusal(503, reason))

    async def answers(self, name: str, seconds: float) -> list[T]:
        """Raises HttpRefusal (504) naming what was waited for."""
        try:
            return await asyncio.wait_for(self._open[name][1], seconds)
        except asyncio.TimeoutError:
            have = len(self._open[name][0])
            raise HttpRefusal(
                504, f"waited {seconds:g} s for {self._what}: {have} of {self._replicas} scheduler(s) answered"
            ) from None
        finally:
            del self._open[name]
