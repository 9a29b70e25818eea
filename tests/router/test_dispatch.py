"""One request on its way: both legs, retries, deadlines, and who is told when it ends early."""

from __future__ import annotations

import asyncio
import json

import pytest

from pdctl.router.body import MAX_ROOM
from tests.router.fleet import Asked, Fleet, Way, after, close, fine, fleet, hang, sends, status, until


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
                assert (sent["authorization"], sent["x-request-id"], sent["traceparent"]) == ("Bearer k", "mine-1", "00-1")
                assert sent["x-tenant"] == "t"
                assert sent["host"] == f"127.0.0.1:{worker.port}"
                assert not {"x-hop", "te", "connection"} & set(sent)

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


FAILURES = {
    "500": status(500),
    "503": status(503),
    "closed": close,
    "garbage": sends(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "cut short": sends(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"),
    "endless head": sends(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000),
    "redirect": sends(b"HTTP/1.1 307 X\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"),
    "failed stream": sends(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 56\r\n\r\n"
        b'data: {"error": {"message": "KVTransferError", "code": 500}}'[:54] + b"\n\n"
    ),
}


@pytest.mark.parametrize("failure", [name for name in FAILURES if name != "failed stream"])
@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_a_failed_leg_is_retried_on_another_pair_with_a_new_room(leg: str, failure: str) -> None:
    async def scenario() -> None:
        async with fleet(2, 2) as made:
            first = (made.prefills if leg == "prefill" else made.decodes)[0]
            other = (made.decodes if leg == "prefill" else made.prefills)[0]
            first.script = [FAILURES[failure]]
            other.script = [hang]
            answer = await made.generate()
            assert answer.status == 200
            assert answer.headers["x-pd-attempts"] == "2"
            assert first.url not in answer.pair
            await until(lambda: other.generations[0].hung_up, "the other leg to be closed")
            rooms = {room for worker in made.workers for room in worker.rooms}
            assert len(rooms) == 2
            failed = next(room for room in rooms if room != answer.room)
            record = await made.get(f"/rooms/{failed}")
            assert (record["outcome"], record["attempt"]) == ("failed", 1)
            assert record["legs"][leg]["problem"]

    asyncio.run(scenario())


def test_a_dead_prefill_is_hidden_from_clients() -> None:
    async def scenario() -> None:
        async with fleet(2, 1, health_interval=60.0) as made:
            await made.prefills[0].stop()
            answers = await asyncio.gather(*(made.generate() for _ in range(20)))
            assert [answer.status for answer in answers] == [200] * 20
            assert {answer.pair[0] for answer in answers} == {made.prefills[1].url}

    asyncio.run(scenario())


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_the_clients_own_error_is_handed_on_at_once(leg: str) -> None:
    async def scenario() -> None:
        async with fleet(2, 2) as made:
            refusing, waiting = (made.prefills, made.decodes) if leg == "prefill" else (made.decodes, made.prefills)
            refusing[0].script = [status(400, "too long")]
            waiting[0].script = [hang]
            answer = await made.generate()
            assert (answer.status, answer.json()["error"]["message"]) == (400, "too long")
            assert answer.headers["x-pd-leg"] == leg
            await until(lambda: waiting[0].generations[0].hung_up, "the other leg to be closed")
            assert sum(len(worker.generations) for worker in made.workers) == 2, "no retry"
            pairs = (await made.get("/workers"))["pairs"]
            assert all(pair["failures_in_a_row"] == 0 for pair in pairs)

    asyncio.run(scenario())


def test_when_all_attempts_fail_the_answer_says_which_leg_and_how() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, retries=1, cb_failure_threshold=100) as made:
            made.prefills[0].usual = status(500, "out of memory")
            made.decodes[0].usual = hang
            answer = await made.generate()
            error = answer.json()["error"]
            assert (answer.status, error["code"]) == (502, "prefill_status")
            assert f"prefill {made.prefills[0].url} answered 500" in error["message"]
            assert "out of memory" in error["message"]
            assert answer.headers["x-pd-attempts"] == "2"
            assert len(set(made.prefills[0].rooms)) == 2

    asyncio.run(scenario())


def test_a_busy_engine_is_passed_on_as_503_with_retry_after() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, retries=0) as made:
            made.decodes[0].script = [status(503, "queue is full")]
            answer = await made.generate()
            assert (answer.status, answer.headers["retry-after"]) == (503, "2")
            assert "queue is full" in answer.json()["error"]["message"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("slow", "flag", "limits"),
    [
        ("prefill", "--prefill-timeout", {"prefill_timeout": 0.1}),
        ("decode", "--request-timeout", {"request_timeout": 0.1}),
        ("decode", "--first-byte-timeout", {"first_byte_timeout": 0.1}),
    ],
)
def test_deadlines_are_named(slow: str, flag: str, limits: dict) -> None:
    async def scenario() -> None:
        async with fleet(1, 1, retries=0, **limits) as made:
            worker = made.prefills[0] if slow == "prefill" else made.decodes[0]
            worker.usual = hang
            answer = await made.generate({"text": "x", "stream": True})
            assert answer.status == 504
            assert answer.json()["error"]["code"] == f"{slow}_deadline"
            assert flag in answer.json()["error"]["message"]
            await until(lambda: worker.generations[0].hung_up, "the late leg to be closed")

    asyncio.run(scenario())


def test_a_slow_prefill_fails_over_within_its_deadline() -> None:
    async def scenario() -> None:
        async with fleet(2, 1, prefill_timeout=0.1) as made:
            made.prefills[0].usual = hang
            answers = [await made.generate() for _ in range(2)]
            assert [answer.status for answer in answers] == [200, 200]
            assert {answer.pair[0] for answer in answers} == {made.prefills[1].url}

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_both_legs(stream: bool) -> None:
    async def scenario() -> None:
        async with fleet() as made:
            for worker in made.workers:
                worker.usual = hang
            async with made.client() as client:
                client.send("POST", "/generate", {"text": "x", "stream": stream, "rid": "left-1"})
                await until(lambda: all(worker.generations for worker in made.workers), "both legs to begin")
            await until(lambda: all(worker.generations[0].hung_up for worker in made.workers), "both legs to be closed")
            await until(lambda: all(worker.aborts == ["left-1"] for worker in made.workers), "both engines to be told")
            record = await made.get(f"/rooms/{made.decodes[0].rooms[0]}")
            assert record["outcome"] == "client_gone"
            assert (await made.get("/get_loads"))["workers"][0]["load"] == 0

    asyncio.run(scenario())


def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_both_legs() -> None:
    async def endless(way: Way) -> None:
        await way.stream([b"data: {}\n\n"] * 100_000, gap=0.005)

    async def scenario() -> None:
        async with fleet() as made:
            made.prefills[0].usual = hang_after_head
            made.decodes[0].usual = endless
            async with made.client() as client:
                client.send("POST", "/generate", {"text": "x", "stream": True})
                await client.head()
                assert await client.chunk()
            await until(lambda: made.prefills[0].generations[0].hung_up, "the prefill leg to be closed")

            async def idle() -> bool:
                return (await made.get("/get_loads"))["workers"][1]["load"] == 0

            await until(idle, "the decode leg to be closed")

    async def hang_after_head(way: Way) -> None:
        await way.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await way.hang()

    asyncio.run(scenario())


def test_engines_are_not_told_to_abort_a_rid_that_is_the_beginning_of_another() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            for worker in made.workers:
                worker.usual = hang
            async with made.client() as other:
                other.send("POST", "/generate", {"text": "x", "rid": "job-12"})
                async with made.client() as client:
                    client.send("POST", "/generate", {"text": "x", "rid": "job-1"})
                    await until(lambda: all(len(worker.generations) == 2 for worker in made.workers), "all legs to begin")

                def left() -> list[Asked]:
                    return [one for worker in made.workers for one in worker.generations if one.hung_up]

                await until(lambda: len(left()) == 2, "the first request's legs to be closed")
                assert {one.body["rid"] for one in left()} == {"job-1"}
            await until(lambda: all(worker.aborts == ["job-12"] for worker in made.workers), "the second to be aborted")

    asyncio.run(scenario())


def test_a_retry_waits_for_the_abort_of_the_same_rid() -> None:
    async def scenario() -> None:
        async with fleet(2, 1) as made:
            made.prefills[0].script = [status(500)]
            made.decodes[0].script = [hang]
            answer = await made.generate({"text": "x", "rid": "same"})
            assert answer.status == 200
            decode = [one.path for one in made.decodes[0].asked if one.path in ("/generate", "/abort_request")]
            assert decode == ["/generate", "/abort_request", "/generate"]

    asyncio.run(scenario())


def test_a_breaker_opens_for_its_pair_alone_and_closes_after_a_good_trial() -> None:
    async def breakers(made: Fleet) -> dict[str, str]:
        return {pair["prefill"]: pair["breaker"] for pair in (await made.get("/workers"))["pairs"]}

    async def scenario() -> None:
        async with fleet(2, 1, cb_failure_threshold=2, cb_timeout=0.2) as made:
            bad, good = made.prefills
            bad.usual = status(500)
            for _ in range(4):
                assert (await made.generate()).status == 200
            assert await breakers(made) == {bad.url: "open", good.url: "closed"}
            seen = len(bad.generations)
            assert {(await made.generate()).pair[0] for _ in range(4)} == {good.url}
            assert len(bad.generations) == seen
            bad.usual = fine

            async def closed() -> bool:
                await made.generate()
                return (await breakers(made))[bad.url] == "closed"

            await until(closed, "the breaker to close")

    asyncio.run(scenario())


def test_readiness_tells_of_open_breakers() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, cb_failure_threshold=2, cb_timeout=60.0, retries=1) as made:
            made.decodes[0].usual = status(500)
            assert (await made.generate()).status == 502
            readiness = await made.ask("GET", "/readiness")
            assert readiness.status == 503
            assert "breaker open after 2 failures in a row" in readiness.json()["reasons"][0]
            answer = await made.generate()
            assert (answer.status, answer.headers["retry-after"]) == (503, "2")
            assert "breaker open" in answer.json()["error"]["message"]

    asyncio.run(scenario())


def test_connections_to_workers_are_reused() -> None:
    async def scenario() -> None:
        async with fleet(health_interval=60.0) as made:
            for _ in range(20):
                assert (await made.generate()).status == 200
            assert len(made.decodes[0]._open) <= 2

    asyncio.run(scenario())


def test_an_answer_that_ends_with_its_connection_is_complete() -> None:
    async def scenario() -> None:
        async def old(way: Way) -> None:
            await way.send(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}")
            way._writer.close()

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
