"""The router as a process: started, asked, stopped, and never left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

from pdctl.lifeline import Lifeline
from pdctl.logs.blocks import LINE
from pdctl.router.body import MAX_ITEMS
from pdctl.router.room_ledger import Record
from pdctl.trace.diagnose import diagnose
from pdctl.trace.room import RoomOutcome
from pdctl.trace.summaries import room_summaries
from pdctl.trace.tracer import Tracer
from tests.cases import for_each
from tests.router.fleet import Client, until
from tests.router.processes import PATIENCE, deployment, router
from tests.router.workers import Worker, after, fine, hang, status
from tests.trace.pasted import library

STAMPED = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\] ")


def test_it_serves_logs_every_room_and_drains_on_sigterm() -> None:
    async def scenario() -> None:
        async with deployment() as (process, _prefill, decode):
            async with Client(process.port) as client, Client(process.port) as slow:
                client.send("POST", "/generate", {"text": "x", "rid": "r-7"}, x_request_id="q-7")
                answer = await client.answer()
                assert answer.status == 200
                decode.script = [after(0.5, fine)]
                slow.send("POST", "/generate", {"text": "slow"})
                await until(lambda: len(decode.generations) == 2, "the slow request to begin")
                process.process.send_signal(signal.SIGTERM)
                await until(lambda: "Draining" in process.log, "the drain to begin")
                with pytest.raises(OSError, match=r"."):
                    await asyncio.open_connection("127.0.0.1", process.port)
                last = await slow.answer()
                assert (last.status, last.headers["connection"]) == (200, "close")
            assert await process.wait() == 0
            assert all(STAMPED.match(line) for line in process.log.splitlines()), process.log
            where = (
                f"room={answer.room} rid=r-7 request_id=q-7 attempt=1 prefill={answer.pair[0]} decode={answer.pair[1]}"
            )
            assert f"Dispatch {where} bootstrap=" in process.log
            assert f"Finish {where} status=200 outcome=ok prefill_ms=" in process.log

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "outcome", "codes"), [(200, RoomOutcome.OK, []), (400, RoomOutcome.REFUSED, ["PD718"])]
)
def test_every_room_of_a_large_batch_is_found_in_its_log(
    tmp_path: Path, code: int, outcome: RoomOutcome, codes: list[str]
) -> None:
    """Readers of logs cut lines at 64 KiB; rooms of 4,096 prompts take 69."""

    async def scenario() -> tuple[str, list[int]]:
        async with deployment() as (process, prefill, decode):
            if code != 200:
                prefill.usual = decode.usual = status(code)
            async with Client(process.port) as client:
                client.send("POST", "/generate", {"text": ["x"] * 4096})
                assert (await client.answer()).status == code
            process.process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            return process.log, prefill.generations[0].body["bootstrap_room"]

    log, rooms = asyncio.run(scenario())
    assert max(map(len, log.splitlines())) < LINE
    tracer = Tracer(library(tmp_path, router=log.encode()))
    found = {one.room: one.outcome for one in room_summaries(tracer)}
    assert found == dict.fromkeys(rooms, outcome)
    for room in (rooms[0], rooms[-1]):
        said = [event.row for event in tracer.trace(room).events]
        assert said == ["dispatch", "finish-ok" if code == 200 else "finish-refused"]
    assert [one.code for one in diagnose(tracer.library).findings] == codes


@for_each("rids", [(), ("one",), tuple("😀" * 256 for _ in range(MAX_ITEMS)), tuple(map(str, range(MAX_ITEMS + 1)))])
def test_no_line_about_a_batch_is_cut_and_rids_stand_beside_their_rooms(rids: tuple[str, ...]) -> None:
    rooms = tuple(2**53 - 1 - at for at in range(MAX_ITEMS))
    record = Record(
        rooms=rooms, request_id="q" * 128, rids=rids, path="/generate", stream=False, attempt=1,
        prefill="http://127.0.0.1:1", decode="http://127.0.0.1:2", bootstrap="127.0.0.1:3",
    )  # fmt: skip
    told: list[int] = []
    for line in record.where():
        assert len(line.encode()) < LINE - 4096
        found = re.match(r"room=([\d,]+) rid=(\S+) request_id=q+ attempt=1 ", line)
        assert found
        here = found[1].split(",")
        if len(rids) == len(rooms):
            assert found[2] == ",".join(rids[len(told) : len(told) + len(here)])
        told += map(int, here)
    assert told == list(rooms)


def test_a_second_signal_ends_it_at_once() -> None:
    async def scenario() -> None:
        async with deployment("--shutdown-grace-period-secs", str(5 * PATIENCE)) as (process, prefill, decode):
            prefill.usual = decode.usual = hang
            async with Client(process.port) as client:
                client.send("POST", "/generate", {"text": "x"})
                await until(lambda: bool(decode.generations), "the request to begin")
                process.process.send_signal(signal.SIGINT)
                await until(lambda: "Draining" in process.log, "the drain to begin")
                process.process.send_signal(signal.SIGINT)
                assert await process.wait() == 128 + signal.SIGINT
                await until(lambda: decode.generations[0].hung_up, "the leg to be closed")

    asyncio.run(scenario())


# What nobody foresaw, put into the router by hand: the method raises from its second call on, or a thread at once.
RAISING = """
import sys, threading
from pdctl.router import __main__, monitor, dispatch, server, router_process
def raising(owner, name, first):
    before, calls = getattr(owner, name), []
    def call(*words):
        calls.append(None)
        if len(calls) > first:
            raise KeyError("nobody foresaw")
        return before(*words)
    setattr(owner, name, call)
def fail():
    raise KeyError("nobody foresaw")
what = sys.argv.pop(1)
if what == "monitor":
    raising(monitor.Monitor, "_examine", 2)
elif what == "sweep":
    raising(server.ClientServer, "_sweep", 1)
elif what == "deadlines":
    raising(dispatch.Dispatcher, "_check_deadlines", 0)
else:
    before = router_process.RouterProcess.start
    async def start(self):
        threading.Thread(target=fail, name="reader").start()
        return await before(self)
    router_process.RouterProcess.start = start
sys.exit(__main__.main())
"""


@for_each(
    ("what", "named"),
    [
        ("monitor", r"the monitor of http://127\.0\.0\.1:\d+ ended"), ("sweep", "the sweep over silent clients ended"),
        ("deadlines", "the check of deadlines ended"), ("thread", "its thread reader ended"),
    ],
)  # fmt: skip
def test_it_ends_with_code_1_when_what_serves_all_has_ended(what: str, named: str) -> None:
    """It would go on: with a worker nobody looks at, requests nobody ends, clients nobody gives up."""

    async def scenario() -> None:
        prefill, decode = await Worker("prefill").start(), await Worker("decode").start()
        prefill.usual = decode.usual = hang
        flags = ("--port", "0", "--prefill", prefill.url, "--decode", decode.url, "--shutdown-grace", "0.2")
        try:
            async with router(what, *flags, "--probe-interval", "0.1", program=("-c", RAISING)) as process:
                if what == "deadlines":
                    await process.listening()
                    await until(lambda: process.log.count(" usable") == 2, "both workers to be usable")
                    async with Client(process.port) as client:
                        client.send("POST", "/generate", {"text": "x"})
                        await until(lambda: "Router ends: " in process.log, "the router to say why it ends")
                if what == "monitor":
                    await prefill.stop()
                assert await process.wait() == 1
                (line,) = re.findall(r"Router ends: (.*)", process.log)
                assert re.search(rf"{named} on KeyError: 'nobody foresaw'", line)
                assert "Traceback" in process.log
        finally:
            await prefill.stop()
            await decode.stop()

    asyncio.run(scenario())


def test_the_grace_is_bounded() -> None:
    async def scenario() -> None:
        async with deployment("--shutdown-grace", "0.2") as (process, prefill, decode):
            prefill.usual = decode.usual = hang
            async with Client(process.port) as client:
                client.send("POST", "/generate", {"text": "x"})
                await until(lambda: bool(decode.generations), "the request to begin")
                process.process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
            assert "1 clients left after --shutdown-grace 0.2 s" in process.log

    asyncio.run(scenario())


def test_a_taken_port_is_named() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            async with router("--port", str(port)) as process:
                assert await process.wait() == 1
                assert f"cannot listen on 127.0.0.1:{port}: " in process.log
                assert "choose another with --port" in process.log

    asyncio.run(scenario())


def test_it_ends_with_its_starter() -> None:
    async def scenario() -> None:
        line = Lifeline()
        async with router("--port", "0", line=line) as process:
            await process.listening()
            line.cut()
            assert await process.wait() == 1
        os.close(line.fds[0])

    asyncio.run(scenario())


def test_it_loads_neither_torch_nor_a_web_framework() -> None:
    heavy = ("torch", "numpy", "fastapi", "starlette", "uvicorn", "pydantic", "nixl", "zmq")
    code = f"import sys, pdctl.router.router_process; print([name for name in {heavy} if name in sys.modules])"

    async def scenario() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert out.decode().strip() == "[]"

    asyncio.run(scenario())
