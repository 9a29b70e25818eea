"""Streams: byte for byte, held until they may begin, and ended in words the client understands."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from tests.cases import for_each
from tests.router.fleet import fleet, until
from tests.router.workers import SSE_HEAD, Behaviour, Way, after, events, hang, sends, status

STREAM = {"text": "x", "stream": True}


def stream(made: list[bytes], gap: float = 0.0) -> Behaviour:
    async def answer(way: Way) -> None:
        await way.stream(made, gap)

    return answer


def broken(made: list[bytes], tail: bytes = b"") -> Behaviour:
    """Some events, perhaps a part of one, and then nothing."""

    async def answer(way: Way) -> None:
        await way.send(SSE_HEAD)
        for event in made:
            await way.chunk(event)
        await way.send(tail)
        await asyncio.sleep(0.05)
        way.cut()

    return answer


@for_each("path", ["/generate", "/v1/chat/completions", "/v1/completions"])
def test_a_stream_passes_byte_for_byte(path: str) -> None:
    async def scenario() -> None:
        made_events = [f"data: {json.dumps({'t': 'é' * n})}\n\n".encode() for n in range(1, 40)] + [b"data: [DONE]\n\n"]
        async with fleet() as made:
            made.decodes[0].usual = stream(made_events)
            answer = await made.generate({"stream": True, "prompt": "x", "messages": []}, path)
            assert answer.status == 200
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.body == b"".join(made_events)
            assert answer.complete
            assert answer.pair == (made.prefills[0].url, made.decodes[0].url)

    asyncio.run(scenario())


def test_events_are_not_held_back() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            made.decodes[0].usual = stream(events(3), gap=0.05)
            async with made.client() as client:
                client.send("POST", "/generate", STREAM)
                await client.head()
                arrived = []
                while chunk := await client.chunk():
                    arrived.append((asyncio.get_running_loop().time(), chunk))
            assert [chunk for _, chunk in arrived] == events(3)
            gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(arrived)]
            assert min(gaps) > 0.02

    asyncio.run(scenario())


def test_nothing_is_sent_before_the_prefill_has_answered_or_decode_has_a_token() -> None:
    async def scenario() -> None:
        async with fleet(2, 1) as made:
            made.prefills[0].script = [after(0.05, status(500))]
            made.decodes[0].script = [stream([b"data: ha", b"lf an event"])]
            answer = await made.generate(STREAM)
            assert answer.headers["x-pd-attempts"] == "2"
            assert answer.body == b"".join(events())

    asyncio.run(scenario())


def test_a_token_does_not_wait_for_the_answer_of_the_prefill_that_made_it() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            made.prefills[0].script = [hang]
            answer = await made.generate(STREAM)
            assert (answer.status, answer.body) == (200, b"".join(events()))

    asyncio.run(scenario())


def test_a_prefill_that_fails_after_the_first_token_is_noted_only() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            made.prefills[0].script = [broken(events(1)[:1])]
            made.decodes[0].script = [stream(events(), gap=0.05)]
            answer = await made.generate(STREAM)
            assert (answer.status, answer.body) == (200, b"".join(events()))
            record = await made.get(f"/rooms/{answer.room}")
            assert record["outcome"] == "ok"
            assert "in the middle of its answer" in record["legs"]["prefill"]["problem"]

    asyncio.run(scenario())


@pytest.mark.parametrize("tail", [b"", b'40\r\ndata: {"text": "hal'])
def test_a_stream_that_breaks_off_ends_with_an_error_event(tail: bytes) -> None:
    async def scenario() -> None:
        async with fleet(1, 2) as made:
            made.decodes[0].script = [broken(events()[:2], tail)]
            answer = await made.generate(STREAM)
            assert answer.complete, "the framing ends properly"
            parts = answer.body.split(b"\n\n")
            assert parts[:2] == [one.strip() for one in events()[:2]]
            assert parts[-2:] == [b"data: [DONE]", b""]
            error = json.loads(parts[-3].removeprefix(b"data: "))["error"]
            assert made.decodes[0].url in error["message"]
            assert "in the middle of its answer" in error["message"]
            assert not made.decodes[1].generations, "no retry once the client has tokens"
            assert (await made.get(f"/rooms/{answer.room}"))["outcome"] == "broken"

    asyncio.run(scenario())


@for_each(
    "first",
    [
        {"error": {"object": "error", "message": "KVTransferError", "type": "X", "code": 500}},
        {
            "text": "",
            "meta_info": {"finish_reason": {"type": "abort", "message": "KVTransferError", "status_code": 500}},
        },
    ],
)
@for_each("leg", ["prefill", "decode"])
def test_an_error_as_first_event_is_a_failure_not_a_token(leg: str, first: dict) -> None:
    async def scenario() -> None:
        async with fleet(2, 2) as made:
            failing, other = (made.prefills, made.decodes) if leg == "prefill" else (made.decodes, made.prefills)
            failing[0].script = [stream([b"data: " + json.dumps(first).encode() + b"\n\n", b"data: [DONE]\n\n"])]
            if leg == "prefill":
                other[0].script = [hang]
            answer = await made.generate(STREAM)
            assert (answer.status, answer.headers["x-pd-attempts"]) == (200, "2")
            assert answer.body == b"".join(events())
            record = next(one for one in (await made.get("/rooms"))["rooms"] if one["attempt"] == 1)
            assert "KVTransferError" in record["legs"][leg]["problem"]

    asyncio.run(scenario())


def test_a_refusal_inside_the_prefills_stream_reaches_the_client() -> None:
    async def scenario() -> None:
        async with fleet(2, 2) as made:
            made.prefills[0].script = [stream([b'data: {"error": {"message": "too long", "code": 400}}\n\n'])]
            made.decodes[0].script = [hang]
            answer = await made.generate(STREAM)
            assert (answer.status, answer.json()["error"]["message"]) == (400, "too long")

    asyncio.run(scenario())


def test_the_word_error_in_a_token_is_no_error() -> None:
    async def scenario() -> None:
        said = b'data: {"text": "\\"error\\" and \\"abort\\"", "index": 0}\n\n'
        async with fleet() as made:
            made.decodes[0].script = [stream([said])]
            assert (await made.generate(STREAM)).body == said

    asyncio.run(scenario())


def test_an_error_that_is_no_stream_keeps_its_form() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            for worker in made.workers:
                worker.script = [status(422, "bad temperature")]
            answer = await made.generate(STREAM)
            assert (answer.status, answer.json()["error"]["message"]) == (422, "bad temperature")
            assert answer.headers["content-type"] == "application/json"

    asyncio.run(scenario())


def test_a_slow_reader_slows_the_worker_down_and_loses_nothing() -> None:
    async def scenario() -> None:
        event = b"data: " + b"x" * 60_000 + b"\n\n"
        count, sent = 400, 0

        async def pour(way: Way) -> None:
            nonlocal sent
            await way.send(SSE_HEAD)
            for _ in range(count):
                await way.chunk(event)
                sent += 1
            await way.send(b"0\r\n\r\n")

        async with fleet() as made:
            made.decodes[0].usual = pour
            async with made.client() as client:
                client.send("POST", "/generate", STREAM)
                await client.head()
                stalled = -1

                async def at_rest() -> bool:
                    nonlocal stalled
                    before, stalled = stalled, sent
                    await asyncio.sleep(0.1)
                    return before == sent > 0

                await until(at_rest, "the worker to be held")
                assert sent < count, "24 MB do not fit into the buffers between"
                total = 0
                while chunk := await client.chunk():
                    total += len(chunk)
                assert total == count * len(event)

    asyncio.run(scenario())


def test_a_stalled_prefill_does_not_hold_up_the_stream() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            made.prefills[0].script = [sends(SSE_HEAD, hang)]
            answer = await made.generate(STREAM)
            assert answer.body == b"".join(events())

    asyncio.run(scenario())


def test_the_whole_deadline_ends_a_stream_with_an_error_event() -> None:
    async def scenario() -> None:
        async with fleet(request_timeout=0.3) as made:
            made.decodes[0].usual = stream([b"data: {}\n\n"] * 1000, gap=0.02)
            answer = await made.generate(STREAM)
            assert answer.complete
            assert b"--request-timeout" in answer.body
            assert answer.body.endswith(b"data: [DONE]\n\n")

    asyncio.run(scenario())
