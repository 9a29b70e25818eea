"""Large bodies: read beside the event loop, to the same effect as small ones, bounded in number and in memory."""

from __future__ import annotations

import asyncio
import json
import random
import threading

import pytest

from pdctl import large_json
from pdctl.large_json import LARGE, MAX_DEPTH, MAX_WAITING, PIECE, READERS, BadBody, Busy, LargeBodyReader
from pdctl.router import dispatch
from pdctl.router.body import MAX_FIELD, MAX_ITEMS, GenerationBody, LargeGenerationBody
from tests.cases import for_each
from tests.router.fleet import fleet, until
from tests.router.workers import hang

PAD = 'a\\n"é😀' * (PIECE // 8)
GENERATE, CHAT = b"/generate", b"/v1/chat/completions"


def both(path: bytes, raw: bytes) -> tuple[GenerationBody, LargeGenerationBody]:
    return GenerationBody(path, raw), LargeGenerationBody(path, bytearray(raw))


@for_each("ascii", [True, False])
@for_each("indent", [None, 1])
@for_each(
    ("path", "fields"),
    [
        (GENERATE, {"text": PAD}),
        (GENERATE, {"text": PAD, "stream": True, "rid": "r", "return_logprob": True, "z": {"a": [{}, []]}}),
        (GENERATE, {"text": [PAD, "b", "c"], "rid": ["1", "2", "3"]}),
        (GENERATE, {"text": [], "input_ids": [1, 2, 3]}),
        (GENERATE, {"input_ids": [[1, 2], [3], []] * 99}),
        (GENERATE, {"input_ids": list(range(90_000))}),
        (GENERATE, {"input_embeds": [[[0.5, 1e-7]], [[1.0]]]}),
        (GENERATE, {"input_embeds": [[0.5, 1e-7], [1.0]]}),
        (GENERATE, {"text": "a", "sampling_params": {"n": 3, "stop": [PAD[:1000]]}}),
        (GENERATE, {"text": "a", "bootstrap_host": "x", "k": PAD, "bootstrap_room": [1, 2], "bootstrap_port": None}),
        (GENERATE, {"bootstrap_room": 1}),
        (CHAT, {"messages": [{"role": "user", "content": PAD}], "n": 2, "stream": False}),
        (b"/v1/completions", {"prompt": ["a", PAD]}),
        (b"/v1/completions", {"prompt": [1, 2]}),
        (GENERATE, {}),
    ],
)
def test_it_says_what_the_parser_says(path: bytes, fields: dict, indent: int | None, ascii: bool) -> None:
    raw = (" \n" + json.dumps(fields, indent=indent, ensure_ascii=ascii) + "\r\n ").encode()
    small, large = both(path, raw)
    for name in ("stream", "logprobs", "samples", "items", "rids"):
        assert getattr(large, name) == getattr(small, name), name
    rooms = small.rooms()
    assert len(large.rooms()) == len(rooms)
    assert json.loads(large.addressed("10.0.0.1", 8998, rooms)) == json.loads(small.addressed("10.0.0.1", 8998, rooms))
    if path != CHAT and not small.prompt().startswith("['"):  # strings in a list: near enough
        assert large.prompt() == small.prompt()


def test_any_cut_of_a_body_is_refused_and_nothing_hangs() -> None:
    raw = json.dumps({"a": [1, {"b": '\\"'}, "]"], "text": "x\\", "n": 1.5, "t": True}).encode()
    for length in range(len(raw)):
        with pytest.raises(BadBody):
            LargeGenerationBody(GENERATE, raw[:length])
    draw = random.Random(7)
    for _ in range(3000):
        broken = bytearray(raw)
        for _ in range(draw.randrange(1, 4)):
            broken[draw.randrange(len(broken))] = draw.choice(b'{}[]",:\\ 19ax\x00\xff')
        try:
            large = LargeGenerationBody(GENERATE, broken)
        except BadBody:
            continue
        large.addressed("h", 1, large.rooms())
        large.prompt()


@for_each(
    ("raw", "why"),
    [
        (b"[" * (MAX_DEPTH + 2), "no JSON object"),
        (b'{"a":' + b"[" * (MAX_DEPTH + 2), "nested too deeply"),
        (b'{"a":' + b"1" * (2 * PIECE) + b"}", "has no end"),
        (b'{"rid":"' + b"x" * (MAX_FIELD + 1) + b'"}', "rid: 1048579 bytes"),
        (b'{"a":1}x', "something follows"),
        (b'{"a":[}', "closes nothing"),
        (b"{" + b",".join(b'"%d":1' % number for number in range(5000)) + b"}", "more than 4096 members"),
        (b'{"text":[' + b'"",' * MAX_ITEMS + b'""]}', f"at most {MAX_ITEMS}"),
        (b'{"bootstrap_room":"abc"}', "an integer is expected"),
    ],
)
def test_what_is_refused_is_named(raw: bytes, why: str) -> None:
    with pytest.raises(BadBody, match=why):
        LargeGenerationBody(GENERATE, raw)


def test_a_small_body_with_a_huge_batch_is_refused() -> None:
    with pytest.raises(BadBody, match=f"at most {MAX_ITEMS}"):
        GenerationBody(GENERATE, b'{"text":[' + b'"",' * MAX_ITEMS + b'""]}')


def test_a_body_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "PATIENCE", -1.0)
    with pytest.raises(BadBody, match="to read"):
        LargeGenerationBody(GENERATE, b'{"a":[' + b"[]," * 5000 + b"[]]}")


def test_large_bodies_are_read_in_threads_and_arrive_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def read(path: bytes, raw: bytearray) -> LargeGenerationBody:
        threads.append(threading.current_thread().name)
        return LargeGenerationBody(path, raw)

    def parsed(path: bytes, raw: bytes) -> GenerationBody:
        assert len(raw) < LARGE, "a large body is parsed in the event loop"
        return GenerationBody(path, raw)

    async def scenario() -> None:
        async with fleet(1, 1) as made:
            text = PAD * 100
            answer = await made.generate({"text": text, "rid": "big"})
            assert answer.status == 200
            for worker in made.workers:
                (asked,) = [one for one in worker.generations if one.body.get("rid") == "big"]
                assert asked.body["text"] == text
                assert asked.body["bootstrap_room"] == answer.room
            assert made.router._server.held.taken == 0

    monkeypatch.setattr(dispatch, "LargeGenerationBody", read)
    monkeypatch.setattr(dispatch, "GenerationBody", parsed)
    asyncio.run(scenario())
    assert threads
    assert all(name.startswith("large body") for name in threads)


def test_only_so_many_large_bodies_wait_to_be_read() -> None:
    release = threading.Event()

    async def scenario() -> None:
        reader = LargeBodyReader()
        reads = [asyncio.create_task(reader.read(release.wait, 30)) for _ in range(READERS + MAX_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await reader.read(release.wait, 30)
        release.set()
        await asyncio.gather(*reads)
        assert await reader.read(release.wait, 30)
        reader.close()

    asyncio.run(scenario())


def test_the_memory_of_all_bodies_is_bounded_and_given_back() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, max_payload_memory=4_000_000) as made:
            made.decodes[0].usual = hang
            async with made.client() as first, made.client() as second:
                first.send("POST", "/generate", {"text": "a" * 1_500_000})
                await until(lambda: made.router._server.held.taken > 1_000_000, "the first body to be held")
                second.send("POST", "/generate", {"text": "a" * 1_500_000})
                refused = await second.answer()
                assert refused.status == 503
                assert "--max-payload-memory" in refused.body.decode()
            await until(lambda: made.router._server.held.taken == 0, "the bodies to be let go")

    asyncio.run(scenario())


def test_orders_are_small() -> None:
    async def scenario() -> None:
        async with fleet(1, 1) as made:
            for path in ("/workers", "/abort_request", "/flush_cache", "/nowhere"):
                answer = await made.ask("POST", path, b"x" * 70_000)
                assert answer.status == 413, path

    asyncio.run(scenario())


def test_a_body_is_not_taken_from_whoever_has_no_key() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, ready=False, api_key="k") as made, made.client() as client:
            head = b"POST /generate HTTP/1.1\r\nhost: r\r\ncontent-length: 100000000\r\n\r\n"
            client.writer.write(head)
            assert (await asyncio.wait_for(client.answer(), 10)).status == 401

    asyncio.run(scenario())


def test_the_longest_idle_connection_makes_room() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, max_connections=8) as made, made.client() as first, made.client() as second:
            first.send("GET", "/health")
            await first.answer()
            clients = [made.client() for _ in range(3)]
            for client in clients:  # the fifth of one address: the first leaves
                await client.__aenter__()
                client.send("GET", "/health")
                assert (await client.answer()).status == 200
            assert await asyncio.wait_for(first.reader.read(), 10) == b""
            second.send("GET", "/health")
            assert (await second.answer()).status == 200
            for client in clients:
                await client.__aexit__()
            assert len(made.router._server.connections) <= 8

    asyncio.run(scenario())


def test_a_drip_of_a_body_ends() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, read_timeout=1.0) as made, made.client() as client:
            client.writer.write(b"POST /generate HTTP/1.1\r\nhost: r\r\ncontent-length: 1000\r\n\r\n")

            async def drip() -> None:
                while True:
                    client.writer.write(b" ")
                    await asyncio.sleep(0.05)

            dripping = asyncio.create_task(drip())
            assert (await asyncio.wait_for(client.answer(), 20)).status == 408
            dripping.cancel()

    asyncio.run(scenario())
