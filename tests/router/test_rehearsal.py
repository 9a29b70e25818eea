"""The router that makes real routers' mistakes on request: what it sends, whom it believes, and how it says so."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pdctl.router.router_args import Incident, misled, parse, start_lines
from tests.cases import for_each
from tests.router.fleet import fleet, until
from tests.router.workers import Worker, after, fine, hang, status

TWO = "--prefill http://a:1 7001 --prefill http://b:1 7002 --decode http://c:1"


def test_a_missing_port_is_sent_as_null_and_the_key_is_left_out() -> None:
    async def scenario() -> None:
        async with fleet(2, 1, ports=True, rehearse="missing-bootstrap-port") as made:
            assert (await made.generate()).status == 200
            assert (await made.generate({"text": ["a", "b"]})).status == 200
            prefill, decode = made.prefills[0], made.decodes[0]
            single, batch = prefill.generations[0].body, made.prefills[1].generations[0].body
            assert (single["bootstrap_host"], single["bootstrap_port"]) == ("127.0.0.1", None)
            assert batch["bootstrap_port"] == [None, None]
            assert [one.body for one in decode.generations] == [single, batch]
            for worker in made.prefills:
                entry = await made.worker(worker)
                assert not {"bootstrap_port", "bootstrap_host", "bootstrap_port_source"} & entry.keys()
                assert entry["metadata"]["disaggregation_mode"] == "prefill"
                assert worker.bootstrap is not None
                assert worker.bootstrap.queries == [], "its bootstrap server was asked"
            record = (await made.get("/rooms"))["rooms"][0]
            assert record["bootstrap"] == "127.0.0.1:None"
            canary = await made.get("/health_generate")
            assert canary["status"] == "ok"
            assert decode.generations[-1].body["bootstrap_port"] is None

    asyncio.run(scenario())


def test_the_cure_of_a_real_router_works_here_too() -> None:
    """Delete the worker, wait until it is gone, add it with its port."""

    async def scenario() -> None:
        async with fleet(rehearse="missing-bootstrap-port") as made:
            prefill = made.prefills[0]
            entry = await made.worker(prefill)
            await made.ask("DELETE", f"/workers/{entry['id']}")
            assert prefill.bootstrap is not None
            spec = {"url": prefill.url, "worker_type": "prefill", "bootstrap_port": prefill.bootstrap.port}
            assert (await made.ask("POST", "/workers", spec)).status == 202
            await made.ready(1)
            await made.generate()
            assert prefill.generations[-1].body["bootstrap_port"] == prefill.bootstrap.port

    asyncio.run(scenario())


@pytest.mark.parametrize("incident", [one.value for one in Incident])
def test_it_is_marked_wherever_the_router_speaks_of_itself(incident: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pdctl.router")
    word = incident + ("=4" if incident == "wrong-bootstrap-port" else "")

    async def scenario() -> None:
        async with fleet(2, 1, ports=True, rehearse=word) as made:
            for path in ("/readiness", "/workers", "/server_info", "/get_server_info"):
                assert (await made.get(path))["pdctl_rehearsal"] == [word], path

    asyncio.run(scenario())
    loud = next(record for record in caplog.records if record.getMessage().startswith(f"REHEARSAL: {word}: "))
    assert loud.levelno == logging.WARNING


def test_nothing_is_marked_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pdctl.router")

    async def scenario() -> None:
        async with fleet() as made:
            for path in ("/readiness", "/workers", "/server_info"):
                assert "pdctl_rehearsal" not in await made.get(path)

    asyncio.run(scenario())
    assert not [one for one in caplog.messages if "REHEARSAL" in one or "Starting router" in one]


def test_a_wrong_port_is_believed_and_shown() -> None:
    async def scenario() -> None:
        async with fleet(2, 1, ports=True, rehearse="wrong-bootstrap-port=9") as made:
            for _ in range(2):
                await made.generate()
            first, second = made.prefills
            assert second.bootstrap is not None
            assert first.generations[0].body["bootstrap_port"] == (await made.worker(first))["bootstrap_port"] == 9
            assert second.generations[0].body["bootstrap_port"] == second.bootstrap.port

    asyncio.run(scenario())


def test_roles_are_believed_too() -> None:
    """sglang-router 0.3.2 takes the command line's word; /workers shows the contradiction."""

    async def lie(prefills: list[Worker], decodes: list[Worker]) -> None:
        prefills[0].info["disaggregation_mode"] = "decode"

    async def scenario() -> None:
        async with fleet(ports=True, prepare=lie, rehearse="wrong-bootstrap-port=9") as made:
            assert (await made.worker(made.prefills[0]))["metadata"]["disaggregation_mode"] == "decode"

    asyncio.run(scenario())


def test_swapped_ports_go_round() -> None:
    args = parse([*TWO.split(), *["--prefill", "http://d:1", "7003", "--rehearse", "swapped-bootstrap-ports"]])
    assert [one.bootstrap_port for one in misled(args)] == [7002, 7003, 7001]
    assert [one.bootstrap_port for one in args.prefill] == [7001, 7002, 7003]


@pytest.mark.parametrize("failing", ["prefill", "decode"])
def test_the_other_leg_is_waited_for(failing: str) -> None:
    async def scenario() -> None:
        async with fleet(ports=True, rehearse="wait-for-both-legs", retries=0) as made:
            bad, slow = (made.prefills[0], made.decodes[0])[:: 1 if failing == "prefill" else -1]
            bad.script, slow.script = [status(500)], [after(0.2, status(503))]
            answer = await made.generate()
            assert (answer.status, answer.json()["error"]["code"]) == (502, f"{failing}_status")
            assert not slow.generations[0].hung_up
            assert slow.aborts == []
            legs = (await made.get("/rooms"))["rooms"][0]["legs"]
            assert {name: leg["status"] for name, leg in legs.items()} == {
                failing: 500, ("decode" if failing == "prefill" else "prefill"): 503
            }  # fmt: skip
            slow.script = [after(0.1, fine)]
            bad.script = [status(500)]
            assert (await made.generate()).status == 502, "one good leg is not enough"
            assert (await made.generate()).status == 200

    asyncio.run(scenario())


def test_a_stream_that_begins_with_an_error_is_not_taken_for_an_answer() -> None:
    async def broken(way: object) -> None:
        await way.stream([b'data: {"error": {"message": "x", "code": 500}}\n\n'])  # type: ignore[attr-defined]

    async def scenario() -> None:
        async with fleet(ports=True, rehearse="wait-for-both-legs", retries=0) as made:
            made.decodes[0].script, made.prefills[0].script = [broken], [after(0.1, fine)]
            answer = await made.generate({"text": "hi", "stream": True})
            assert (answer.status, answer.json()["error"]["code"]) == (502, "decode_stream_error")

    asyncio.run(scenario())


def test_waiting_has_an_end() -> None:
    async def scenario() -> None:
        async with fleet(ports=True, rehearse="wait-for-both-legs", retries=0, request_timeout=0.3) as made:
            made.prefills[0].script, made.decodes[0].script = [status(500)], [hang]
            assert (await made.generate()).status == 502
            await until(lambda: made.decodes[0].generations[0].hung_up, "the hanging leg to be closed")
            made.prefills[0].script, made.decodes[0].script = [hang], [hang]
            assert (await made.generate()).status == 504

    asyncio.run(scenario())


def test_the_start_line_is_sglang_routers() -> None:
    """logs of sglang-router 0.3.2 without ports, with them, and with a wrong one."""
    line = start_lines(parse([*TWO.split(), "--rehearse", "missing-bootstrap-port"]))[1]
    assert line == (
        'REHEARSAL: Starting router on 127.0.0.1:8000 | mode: PrefillDecode { prefill_urls: [("http://a:1", None), '
        '("http://b:1", None)], decode_urls: ["http://c:1"], prefill_policy: None, decode_policy: None } | '
        "policy: RoundRobin | max_payload: 512MB"
    )
    flags = "--rehearse wrong-bootstrap-port=9999 --prefill-policy power_of_two"
    line = start_lines(parse([*TWO.split(), *flags.split()]))[1]
    assert 'prefill_urls: [("http://a:1", Some(9999)), ("http://b:1", Some(7002))]' in line
    assert "prefill_policy: Some(PowerOfTwo), decode_policy: None" in line


@for_each(
    ("line", "message"),
    [
        ("--rehearse missing-port", "--rehearse missing-port: no such rehearsal; there are missing-bootstrap-port, "),
        ("--rehearse wrong-bootstrap-port", "write wrong-bootstrap-port=PORT"),
        ("--rehearse wrong-bootstrap-port=0", "write wrong-bootstrap-port=PORT"),
        ("--rehearse missing-bootstrap-port=1", "write missing-bootstrap-port alone"),
        ("--rehearse swapped-bootstrap-ports", "two prefills with their ports are needed"),
        ("--prefill http://a:1 --prefill http://b:1 5 --rehearse swapped-bootstrap-ports", "with their ports"),
    ],
)
def test_mistakes_are_named(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(line.split())
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_the_help_has_a_heading_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    assert "\nrehearsal:\n" in text
    for incident in Incident:
        assert f"  {incident.value}" in text
