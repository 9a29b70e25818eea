"""What a worker must show before it gets requests, and what is said of one that does not."""

from __future__ import annotations

import asyncio

from pdctl.router.router_args import BootstrapCheck
from tests.router.fleet import Fleet, fleet, until
from tests.router.workers import Worker


async def reason(made: Fleet, worker: Worker, expected: str) -> dict:
    """Its /workers entry, once the reason names what is expected."""
    entry: dict = {}

    async def told() -> bool:
        entry.update(await made.worker(worker))
        return expected in str(entry["reason"])

    await until(told, f"the reason to say {expected!r}, last {entry.get('reason')!r}")
    return entry


async def refused(made: Fleet, worker: Worker, expected: str) -> None:
    """It is not routed to, and /workers, /readiness and the 503 all say why."""
    entry = await reason(made, worker, expected)
    assert not entry["routable"]
    readiness = await made.ask("GET", "/readiness")
    assert readiness.status == 503
    assert expected in str(readiness.json()["reasons"])
    answer = await made.generate()
    assert answer.status == 503
    assert expected in answer.json()["error"]["message"]
    assert worker.url in answer.json()["error"]["message"]
    assert not worker.generations


def test_missing_ports_are_read_from_the_prefills() -> None:
    async def scenario() -> None:
        async with fleet(2, 1) as made:
            for _ in range(4):
                assert (await made.generate()).status == 200
            for prefill in made.prefills:
                assert [one.body["bootstrap_port"] for one in prefill.generations] == [prefill.bootstrap.port] * 2
                entry = await made.worker(prefill)
                assert (entry["bootstrap_port"], entry["bootstrap_port_source"]) == (
                    prefill.bootstrap.port,
                    "server_info",
                )
                assert entry["reason"] is None
            sent = {one.body["bootstrap_port"] for one in made.decodes[0].generations}
            assert sent == {prefill.bootstrap.port for prefill in made.prefills}
            assert "bootstrap_port" not in await made.worker(made.decodes[0])

    asyncio.run(scenario())


def test_given_ports_are_taken_and_checked() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, ports=True) as made:
            entry = await made.worker(made.prefills[0])
            assert (entry["bootstrap_port"], entry["bootstrap_port_source"]) == (
                made.prefills[0].bootstrap.port,
                "flag",
            )
            assert made.prefills[0].bootstrap.queries[0] == "/health"

    asyncio.run(scenario())


def test_an_old_prefill_is_understood() -> None:
    async def prepare(prefills: list[Worker], decodes: list[Worker]) -> None:
        prefills[0].info_paths = decodes[0].info_paths = ("/get_server_info",)
        prefills[0].bootstrap.old = True

    async def scenario() -> None:
        async with fleet(prepare=prepare) as made:
            assert (await made.generate()).status == 200
            queries = made.prefills[0].bootstrap.queries
            assert "prefill_dp_rank=-1" in queries[1]
            assert "engine_rank=-1" in queries[2]

    asyncio.run(scenario())


def test_a_prefill_that_does_not_tell_its_port_is_refused() -> None:
    async def prepare(prefills: list[Worker], decodes: list[Worker]) -> None:
        del prefills[0].info["disaggregation_bootstrap_port"]

    async def scenario() -> None:
        async with fleet(prepare=prepare, ready=False) as made:
            await refused(made, made.prefills[0], "bootstrap port unknown")
            entry = await made.worker(made.prefills[0])
            assert entry["bootstrap_port"] is None
            assert entry["bootstrap_port_source"] is None

    asyncio.run(scenario())


def test_swapped_roles_are_refused() -> None:
    async def prepare(prefills: list[Worker], decodes: list[Worker]) -> None:
        prefills[0].info["disaggregation_mode"] = "decode"

    async def scenario() -> None:
        async with fleet(prepare=prepare, ready=False) as made:
            await refused(made, made.prefills[0], "roles swapped: it runs with --disaggregation-mode decode")

    asyncio.run(scenario())


def test_the_role_an_engine_has_now_counts() -> None:
    """Started as a decode, switched since: only the states of its schedulers tell (sglang 0.5.23)."""

    async def prepare(prefills: list[Worker], decodes: list[Worker]) -> None:
        prefills[0].info.update(disaggregation_mode="decode", internal_states=[{"disaggregation_mode": "prefill"}])
        decodes[0].info["internal_states"] = [{"disaggregation_mode": "prefill"}]

    async def scenario() -> None:
        async with fleet(prepare=prepare, ready=False) as made:
            await refused(made, made.decodes[0], "roles swapped: it runs with --disaggregation-mode prefill")

            async def usable() -> bool:
                return bool((await made.worker(made.prefills[0]))["is_healthy"])

            await until(usable, "the prefill that was a decode")

    asyncio.run(scenario())


def test_an_engine_without_disaggregation_is_refused() -> None:
    async def prepare(prefills: list[Worker], decodes: list[Worker]) -> None:
        decodes[0].info["disaggregation_mode"] = "null"

    async def scenario() -> None:
        async with fleet(prepare=prepare, ready=False) as made:
            await refused(made, made.decodes[0], "--disaggregation-mode null, not decode")

    asyncio.run(scenario())


def test_a_given_port_that_the_prefill_denies_is_refused() -> None:
    async def prepare(prefills: list[Worker], decodes: list[Worker]) -> None:
        prefills[0].info["disaggregation_bootstrap_port"] = 1

    async def scenario() -> None:
        async with fleet(prepare=prepare, ready=False, ports=True) as made:
            port = made.prefills[0].bootstrap.port
            await refused(made, made.prefills[0], f"bootstrap port {port} was given, but its /server_info says 1")

    asyncio.run(scenario())


def test_a_bootstrap_server_that_is_down_is_named_and_asked_again() -> None:
    async def prepare(prefills: list[Worker], decodes: list[Worker]) -> None:
        await prefills[0].bootstrap.stop()

    async def scenario() -> None:
        async with fleet(prepare=prepare, ready=False) as made:
            await refused(
                made, made.prefills[0], f"bootstrap server http://127.0.0.1:{made.prefills[0].bootstrap.port}"
            )
            fresh = await type(made.prefills[0].bootstrap)(made.prefills[0]).start()
            made.prefills[0].info["disaggregation_bootstrap_port"] = fresh.port
            made.prefills[0].bootstrap = fresh
            await made.ready(1)
            assert (await made.generate()).status == 200

    asyncio.run(scenario())


def test_a_bootstrap_server_that_only_decodes_can_reach_may_be_noted_only() -> None:
    async def prepare(prefills: list[Worker], decodes: list[Worker]) -> None:
        await prefills[0].bootstrap.stop()

    async def scenario() -> None:
        async with fleet(prepare=prepare, ports=True, bootstrap_check=BootstrapCheck.WARN) as made:
            assert (await made.generate()).status == 200
            assert "no connection" in (await made.worker(made.prefills[0]))["reason"]

    asyncio.run(scenario())


def test_ranks_that_are_not_registered_are_waited_for() -> None:
    for old in (False, True):

        async def prepare(prefills: list[Worker], decodes: list[Worker], old: bool = old) -> None:
            prefills[0].bootstrap.old = old
            prefills[0].bootstrap.registered = False

        async def scenario(old: bool = old) -> None:
            async with fleet(prepare=prepare, ready=False) as made:
                await refused(
                    made, made.prefills[0], "no rank is registered yet" if old else "not fully registered yet"
                )
                made.prefills[0].bootstrap.registered = True
                await made.ready(1)

        asyncio.run(scenario())


def test_the_bootstrap_server_of_another_prefill_is_recognised() -> None:
    async def prepare(prefills: list[Worker], decodes: list[Worker]) -> None:
        prefills[1].info["disaggregation_bootstrap_port"] = prefills[0].bootstrap.port

    async def scenario() -> None:
        async with fleet(2, 1, prepare=prepare, ready=False) as made:
            await reason(made, made.prefills[1], "belongs to another prefill: HTTP port")
            await made.ready(1)

    asyncio.run(scenario())


def test_two_old_prefills_cannot_share_a_bootstrap_address() -> None:
    async def prepare(prefills: list[Worker], decodes: list[Worker]) -> None:
        prefills[0].bootstrap.old = True
        prefills[1].info["disaggregation_bootstrap_port"] = prefills[0].bootstrap.port

    async def scenario() -> None:
        async with fleet(2, 1, prepare=prepare, ready=False) as made:
            await made.ready(1)

            async def one_refused() -> bool:
                entries = [await made.worker(one) for one in made.prefills]
                return sorted(" is already that of " in str(one["reason"]) for one in entries) == [False, True]

            await until(one_refused, "one of the twins to be refused")

    asyncio.run(scenario())


def test_a_worker_that_is_down_is_found_when_it_comes() -> None:
    async def scenario() -> None:
        async with fleet(2, 1) as made:
            port = made.prefills[0].port
            await made.prefills[0].stop()
            await reason(made, made.prefills[0], "health checks failed in a row")
            await made.ready(1)
            for _ in range(3):
                assert (await made.generate()).status == 200
            made.prefills[0] = await Worker("prefill").start(port)
            await made.ready(2)
            entry = await made.worker(made.prefills[0])
            assert entry["bootstrap_port"] == made.prefills[0].bootstrap.port, "a restart may move the port"

    asyncio.run(scenario())


def test_an_ill_worker_is_left_out_until_it_is_well() -> None:
    async def scenario() -> None:
        async with fleet(1, 2) as made:
            made.decodes[0].healthy = 503
            await reason(made, made.decodes[0], "3 health checks failed in a row: /health answered 503")
            assert {(await made.generate()).pair[1] for _ in range(4)} == {made.decodes[1].url}
            made.decodes[0].healthy = 200
            await made.ready(2)

    asyncio.run(scenario())


def test_garbage_instead_of_server_info_is_a_reason_not_a_crash() -> None:
    async def prepare(prefills: list[Worker], decodes: list[Worker]) -> None:
        prefills[0].info_paths = ()
        decodes[0].info = {"disaggregation_mode": 7, "page_size": "x", "tp_size": None}

    async def scenario() -> None:
        async with fleet(prepare=prepare, ready=False) as made:
            await refused(made, made.prefills[0], "it has no /server_info")
            assert (await made.worker(made.decodes[0]))["is_healthy"]

    asyncio.run(scenario())
