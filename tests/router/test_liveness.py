"""An engine of pdctl that is gone is out of use long before its next health check."""

from __future__ import annotations

import asyncio

import pytest

from pdctl.router.router_args import RouterArgs
from tests.router.fleet import fleet, until
from tests.router.workers import Worker

SLOW = {"health_interval": 60.0, "probe_interval": 0.05, "liveness_interval": 0.05}


async def own(prefills: list[Worker], decodes: list[Worker]) -> None:
    for worker in (*prefills, *decodes):
        worker.ready, worker.info["version"] = 200, "pdctl-0.1"


def looks(worker: Worker, path: str) -> int:
    return sum(one.path == path for one in worker.asked)


@pytest.mark.parametrize("dies", [False, True])
def test_a_dead_engine_is_out_before_its_next_health_check(dies: bool) -> None:
    async def scenario() -> None:
        async with fleet(1, 2, prepare=own, **SLOW) as made:
            gone, stays = made.decodes
            before = len(gone.asked)
            if dies:
                await gone.stop()
            else:
                gone.ready, gone.healthy = 503, 503  # it lives, and serves nobody
            await until(lambda: any(not one.usable for one in made.router._registry.workers.values()), "it to be out")
            assert (await made.worker(stays))["is_healthy"]
            entry = await made.worker(gone)
            assert entry["reason"]
            assert {(await made.generate()).pair[1] for _ in range(4)} == {stays.url}
            if not dies:
                asked = [one.path for one in gone.asked[before:]]
                assert "/health" not in asked[: asked.index("/ready")]  # which is asked only after it is out
                gone.ready, gone.healthy = 200, 200
                await made.ready(2)

    asyncio.run(scenario())


def test_engines_that_are_not_ours_are_not_asked_what_they_do_not_know() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, **SLOW) as made:
            await asyncio.sleep(0.3)
            assert [looks(worker, "/ready") for worker in made.workers] == [0, 0]

    asyncio.run(scenario())


def test_within_a_second() -> None:
    assert RouterArgs().liveness_interval <= 0.5
