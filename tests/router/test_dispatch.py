"""One request on its way: both legs, retries, deadlines, and who is told when it ends early."""

from __future__ import annotations

import asyncio
import json

import pytest

from pdctl.router.body import MAX_ROOM
from tests.cases import for_each
from tests.router.fleet import fleet
from tests.router.workers import Way, after


def test_both_legs_get_the_same_body_and_the_answer_is_decodes() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            answer = await made.generate({"text": "hi", "unknown": {"x": [1.0]}, "rid": "r-1"})
            assert (answer.status, answer.json()["text"]) == (200, "decode")
            prefill, decode = made.prefills[0].generations[0], made.decodes[0].generations[0]
            assert prefill.raw == decode.raw
            assert prefill.raw.startswith(b'{"text": "hi", "unknown": {"x": [1.0]}, "rid": "r-1",')
            assert prefill.body["bootstrap_host"] == "127.0.0.1"
            assert 1 <= prefill.body["bootstrap_room"] <= MAX_ROOM
            assert answer.room == prefill.body["bootstrap_room"]
            assert answer.pair == (made.prefills[0].url, made.decodes[0].url)
            assert answer.headers["x-pd-attempts"] == "1"

    asyncio.run(scenario())


def test_every_request_has_a_fresh_room() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            answers = await asyncio.gather(*(made.generate() for _ in range(30)))
            assert len({answer.room for answer in answers}) == 30

    asyncio.run(scenario())


def test_headers_pass_both_ways() -> None:
    async def answer(way: Way) -> None:
        await way.send(
            b"HTTP/1.1 201 X\r\nContent-Type: text/x\r\nX-Custom: yes\r\nx-request-id: other\r\n"
            b"Keep-Alive: timeout=5\r\ncontent-length: 2\r\n\r\nok"
        )

    async def scenario() -> None:
        async with fleet() as made:
            made.decodes[0].script = [answer]
            given = {"authorization": "Bearer k", "x_request_id": "mine-1", "traceparent": "00-1", "x_tenant": "t"}
            got = await made.generate(**given, connection="keep-alive, x-hop", x_hop="1", te="trailers")
            assert (got.status, got.body, got.headers["content-type"]) == (201, b"ok", "text/x")
            assert got.headers["x-custom"] == "yes"
            assert got.headers["x-request-id"] == "mine-1"
            assert "keep-alive" not in got.headers
            for worker in made.workers:
                sent = worker.generations[0].headers
                assert (sent["authorization"], sent["x-request-id"], sent["traceparent"]) == (
                    "Bearer k",
                    "mine-1",
                    "00-1",
                )
                assert sent["x-tenant"] == "t"
                assert sent["host"] == f"127.0.0.1:{worker.port}"
                assert not {"x-hop", "te", "connection"} & set(sent)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, "application/json"),
        ({"content_type": "application/x-www-form-urlencoded"}, "application/json"),
        ({"content_type": "application/json; charset=utf-8"}, "application/json; charset=utf-8"),
    ],
)
def test_workers_are_told_that_it_is_json(given: dict, sent: str) -> None:
    async def scenario() -> None:
        async with fleet() as made:
            await made.generate(**given)
            assert [worker.generations[0].headers["content-type"] for worker in made.workers] == [sent] * 2

    asyncio.run(scenario())


def test_a_request_id_that_could_forge_a_log_line_is_replaced() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            answer = await made.generate(x_request_id="a b\tc")
            assert len(answer.headers["x-request-id"]) == 32
            assert made.decodes[0].generations[0].headers["x-request-id"] == answer.headers["x-request-id"]

    asyncio.run(scenario())


def test_query_and_method_pass() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            assert (await made.ask("PUT", "/generate?a=1&b=%20", {"text": "x"})).status == 200
            asked = made.decodes[0].generations[0]
            assert (asked.method, asked.target) == ("PUT", "/generate?a=1&b=%20")

    asyncio.run(scenario())


def test_a_batch_gets_one_room_per_item() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            answer = await made.generate({"text": ["a", "b", "c"]})
            sent = made.prefills[0].generations[0].body
            assert sent == made.decodes[0].generations[0].body
            assert len(answer.json()) == len(set(sent["bootstrap_room"])) == 3
            assert sent["bootstrap_port"] == [made.prefills[0].bootstrap.port] * 3
            assert answer.headers["x-pd-room"] == ",".join(map(str, sent["bootstrap_room"]))
            for room in sent["bootstrap_room"]:
                assert (await made.get(f"/rooms/{room}"))["rooms"] == sent["bootstrap_room"]

    asyncio.run(scenario())


def test_two_by_two_meets_all_four_pairs() -> None:
    async def scenario() -> None:
        async with fleet(2, 2) as made:
            pairs = [(await made.generate()).pair for _ in range(8)]
            assert len(set(pairs)) == 4
            assert all(pairs.count(pair) == 2 for pair in pairs)

    asyncio.run(scenario())


def test_connections_to_workers_are_reused() -> None:
    async def scenario() -> None:
        async with fleet(health_interval=60.0) as made:
            for _ in range(20):
                assert (await made.generate()).status == 200
            assert made.decodes[0].connections <= 2

    asyncio.run(scenario())


def test_an_answer_that_ends_with_its_connection_is_complete() -> None:
    async def scenario() -> None:
        async def old(way: Way) -> None:
            await way.send(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}")
            way.finish()

        async with fleet() as made:
            made.decodes[0].script = [old]
            answer = await made.generate()
            assert (answer.status, answer.body) == (200, b"{}")

    asyncio.run(scenario())


def test_prompt_logprobs_come_from_the_prefill() -> None:
    def with_logprobs(mine: list[float]) -> object:
        async def answer(way: Way) -> None:
            await way.json(200, {"text": way.worker.role, "meta_info": {"input_token_logprobs": mine}})

        return answer

    async def scenario() -> None:
        async with fleet() as made:
            made.prefills[0].script = [after(0.05, with_logprobs([-0.1, -0.2]))]
            made.decodes[0].script = [with_logprobs([-0.3])]
            answer = (await made.generate({"text": "x", "return_logprob": True})).json()
            assert answer == {"text": "decode", "meta_info": {"input_token_logprobs": [-0.1, -0.2, -0.3]}}

    asyncio.run(scenario())


def test_a_body_of_several_megabytes_passes() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            body = {"input_ids": list(range(600_000))}
            assert (await made.generate(body)).status == 200
            assert made.decodes[0].generations[0].body["input_ids"] == body["input_ids"]

    asyncio.run(scenario())


@pytest.mark.parametrize(("encoding", "ok"), [("identity", True), ("gzip", False)])
def test_a_compressed_body_is_refused(encoding: str, ok: bool) -> None:
    async def scenario() -> None:
        async with fleet() as made:
            answer = await made.generate(content_encoding=encoding)
            assert answer.status == (200 if ok else 400)
            assert ok or "compressed" in answer.json()["error"]["message"]

    asyncio.run(scenario())


def test_invalid_json_reaches_no_worker() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            answer = await made.ask("POST", "/v1/completions", b'{"prompt": }')
            assert answer.status == 400
            assert "line 1 column 12" in answer.json()["error"]["message"]
            assert not made.decodes[0].generations
            assert json.loads(answer.body)["error"]["code"] == "invalid_body"

    asyncio.run(scenario())


def test_a_room_that_is_no_number_reaches_no_worker() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            answer = await made.generate({"text": "hi", "bootstrap_room": "abc"})
            assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_body")
            assert answer.json()["error"]["message"].startswith('bootstrap_room: the JSON string "abc"; an integer is')
            assert not made.decodes[0].generations
            assert (await made.generate({"text": "hi", "bootstrap_room": 5})).status == 200

    asyncio.run(scenario())


@for_each("rid", ["a\n[2026-11-22 21:00:00] Finish room=1", "a b", "a'b", "x" * 257, ["r-1", "a\x1b[2J"]])
@for_each("padding", [0, 1 << 19])
def test_a_rid_that_could_poison_a_log_reaches_no_worker(rid: object, padding: int) -> None:
    async def scenario() -> None:
        async with fleet() as made:
            answer = await made.generate({"text": "hi" + " " * padding, "rid": rid})
            assert answer.status == 400
            assert answer.json()["error"]["message"].startswith("rid must be 1 to 256 printable characters without")
            assert not any(worker.generations for worker in made.workers)

    asyncio.run(scenario())
