"""Questions that the HTTP process asks the schedulers, and that every DP replica answers."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, TypeVar, cast

from pdctl.engine.frontend.request_bodies import HttpRefusal
from pdctl.engine.ipc.messages import Ask, AskRooms, Flush, Flushed, Rooms, SchedulerReport, Switched, SwitchRole

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.ipc.messages import Request

Answer = SchedulerReport | Rooms | Flushed | Switched
T = TypeVar("T", bound=Answer)


class SchedulerQuestions:
    """Each question is answered by all replicas, or ended by its deadline with an HttpRefusal (504)."""

    def __init__(self, replicas: int, send: Callable[[Request], None]) -> None:
        self._replicas, self._send = replicas, send
        self._open: dict[str, tuple[list[Answer], asyncio.Future[None]]] = {}

    async def reports(self, seconds: float) -> list[SchedulerReport]:
        """Return one from every replica, in rank order."""
        reports: list[SchedulerReport] = await self._ask("a load report", Ask, seconds)
        return sorted(reports, key=lambda report: report.dp_rank)

    async def rooms(self, seconds: float) -> list[Rooms]:
        """Return one from every replica, in rank order."""
        rooms: list[Rooms] = await self._ask("the live rooms", AskRooms, seconds)
        return sorted(rooms, key=lambda one: one.dp_rank)

    async def flush(self, seconds: float) -> list[Flushed]:
        return await self._ask("the cache to be flushed", Flush, seconds)

    async def switch(self, role: str, commit: bool, seconds: float) -> list[Switched]:
        return await self._ask("the role switch", lambda name: SwitchRole(name, role, commit), seconds)

    async def _ask(self, what: str, message: Callable[[str], Request], seconds: float) -> list[T]:
        """Return one answer from every replica, in order of arrival. `message` makes the question from its id."""
        name = uuid.uuid4().hex
        answers: list[Answer] = []
        complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[name] = answers, complete
        try:
            self._send(message(name))
            await asyncio.wait_for(complete, seconds)
        except asyncio.TimeoutError:
            have = f"{len(answers)} of {self._replicas} scheduler(s) answered"
            raise HttpRefusal(504, f"waited {seconds:g} s for {what}: {have}") from None
        finally:
            del self._open[name]
        return cast("list[T]", answers)

    def answer(self, reply: Answer) -> None:
        """Count an answer; one that comes after the deadline is dropped."""
        answers, complete = self._open.get(reply.id, (None, None))
        if answers is None or complete is None:
            return
        answers.append(reply)
        if len(answers) == self._replicas and not complete.done():
            complete.set_result(None)

    def fail(self, reason: str) -> None:
        """End every open question with an HttpRefusal (503): no answer will come, for this `reason`."""
        for _, complete in self._open.values():
            if not complete.done():
                complete.set_exception(HttpRefusal(503, reason))
