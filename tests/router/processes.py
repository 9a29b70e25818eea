"""A router as a process of its own, and one with a prefill and a decode behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator

from pdctl.lifeline import Lifeline
from tests.router.fleet import until
from tests.router.workers import Worker

PATIENCE = 60.0  # seconds; a busy machine is slow, never this slow


class Process:
    """`log` is its standard error so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = ""
        self.port = 0
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(4096):
            self.log += data.decode()

    async def wait(self) -> int:
        code = await asyncio.wait_for(self.process.wait(), PATIENCE)
        await asyncio.wait_for(self._reader, PATIENCE)
        return code

    async def listening(self) -> None:
        await until(
            lambda: "Router listening" in self.log or self.process.returncode is not None,
            "the router to listen",
            PATIENCE,
        )
        found = re.search(r"Router listening on http://127.0.0.1:(\d+)", self.log)
        assert found, self.log
        self.port = int(found[1])


@contextlib.asynccontextmanager
async def router(
    *flags: str, line: Lifeline | None = None, program: tuple[str, ...] = ("-m", "pdctl.router")
) -> AsyncIterator[Process]:
    env = {**os.environ, **(line.env if line else {})}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, *flags, stderr=asyncio.subprocess.PIPE, env=env,
        pass_fds=line.fds if line else (),
    )  # fmt: skip
    made = Process(process)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await made.wait()


@contextlib.asynccontextmanager
async def deployment(
    *flags: str, program: tuple[str, ...] = ("-m", "pdctl.router")
) -> AsyncIterator[tuple[Process, Worker, Worker]]:
    prefill, decode = await Worker("prefill").start(), await Worker("decode").start()
    try:
        workers = ("--prefill", prefill.url, "--decode", decode.url)
        async with router("--port", "0", *workers, *flags, program=program) as process:
            await process.listening()
            await until(lambda: process.log.count(" usable") == 2, "both workers to be usable")
            yield process, prefill, decode
    finally:
        await prefill.stop()
        await decode.stop()
        await until(lambda: not prefill.connections + decode.connections, "all connections to end")
