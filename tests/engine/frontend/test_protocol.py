"""Clients that send without end, slowly, or not at all hold no connection of an engine for long."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
import uvloop

from pdctl.engine.ipc.http_protocol import MAX_HEAD, MAX_PIPELINED, BoundedProtocol
from pdctl.http_auth import MAX_FIELDS
from tests.cases import for_each


async def app(scope, receive, send) -> None:
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(str(size)))]})
    await send({"type": "http.response.body", "body": str(size).encode()})


@contextlib.asynccontextmanager
async def serving(app: Any = app) -> AsyncIterator[int]:
    config = uvicorn.Config(app, port=0, http=BoundedProtocol, lifespan="off", log_level="critical", ws="none")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await task


async def said(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


HEADS = {
    "none": (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    "two": (b"GET / HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n", b"400"),
    "no host": (b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n", b"400"),
    "a URL": (b"GET / HTTP/1.1\r\nhost: http://a/\r\n\r\n", b"400"),
    "long target": (b"GET /" + b"a" * 8000 + b" HTTP/1.1\r\nhost: a\r\n\r\n", b"414"),
    "target that fits": (b"GET /" + b"a" * 7999 + b" HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", b"200"),
    "two credentials": (
        b"GET / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
        b"400",
    ),
    "one credential twice": (
        b"GET / HTTP/1.1\r\nhost: a\r\nauthorization: a\r\nauthorization: a\r\nconnection: close\r\n\r\n",
        b"200",
    ),
    "none in HTTP/1.0": (b"GET / HTTP/1.0\r\n\r\n", b"200"),
    "empty": (b"GET / HTTP/1.1\r\nhost:\r\nconnection: close\r\n\r\n", b"200"),
    "IPv6": (b"GET / HTTP/1.1\r\nhost: [::1]:8000\r\nconnection: close\r\n\r\n", b"200"),
}


@for_each("name", HEADS)
def test_a_head_with_no_host_of_its_own_or_a_long_target_reaches_no_route(name: str) -> None:
    async def scenario() -> None:
        sent, status = HEADS[name]
        async with serving() as port:
            answer = await said(port, sent)
            assert answer.split(b" ")[1] == status
            if status != b"200":
                behind = await said(port, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" + sent)
                assert [part[:3] for part in behind.split(b"HTTP/1.1 ")[1:]] == [b"200", status]

    asyncio.run(scenario())


def test_a_head_without_end_is_refused() -> None:
    async def scenario() -> None:
        async with serving() as port:
            for flood in (
                b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * (MAX_HEAD // 4),
                b"GET /" + b"a" * 2 * MAX_HEAD,
            ):
                # The connection ends; a client that is still sending may not see the answer.
                assert (await said(port, flood))[:12] in (b"", b"HTTP/1.1 431", b"HTTP/1.1 400")

    asyncio.run(scenario())


@for_each("fields", [b"a:b\r\n" * 20_000, b"a: " + b"y" * MAX_HEAD + b"\r\n"])
@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"], ids=["alone", "pipelined"])
def test_a_head_that_ends_in_the_piece_that_makes_it_too_large_is_refused(before: bytes, fields: bytes) -> None:
    async def scenario() -> None:
        async with serving() as port:
            answer = await said(port, before + b"GET / HTTP/1.1\r\nhost: a\r\n" + fields + b"\r\n")
            # 400 if it came in such pieces that it was too large before it ended. Behind another request: no answer.
            assert answer.split(b"HTTP/1.1 ")[-1][:3] in ((b"200",) if before else (b"431", b"400"))

    asyncio.run(scenario())


@for_each("end", [b"\r\n", b""], ids=["whole", "without end"])
@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"], ids=["alone", "pipelined"])
def test_a_head_of_many_small_fields_is_refused_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, before: bytes, end: bytes
) -> None:
    """In memory such a head takes twenty times its bytes on the wire."""
    kept: list[int] = []
    lost = BoundedProtocol.connection_lost

    def count(self: BoundedProtocol, error: Exception | None) -> None:
        kept.append(len(self.headers))
        lost(self, error)

    monkeypatch.setattr(BoundedProtocol, "connection_lost", count)

    async def scenario() -> None:
        async with serving() as port:
            fits = b"GET / HTTP/1.1\r\nconnection: close\r\nhost: a\r\n" + b"a:b\r\n" * (MAX_FIELDS - 2) + b"\r\n"
            assert (await said(port, before + fits)).count(b"HTTP/1.1 200") == (2 if before else 1)
            many = b"GET / HTTP/1.1\r\nhost: a\r\n" + b"a:b\r\n" * 10_000 + end
            answer = await said(port, before + many)
            if before:  # it has its answer, and then the connection ends
                assert answer.startswith(b"HTTP/1.1 200 OK")
                assert answer.count(b"HTTP/1.1 ") == 1
            else:
                assert answer.startswith(b"HTTP/1.1 431 ")
                assert answer.endswith(b"more than 256 header fields.")

    asyncio.run(scenario())
    assert max(kept) == MAX_FIELDS


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTT",
        b"GET / HTTP/1.1\r\nhost: a\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nab",
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET",
    ],
)
def test_what_does_not_come_in_time_ends(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(BoundedProtocol, "patience", 0.2)

    async def scenario() -> None:
        async with serving() as port:
            answer = await said(port, sent)
            assert answer.count(b"HTTP/1.1 200") == (1 if sent.endswith(b"GET") else 0)
            assert not BoundedProtocol.held

    asyncio.run(scenario())


def test_one_address_holds_a_part_of_the_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(BoundedProtocol, "most", 6)
    monkeypatch.setattr(BoundedProtocol, "of_one_peer", 3)

    async def scenario() -> None:
        async with serving() as port, contextlib.AsyncExitStack() as stack:
            ends = []
            for _ in range(3):  # each waits for the rest of its body
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
                writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\na")
                ends.append((reader, writer))
            while sum(BoundedProtocol.held.values()) < 3:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert await said(port, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n") == b""
            assert "Closed a connection of 127.0.0.1: it holds 3 and may hold 3" in caplog.text
            reader, writer = ends[0]
            writer.write(b"b")
            assert (await reader.read(200)).endswith(b"2")
            idle = reader  # kept alive: it makes room
            answer = await said(port, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            assert answer.endswith(b"0")
            assert await asyncio.wait_for(idle.read(), 10) == b""

    asyncio.run(scenario())


GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


@for_each("many", [0, 1, 16, 17, 5000])
@for_each(
    "first", [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc"]
)
def test_few_requests_wait_behind_one_in_progress(first: bytes, many: int) -> None:
    """Those beyond get no answer but the end of the connection, so that the client knows it may send them again."""
    may_end = asyncio.Event()
    asked = 0

    async def slow(scope, receive, send) -> None:
        nonlocal asked
        asked += 1
        await asyncio.wait_for(may_end.wait(), 20)
        await app(scope, receive, send)

    async def scenario() -> None:
        async with serving(slow) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first * (1 + many) + (b"\0garbage" if many > MAX_PIPELINED else b""))
            await asyncio.sleep(0.2)
            assert asked == 1
            may_end.set()
            if many <= MAX_PIPELINED:
                for _ in range(1 + many):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 200 OK")
                    assert b"close" not in head
                    await reader.readexactly(1)
            else:
                answers = (await asyncio.wait_for(reader.read(), 20)).split(b"HTTP/1.1 200 OK")[1:]
                assert len(answers) == 1 + MAX_PIPELINED
                assert [b"connection: close" in one for one in answers] == [False] * MAX_PIPELINED + [True]
            writer.close()

    asyncio.run(scenario())


async def held_by(port: int, address: str, stack: contextlib.AsyncExitStack) -> asyncio.StreamReader:
    """Open a connection that asks once and then stays idle; return its reader."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    stack.callback(writer.close)
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200")
    return reader


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere loopback has one address")
def test_other_addresses_that_hold_all_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "most", 4)
    monkeypatch.setattr(BoundedProtocol, "of_one_peer", 2)

    async def scenario() -> None:
        async with serving() as port, contextlib.AsyncExitStack() as stack:
            idle = [await held_by(port, f"127.0.0.{4 - n // 2}", stack) for n in range(4)]
            for gone in range(3):  # each of the honest clients leaves before the next one comes, so that one makes room
                assert (await said(port, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).endswith(b"0")
                while BoundedProtocol.held["127.0.0.1"]:
                    await asyncio.sleep(0.01)
                if gone == 0:
                    assert await asyncio.wait_for(idle[0].read(), 10) == b""  # the one that was idle longest
                assert not any(one.at_eof() for one in idle[1:])
            assert sum(BoundedProtocol.held.values()) == 3

    asyncio.run(scenario())


def test_of_one_address_that_is_idle_longest_makes_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "of_one_peer", 3)

    async def scenario() -> None:
        async with serving() as port, contextlib.AsyncExitStack() as stack:
            idle = [await held_by(port, "127.0.0.1", stack) for _ in range(3)]
            for one in idle:
                await held_by(port, "127.0.0.1", stack)
                assert await asyncio.wait_for(one.read(), 10) == b""
                assert BoundedProtocol.held["127.0.0.1"] == 3
        assert BoundedProtocol.spare.first() is None

    asyncio.run(scenario())


MESSAGES: list[dict[str, Any]] = [
    {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]},
    {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True},
    {"type": "http.response.body", "body": b"data: 2\n\n", "more_body": True},
    {"type": "http.response.body", "body": b""},
]
ASK = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab"


@for_each("told", [True, False], ids=["listening", "not listening"])
@for_each("before", range(4))
@for_each("behind", [b"", ASK, ASK + b"GET", b"garbage"])
def test_what_is_sent_to_a_client_that_left_raises_nothing(before: int, behind: bytes, told: bool) -> None:
    """The client resets its connection before each message; more requests may wait behind the one that is answered."""
    ends: list[BaseException | None] = []
    left = asyncio.Event()

    async def leaving(scope, receive, send) -> None:
        try:
            assert not (await receive())["more_body"]
            for number, message in enumerate(MESSAGES):
                if number == before:
                    left.set()
                    while BoundedProtocol.held:
                        await asyncio.sleep(0)
                    if told:
                        assert (await asyncio.wait_for(receive(), 20))["type"] == "http.disconnect"
                await send(message)
        except (RuntimeError, TimeoutError) as error:
            ends.append(error)
            return
        ends.append(None)

    async def scenario() -> None:
        async with serving(leaving) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASK + behind)
            await asyncio.wait_for(left.wait(), 20)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            while not ends:
                await asyncio.sleep(0.001)

    with contextlib.closing(uvloop.new_event_loop()) as loop:
        loop.run_until_complete(asyncio.wait_for(scenario(), 60))
    assert ends == [None]


CHUNKED = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "flood",
    [
        b"1\r\na\r\n0\r\n" + b"x: y\r\n" * (MAX_HEAD // 2),
        b"1\r\na\r\n0\r\nx: " + b"y" * 3 * MAX_HEAD,
        b"1;" + b"x" * 3 * MAX_HEAD,
        b"1\r\na\r\n" * (2 * MAX_HEAD),
    ],
    ids=["trailers", "one trailer", "an extension", "chunks of a byte"],
)
def test_what_frames_a_body_is_no_longer_than_the_body(flood: bytes) -> None:
    async def scenario() -> None:
        async with serving() as port:
            assert await said(port, CHUNKED + flood) == b""
            fine = b"ff\r\n" + b"a" * 255 + b"\r\n"
            answer = await said(
                port, CHUNKED.replace(b"host", b"connection: close\r\nhost") + fine * 500 + b"0\r\n\r\n"
            )
            assert answer.endswith(b"\r\n\r\n127500")

    asyncio.run(scenario())


def test_a_trailer_is_no_header() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def whole(scope, receive, send) -> None:
        body: list[Any] = []
        while not body or body[-1].get("more_body"):
            body.append(await receive())
        seen.extend(scope["headers"])

        async def again() -> Any:
            return body.pop(0)

        await app(scope, again, send)

    async def scenario() -> None:
        async with serving(whole) as port:
            sent = (
                CHUNKED.replace(b"host", b"connection: close\r\nhost")
                + b"1\r\na\r\n0\r\nauthorization: Bearer x\r\n\r\n"
            )
            assert (await said(port, sent)).endswith(b"\r\n\r\n1")

    asyncio.run(scenario())
    assert [name for name, _ in seen] == [b"connection", b"host", b"transfer-encoding"]
