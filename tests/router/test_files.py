"""A router that may open few files answers every client, says so at start, and blames no worker for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal

from tests.router.fleet import Client, fleet, until
from tests.router.processes import PATIENCE, deployment
from tests.router.workers import after, fine

FILES = 64
# `-n` sets both limits; exec leaves the router as the child of this process.
LIMITED = ("-c", f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES // 2}, {FILES})); "
           "os.execv(sys.executable, [sys.executable, '-m', 'pdctl.router', *sys.argv[1:]])")  # fmt: skip


def test_it_says_at_start_what_a_small_hard_limit_allows() -> None:
    async def scenario() -> None:
        async with deployment(program=LIMITED) as (process, _prefill, _decode):
            assert resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE) == (FILES, FILES)
            line = next(one for one in process.log.splitlines() if "hard limit" in one)
            assert line.endswith(
                "WARNING The hard limit of 64 open files allows 10 clients at once, not the 4096 of --max-connections; "
                "raise it (ulimit -Hn 12416), or give --max-connections 10"
            )
        async with deployment("--max-connections", "10", program=LIMITED) as (process, _prefill, _decode):
            assert "hard limit" not in process.log

    asyncio.run(scenario())


def test_more_clients_than_files_are_all_answered() -> None:
    async def scenario() -> None:
        async with deployment(program=LIMITED) as (process, prefill, decode):
            prefill.usual = decode.usual = after(0.2, fine)
            async with contextlib.AsyncExitStack() as stack:
                process.process.send_signal(signal.SIGSTOP)  # so that all of them wait when it looks
                clients = [await stack.enter_async_context(Client(process.port)) for _ in range(2 * FILES)]
                for client in clients:
                    client.send("POST", "/generate", {"text": "x"})
                process.process.send_signal(signal.SIGCONT)
                answers = [await asyncio.wait_for(client.answer(), PATIENCE) for client in clients]
            statuses = [one.status for one in answers]
            assert set(statuses) == {200, 503}
            assert b"clients at once are the most here" in next(one for one in answers if one.status == 503).body
            assert "WARNING Cannot accept clients: Too many open files (64 files may be open: ulimit -n)" in process.log
            assert process.log.count("WARNING Cannot accept") + process.log.count("WARNING Refuse") < FILES // 2

    asyncio.run(scenario())


def test_a_worker_is_not_blamed_for_the_routers_files() -> None:
    async def scenario() -> None:
        async with deployment("--retries", "0") as (process, prefill, decode):
            prefill.usual = decode.usual = after(0.2, fine)
            pid = process.process.pid
            _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            async with contextlib.AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(Client(process.port)) for _ in range(8)]
                for client in clients:
                    client.send("GET", "/health")
                    await client.answer()
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), hard))
                for client in clients:
                    client.send("POST", "/generate", {"text": "x"})
                answers = [await asyncio.wait_for(client.answer(), PATIENCE) for client in clients]
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
                refused = [one.json()["error"] for one in answers if one.status != 200]
                assert refused
                assert {one["code"] for one in refused} <= {"prefill_router_exhausted", "decode_router_exhausted"}
                assert "no connection: Too many open files in the router" in refused[0]["message"]
                assert "WARNING Cannot connect to http://" in process.log
                assert "unusable" not in process.log
                clients[0].send("POST", "/generate", {"text": "x"})
                assert (await asyncio.wait_for(clients[0].answer(), PATIENCE)).status == 200

    asyncio.run(scenario())


def test_a_client_that_has_just_come_is_not_closed_for_the_next() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, max_connections=4) as made:
            go = asyncio.Event()

            async def wait(way) -> None:
                await go.wait()
                await fine(way)

            made.decodes[0].usual = wait
            asked = [asyncio.create_task(made.generate()) for _ in range(5)]
            await until(lambda: sum(one.done() for one in asked) == 3, "three of five to be refused")
            go.set()
            answers = await asyncio.gather(*asked)
            assert sorted(one.status for one in answers) == [200, 200, 503, 503, 503]

    asyncio.run(scenario())
