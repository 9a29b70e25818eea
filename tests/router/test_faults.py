"""Legs that fail, hang or are given up: what is retried, what the client is told, and who else is told."""

from __future__ import annotations

import asyncio

import pytest

from pdctl.router import attempt as attempt_module
from pdctl.router import upstream
from pdctl.router.router_args import Origin
from pdctl.router.upstream import ConnectionPool, UpstreamError, ask
from tests.cases import for_each
from tests.router.fleet import Fleet, fleet, until
from tests.router.workers import Asked, Way, close, fine, hang, sends, status

OPENING = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
FAILURES = {
    "500": status(500),
    "503": status(503),
    "closed": close,
    "garbage": sends(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "cut short": sends(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"),
    "endless head": sends(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000),
    "trailers": sends(OPENING + b"2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 60_000, hang),
    "endless trailer": sends(OPENING + b"2\r\n{}\r\n0\r\nx: " + b"y" * 300_000, hang),
    "redirect": sends(b"HTTP/1.1 307 X\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"),
}


@for_each("failure", list(FAILURES))
@for_each("leg", ["prefill", "decode"])
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


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_answer_that_is_held_has_a_largest_size(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "MAX_ANSWER", 1000)

    async def scenario() -> None:
        async with fleet(2, 2) as made:
            first = (made.prefills if role == "prefill" else made.decodes)[0]
            first.script = [sends(b"HTTP/1.1 200 OK\r\ncontent-length: 90000\r\n\r\n" + b"x" * 89_999, hang)]
            answer = await made.generate({"text": "hi", "return_logprob": True})
            assert (answer.status, answer.headers["x-pd-attempts"]) == (200, "2")
            assert first.url not in answer.pair

    asyncio.run(scenario())


def test_a_worker_may_not_answer_the_routers_questions_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with fleet() as made:
            worker = made.prefills[0]
            pool = ConnectionPool(Origin.parse(worker.url), idle_timeout=10.0, connect_timeout=5.0)
            assert (await ask(pool, "GET", "/server_info", timeout=5.0)).status == 200
            monkeypatch.setattr(upstream, "MAX_REPLY", 10)
            with pytest.raises(UpstreamError, match="more than 10 bytes"):
                await ask(pool, "GET", "/server_info", timeout=5.0)
            pool.close()

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
            made.decodes[0].script = [sends(b"HTTP/1.1 503 X\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n")]
            assert (await made.generate()).headers["retry-after"] == "7"  # the engine knows its queue best

    asyncio.run(scenario())


@for_each(
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
            made.decodes[0].usual = hang  # it has no token before its prefill is through
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
                    await until(
                        lambda: all(len(worker.generations) == 2 for worker in made.workers), "all legs to begin"
                    )

                def left() -> list[Asked]:
                    return [one for worker in made.workers for one in worker.generations if one.hung_up]

                await until(lambda: len(left()) == 2, "the first request's legs to be closed")
                assert {one.body["rid"] for one in left()} == {"job-1"}
            await until(lambda: all(worker.aborts == ["job-12"] for worker in made.workers), "the second to be aborted")

    asyncio.run(scenario())


def test_a_retry_waits_for_the_abort_of_the_same_rid() -> None:
    async def scenario() -> None:
        async with fleet(2, 1) as made:

            async def fail_after_the_decode_was_asked(way: Way) -> None:
                await until(lambda: bool(made.decodes[0].generations), "the decode is asked")
                await status(500)(way)

            made.prefills[0].script = [fail_after_the_decode_was_asked]
            made.decodes[0].script = [hang]
            answer = await made.generate({"text": "x", "rid": "same"})
            assert answer.status == 200
            decode = [one.path for one in made.decodes[0].asked if one.path in ("/generate", "/abort_request")]
            assert decode == ["/generate", "/abort_request", "/generate"]

    asyncio.run(scenario())


async def breakers(made: Fleet) -> dict[str, str]:
    return {pair["prefill"]: pair["breaker"] for pair in (await made.get("/workers"))["pairs"]}


def test_a_breaker_opens_for_its_pair_alone() -> None:
    async def scenario() -> None:
        async with fleet(2, 1, cb_failure_threshold=2, cb_timeout=600.0) as made:
            bad, good = made.prefills
            bad.usual = status(500)
            for _ in range(4):
                assert (await made.generate()).status == 200
            assert await breakers(made) == {bad.url: "open", good.url: "closed"}
            seen = len(bad.generations)
            assert {(await made.generate()).pair[0] for _ in range(4)} == {good.url}
            assert len(bad.generations) == seen

    asyncio.run(scenario())


def test_a_breaker_closes_after_a_good_trial() -> None:
    async def scenario() -> None:
        async with fleet(2, 1, cb_failure_threshold=2, cb_timeout=0.05) as made:
            bad, _ = made.prefills
            bad.usual = status(500)

            async def opened() -> bool:
                await made.generate()
                return (await breakers(made))[bad.url] != "closed"

            async def closed() -> bool:
                await made.generate()
                return (await breakers(made))[bad.url] == "closed"

            await until(opened, "the breaker to open")
            bad.usual = fine
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
