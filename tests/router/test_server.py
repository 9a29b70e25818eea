"""The clients' side of the wire: what HTTP allows, and what clients get wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest

from pdctl.http_auth import MAX_FIELDS
from pdctl.router.clients import Exchange
from pdctl.router.manage import Management
from pdctl.router.server import MAX_PIPELINED
from tests.cases import for_each
from tests.router.fleet import Client, Fleet, fleet, until
from tests.router.workers import Way, after, events, fine, hang

CHUNKED = b"POST /generate HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n"


def request(body: bytes = b'{"text":"x"}', version: str = "1.1", extra: str = "", path: str = "/generate") -> bytes:
    return f"POST {path} HTTP/{version}\r\nhost: r\r\ncontent-length: {len(body)}\r\n{extra}\r\n".encode() + body


async def closed(client: Client) -> bytes:
    """What is left to read until the router closes."""
    return await asyncio.wait_for(client.reader.read(), 5)


def test_a_connection_serves_one_request_after_another() -> None:
    async def scenario() -> None:
        async with fleet() as made, made.client() as client:
            for _ in range(3):
                client.send("POST", "/generate", {"text": "x"})
                assert (await client.answer()).status == 200

    asyncio.run(scenario())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario() -> None:
        async with fleet() as made, made.client() as client:
            made.decodes[0].script = [after(0.05, fine)]
            client.writer.write(request(extra="x-request-id: one\r\n") + request(extra="x-request-id: two\r\n"))
            client.send("GET", "/nowhere")
            answers = [await client.answer() for _ in range(3)]
            assert [one.headers.get("x-request-id") for one in answers[:2]] == ["one", "two"]
            assert answers[2].status == 404

    asyncio.run(scenario())


def test_what_follows_a_request_does_not_cost_it_its_answer() -> None:
    """Bytes that are no request: what was asked before is answered, then it closes."""

    async def scenario() -> None:
        async with fleet() as made:
            for junk in (b"X", b"\0", b"JUNK\r\n\r\n"):
                async with made.client() as client:
                    made.decodes[0].script = [after(0.05, fine)]
                    client.writer.write(request() + junk)
                    assert (await client.answer()).status == 200
                    assert await closed(client) == b""

    asyncio.run(scenario())


def test_more_requests_than_may_be_sent_ahead_are_refused_in_their_turn() -> None:
    """The answer behind the last one is an error: without it a client cannot tell a limit from a lost connection."""
    asked = b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"

    async def scenario() -> None:
        async with fleet() as made:
            for more in (17, 40, 301, 5000):
                async with made.client() as client:
                    made.decodes[0].script = [after(0.05, fine)]
                    client.writer.write(request() + asked * more)
                    answers = [await client.answer() for _ in range(18)]
                    assert [one.status for one in answers] == [200] + [404] * 16 + [503]
                    assert answers[-1].headers["connection"] == "close"
                    assert b"17 requests sent ahead are the most on one connection" in answers[-1].body
                    assert await closed(client) == b""
            async with made.client() as client:
                client.writer.write(request() + asked * 16)
                assert [(await client.answer()).status for _ in range(17)] == [200] + [404] * 16
                client.send("GET", "/nowhere")
                assert (await client.answer()).status == 404

    asyncio.run(scenario())


def test_a_body_may_come_in_chunks_and_drops() -> None:
    async def scenario() -> None:
        async with fleet() as made, made.client() as client:
            for byte in CHUNKED + b'8\r\n{"text":\r\n4\r\n"x"}\r\n0\r\n\r\n':
                client.writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.answer()).status == 200
            assert made.decodes[0].generations[0].raw.startswith(b'{"text":"x","bootstrap_host"')

    asyncio.run(scenario())


def test_http_1_0_gets_an_unframed_stream_that_ends_with_the_connection() -> None:
    async def scenario() -> None:
        async with fleet() as made, made.client() as client:
            client.writer.write(request(b'{"text":"x","stream":true}', version="1.0"))
            answer = await client.head()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert "transfer-encoding" not in answer.headers
            assert await closed(client) == b"".join(events())

    asyncio.run(scenario())


def test_connection_close_is_honoured() -> None:
    async def scenario() -> None:
        async with fleet() as made, made.client() as client:
            client.send("POST", "/generate", {"text": "x"}, connection="close")
            answer = await client.answer()
            assert answer.headers["connection"] == "close"
            assert await closed(client) == b""

    asyncio.run(scenario())


def test_an_offered_upgrade_is_declined_by_answering() -> None:
    offer = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"

    async def scenario() -> None:
        async with fleet() as made:
            async with made.client() as client:
                client.writer.write(f"GET /health HTTP/1.1\r\nhost: r\r\n{offer}\r\n".encode())
                answer = await client.answer()
                assert (answer.status, answer.headers["connection"]) == (200, "close")
                assert await closed(client) == b""
            async with made.client() as client:
                client.writer.write(request(extra=offer))
                answer = await client.answer()
                assert (answer.status, answer.headers["connection"]) == (400, "close")
                assert "leave out the Upgrade header" in answer.json()["error"]["message"]

    asyncio.run(scenario())


def test_a_length_may_have_thousands_of_leading_zeros() -> None:
    async def scenario() -> None:
        async with fleet() as made, made.client() as client:
            head, body = request().split(b"\r\n\r\n")
            client.writer.write(head.replace(b"length: ", b"length: " + b"0" * 5000) + b"\r\n\r\n" + body)
            assert (await client.answer()).status == 200

    asyncio.run(scenario())


LARGE = 1 << 20
HEALTH = b"GET /health HTTP/1.1\r\nhost: r\r\n\r\n"


async def narrow(made: Fleet) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as a client that takes little before it reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", made.port))
    return await asyncio.open_connection(sock=sock, limit=1024)


def answering(monkeypatch: pytest.MonkeyPatch, size: int) -> list[Exchange]:
    """Let /health answer with so many bytes; return the requests that were begun."""
    begun: list[Exchange] = []

    async def large(self: Management, exchange: Exchange, rest: str) -> None:
        begun.append(exchange)
        exchange.respond(200, b"", b"x" * size)

    monkeypatch.setattr(Management, "_alive", large)
    return begun


def test_who_reads_no_answer_gets_no_further_one_until_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the answers to what a client sends ahead would fill the router's memory."""
    begun = answering(monkeypatch, LARGE)

    async def scenario() -> None:
        async with fleet() as made:
            reader, writer = await narrow(made)
            for _ in range(40):
                writer.write(HEALTH)
                await asyncio.sleep(0.01)
            (connection,) = (one for one in made.router._server.connections if one._waiting)
            assert len(begun) < 20  # the kernel takes some MB
            assert len(connection._waiting) == MAX_PIPELINED
            assert connection._transport.get_write_buffer_size() <= 2 * LARGE
            for _ in range(len(begun) + MAX_PIPELINED):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                await reader.readexactly(LARGE)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503")
            writer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("ahead", [b"", HEALTH * 3, b"GET", b"\0garbage"], ids=["", "requests", "a part", "garbage"])
@pytest.mark.parametrize("extra", [b"", b"connection: close\r\n"], ids=["", "close"])
def test_who_stops_reading_an_answer_is_cut_off_and_who_reads_slowly_is_not(
    monkeypatch: pytest.MonkeyPatch, ahead: bytes, extra: bytes
) -> None:
    answering(monkeypatch, 20 * LARGE)

    async def scenario() -> None:
        async with fleet(idle_timeout=0.3, read_timeout=0.3) as made:
            reader, writer = await narrow(made)
            writer.write(HEALTH.replace(b"host", extra + b"host") + ahead)
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(4):  # longer than both time limits and the second between two looks at them
                await reader.readexactly(3 * LARGE)
                await asyncio.sleep(0.6)
            await until(lambda: not made.router._server.connections, "no connection")
            with contextlib.suppress(ConnectionError):
                assert len(await reader.read(20 * LARGE)) < 8 * LARGE
            writer.close()

    asyncio.run(scenario())


def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async def scenario() -> None:
        async with fleet() as made, made.client() as client:
            head, body = request(extra="expect: 100-continue\r\n").split(b"\r\n\r\n")
            client.writer.write(head + b"\r\n\r\n")
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.writer.write(body)
            assert (await client.answer()).status == 200

    asyncio.run(scenario())


@for_each(
    ("data", "status", "message"),
    [
        (b"HELLO\r\n\r\n", 400, "not an HTTP/1.1 request"),
        (b"\x16\x03\x01\x02\x00\x01", 400, "not an HTTP/1.1 request"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000, 431, "65536 bytes"),
        (b"GET /health HTTP/1.1\r\nhost: r\r\n" + b"a:b\r\n" * 20_000 + b"\r\n", 431, "header"),
        (b"GET /health HTTP/1.1\r\nhost: r\r\n" + b"a:b\r\n" * MAX_FIELDS + b"\r\n", 431, "256 header fields"),
        (b"GET /health HTTP/1.1\r\nhost: r\r\n" + b"a:b\r\n" * (MAX_FIELDS + 1), 431, "256 header fields"),
        (b"GET /health HTTP/1.1\r\nhost: r\r\nx: " + b"y" * (1 << 16) + b"\r\n\r\n", 431, "65536 bytes"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "no Host header"),
        (b"GET /health HTTP/1.1\r\nhost: r\r\nHost: r\r\n\r\n", 400, "2 Host headers"),
        (
            b"GET /health HTTP/1.1\r\nhost: r\r\nauthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
            400,
            "several Authorization headers that differ",
        ),
        (b"GET /health HTTP/1.1\r\nhost: a b\r\n\r\n", 400, "not the name or address of a host"),
        (b"POST /generate HTTP/1.1\r\nhost: r\r\ncontent-length: 2000\r\n\r\n", 413, "--max-payload-size 1000"),
        (CHUNKED + b"800\r\n" + b"x" * 2048 + b"\r\n", 413, "--max-payload-size 1000"),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400, "not an HTTP/1.1 request"),
        (CHUNKED + b"1\r\na\r\n0\r\n" + b"x: y\r\n" * 80_000, 400, "trailers are larger than the body"),
        (CHUNKED + b"1\r\na\r\n0\r\nx: " + b"y" * 500_000, 400, "trailers are larger than the body"),
        (CHUNKED + b"1;" + b"x" * 500_000, 400, "trailers are larger than the body"),
        (CHUNKED + b"1\r\na\r\n" * 900 + b"0" * 500_000, 400, "trailers are larger than the body"),
    ],
)
def test_what_cannot_be_served_is_answered_and_closed(data: bytes, status: int, message: str) -> None:
    async def scenario() -> None:
        async with fleet(max_payload_size=1000) as made:
            async with made.client() as client:
                client.writer.write(data)
                answer = await client.answer()
                assert answer.status == status
                assert message in answer.json()["error"]["message"]
                assert await closed(client) == b""
            assert (await made.generate()).status == 200

    asyncio.run(scenario())


def test_a_trailer_is_no_header() -> None:
    async def scenario() -> None:
        async with fleet() as made, made.client() as client:
            client.writer.write(
                CHUNKED + b'c\r\n{"text":"x"}\r\n0\r\nx-request-id: mine\r\nauthorization: Bearer a\r\n\r\n'
            )
            answer = await client.answer()
            assert answer.status == 200
            assert answer.headers["x-request-id"] != "mine"
            assert "authorization" not in made.decodes[0].generations[0].headers

    asyncio.run(scenario())


def test_a_refused_client_may_finish_sending() -> None:
    async def scenario() -> None:
        async with fleet(max_payload_size=1000) as made, made.client() as client:
            client.writer.write(b"POST /generate HTTP/1.1\r\nhost: r\r\ncontent-length: 8000000\r\n\r\n")
            for _ in range(80):
                client.writer.write(b"x" * 100_000)
                await client.writer.drain()
            assert (await client.answer()).status == 413

    asyncio.run(scenario())


@for_each("data", [b"POST /gene", request()[:-3], CHUNKED + b"5\r\nab"])
def test_a_client_that_stops_in_the_middle_is_timed_out(data: bytes) -> None:
    async def scenario() -> None:
        async with fleet(read_timeout=0.2) as made, made.client() as client:
            client.writer.write(data)
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (408, "close")
            assert await closed(client) == b""

    asyncio.run(scenario())


def test_a_head_that_drips_is_timed_out_all_the_same() -> None:
    async def scenario() -> None:
        async with fleet(read_timeout=0.3) as made, made.client() as client:
            answer = asyncio.ensure_future(client.answer())

            async def drip() -> bool:
                client.writer.write(b"G")
                await asyncio.sleep(0.05)
                return answer.done()

            client.writer.write(b"GET /")
            await until(drip, "the router to give up")
            assert answer.result().status == 408

    asyncio.run(scenario())


def test_a_silent_client_is_dropped() -> None:
    async def scenario() -> None:
        async with fleet(read_timeout=0.2, idle_timeout=0.2) as made:
            async with made.client() as client:
                assert await closed(client) == b""
            async with made.client() as client:
                client.send("GET", "/health")
                assert (await client.answer()).status == 200
                assert await closed(client) == b""

    asyncio.run(scenario())


def test_waiting_for_an_answer_is_not_silence() -> None:
    async def scenario() -> None:
        async with fleet(read_timeout=0.2, idle_timeout=0.2) as made:
            made.decodes[0].script = [after(1.5, fine)]
            assert (await made.generate()).status == 200

    asyncio.run(scenario())


@for_each(
    ("method", "path", "status"),
    [
        ("GET", "/generate", 405),
        ("DELETE", "/v1/chat/completions", 405),
        ("POST", "/readiness", 405),
        ("PATCH", "/workers", 405),
        ("GET", "/", 404),
        ("GET", "/workers/", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/generate/", 404),
        ("GET", "/%ff%00", 404),
    ],
)
def test_unknown_paths_and_methods(method: str, path: str, status: int) -> None:
    async def scenario() -> None:
        async with fleet(0, 0, ready=False) as made:
            answer = await made.ask(method, path)
            assert answer.status == status
            assert answer.json()["error"]["message"]
            assert status != 405 or answer.headers["allow"]

    asyncio.run(scenario())


def test_head_has_no_body() -> None:
    async def scenario() -> None:
        async with fleet(0, 0, ready=False) as made:
            answer = await made.ask("HEAD", "/health")
            assert (answer.status, answer.headers["content-length"]) == (200, "2")

    asyncio.run(scenario())


def test_the_api_key_is_asked_of_clients_and_shown_to_workers() -> None:
    async def scenario() -> None:
        async with fleet(ready=False, api_key="k") as made:
            await until(lambda: bool(made.decodes[0].asked), "the first look")
            assert made.decodes[0].asked[0].headers["authorization"] == "Bearer k"
            for path in ("/workers", "/v1/models"):
                assert (await made.ask("GET", path)).status == 401
            assert (await made.generate(authorization="Bearer wrong")).status == 401
            assert (await made.ask("GET", "/health")).status == 200
            await made.ready(1)
            assert (await made.generate(authorization="Bearer k")).status == 200

    asyncio.run(scenario())


def test_a_client_that_leaves_while_its_next_request_waits() -> None:
    async def scenario() -> None:
        async with fleet() as made:
            made.decodes[0].usual = hang
            async with made.client() as client:
                client.writer.write(request() + request())
                await until(lambda: bool(made.decodes[0].generations), "the first to begin")
            await until(lambda: made.decodes[0].generations[0].hung_up, "the first to be closed")
            assert len(made.decodes[0].generations) == 1

    asyncio.run(scenario())


def test_a_storm_of_faults_leaves_nothing_behind() -> None:
    """Every request is answered or abandoned by its client; then no room, leg or connection is held."""
    import random

    source = random.Random(3)

    async def torn(way: Way) -> None:
        await way.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await way.chunk(b"data: {}\n\n")
        way.cut()

    async def slammed(way: Way) -> None:
        way.cut()

    async def odd(way: Way) -> None:
        await way.send(b"what?\r\n\r\n")

    async def one(way: Way) -> None:
        await source.choice([fine, fine, fine, torn, slammed, odd, after(0.02, fine)])(way)

    async def scenario() -> None:
        async with fleet(2, 2, cb_failure_threshold=4, cb_timeout=0.05) as made:
            for worker in made.workers:
                worker.usual = one

            async def client(number: int) -> int:
                body = {"text": "x", "stream": number % 2 == 0, "rid": f"storm-{number}"}
                if number % 7 == 0:
                    async with made.client() as gone:
                        gone.send("POST", "/generate", body)
                        await asyncio.sleep(source.random() * 0.02)
                    return 0
                return (await made.generate(body)).status

            statuses = []
            for start in range(0, 300, 25):
                statuses += await asyncio.gather(*(client(number) for number in range(start, start + 25)))
            assert set(statuses) <= {0, 200, 502, 503}
            assert statuses.count(200) > 100

            async def at_rest() -> bool:
                loads = (await made.get("/get_loads"))["workers"]
                rooms = await made.get("/rooms?limit=1")
                return not rooms["in_flight"] and not any(worker["load"] for worker in loads)

            await until(at_rest, "every leg to end")
            text = (await made.ask("GET", "/metrics")).body.decode()
            assert "pdctl_router_client_connections 1\n" in text, "only the one that asks"
            for record in (await made.get("/rooms?limit=1000"))["rooms"]:
                assert record["outcome"] != "running", json.dumps(record)

    asyncio.run(scenario())
