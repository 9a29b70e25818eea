"""Who may change where users' prompts go."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from pdctl.deployment_secret import DeploymentSecret
from pdctl.http_auth import SIGNATURE, TOKEN, sign
from tests.cases import for_each
from tests.router.fleet import fleet
from tests.router.workers import Worker

if TYPE_CHECKING:
    from tests.router.fleet import Fleet

SECRET = DeploymentSecret.mint()


async def stranger(made: Fleet, **headers: str) -> tuple[int, bool]:
    """Try to be added as a decode; the answer, and whether a prompt came within eight requests."""
    thief = await Worker("decode").start()
    made.decodes.append(thief)
    answer = await made.ask("POST", "/workers", {"url": thief.url, "worker_type": "decode"}, **headers)
    if answer.status == 202:
        await made.ready(2)
    seen = {(await made.generate()).pair[1] for _ in range(8)}
    return answer.status, thief.url in seen


@for_each("headers", [{}, {"authorization": "Bearer client"}, {"authorization": "Bearer "}])
def test_prompts_do_not_flow_to_a_stranger(headers: dict[str, str]) -> None:
    async def scenario() -> None:
        async with fleet(1, 1, secret=SECRET) as made:
            assert await stranger(made, **headers) == (401, False)
            workers = (await made.get("/workers"))["workers"]
            assert (await made.ask("DELETE", f"/workers/{workers[0]['id']}", **headers)).status == 401
            assert (await made.ask("POST", "/flush_cache", **headers)).status == 401

    asyncio.run(scenario())


def test_whoever_knows_the_secret_changes_workers() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, secret=SECRET) as made:
            assert await stranger(made, authorization=f"Bearer {SECRET.token(TOKEN)}") == (202, True)
            new = await Worker("decode").start()
            made.decodes.append(new)
            body = json.dumps({"url": new.url, "worker_type": "decode"}).encode()
            signed = {SIGNATURE.replace("-", "_"): sign(SECRET, "POST", "/workers", body)}
            assert (await made.ask("POST", "/workers", body, **signed)).status == 202
            assert (await made.ask("POST", "/workers", body, **signed)).status == 401  # a recording of it

    asyncio.run(scenario())


def test_only_who_may_abort_a_request_or_names_it_sees_its_id() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, secret=SECRET) as made:
            room = (await made.generate({"text": "x", "rid": "victim-1"})).room
            for path in ("/rooms", f"/rooms/{room}", "/rooms?rid=victim", f"/rooms?room={room}"):
                assert "victim-1" not in (await made.ask("GET", path)).body.decode()
                assert (await made.ask("GET", path)).status == 200
            own = {"authorization": f"Bearer {SECRET.token(TOKEN)}"}
            for path, headers in (("/rooms", own), (f"/rooms/{room}", own), ("/rooms?rid=victim-1", {})):
                assert '"rid":"victim-1"' in (await made.ask("GET", path, **headers)).body.decode().replace(" ", "")

    asyncio.run(scenario())


def test_the_router_signs_what_it_orders_engines_and_nothing_else() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, secret=SECRET) as made:
            await made.generate()
            await made.ask("POST", "/flush_cache", authorization=f"Bearer {SECRET.token(TOKEN)}")
            for worker in (*made.prefills, *made.decodes):
                for asked in worker.asked:
                    names = {name.lower() for name in asked.headers}
                    assert (SIGNATURE in names) == (asked.path == "/flush_cache"), asked.path
                    assert SECRET.token(TOKEN) not in str(asked.headers)

    asyncio.run(scenario())


@pytest.mark.parametrize(("flag", "status"), [(False, 403), (True, 202)])
def test_without_any_key_only_this_machine_changes_workers(
    monkeypatch: pytest.MonkeyPatch, flag: bool, status: int
) -> None:
    async def scenario() -> None:
        async with fleet(1, 1, allow_unauthenticated_workers=flag) as made:
            assert (await stranger(made))[0] == 202  # from 127.0.0.1
            monkeypatch.setattr("pdctl.router.clients.Exchange.from_this_machine", False)
            assert (await stranger(made))[0] == status

    asyncio.run(scenario())
