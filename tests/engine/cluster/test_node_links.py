"""What nodes of an instance believe of each other: greetings, MACs, and the meeting of the ranks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq

from pdctl.deployment_secret import ENV, DeploymentSecret
from pdctl.engine.cluster.node_links import Leaving, NodeHello, Nodes, NodeWire, Up, Word
from pdctl.engine.cluster.rank_processes import Ranks
from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.config.process_log import BURST
from pdctl.engine.ipc.channels import Everybody, Here, Meeting, SocketKeys, meet, meeting_codec
from pdctl.errors import NotReadyError

ONE, OTHER = DeploymentSecret(b"1" * 32), DeploymentSecret(b"2" * 32)


@contextlib.asynccontextmanager
async def wires(
    far: DeploymentSecret | None, near: DeploymentSecret | None, tap: list[bytes] | None = None
) -> AsyncIterator[tuple[NodeWire, NodeWire, asyncio.StreamWriter]]:
    """Node 0's end, the other node's, and the raw socket of the latter. `tap` keeps what the latter writes."""
    taken: asyncio.Queue[NodeWire] = asyncio.Queue()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.put_nowait(NodeWire(reader, writer, far, node0=True))

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    if tap is not None:
        write = writer.write
        writer.write = lambda data: (tap.append(bytes(data)), write(data))[1]  # type: ignore[method-assign]
    node, zero = NodeWire(reader, writer, near), await taken.get()
    try:
        yield zero, node, writer
    finally:
        await node.close()
        await zero.close()
        server.close()


async def greeted(zero: NodeWire, node: NodeWire) -> tuple[str, str]:
    far, near = await asyncio.gather(zero.greet(), node.greet())
    return far, near


@pytest.mark.parametrize("secret", [None, ONE], ids=["open", "signed"])
def test_words_of_both_sides_arrive(secret: DeploymentSecret | None) -> None:
    async def talk() -> None:
        async with wires(secret, secret) as (zero, node, _):
            assert await greeted(zero, node) == ("", "")
            for word in (NodeHello(1, "{}"), Leaving()):
                node.send(word)
                assert await zero.receive() == word
            zero.send(Up())
            assert await node.receive() == Up()

    asyncio.run(talk())


def test_connections_of_strangers_do_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    args = ServerArgs(model_path="m", nnodes=2, tp_size=2, dist_init_addr="127.0.0.1:9")
    nodes = Nodes(args, Ranks(args, tmp_path), lambda: None, ONE)

    async def talk() -> None:
        await nodes.open(("127.0.0.1", 0))
        address = nodes._server.sockets[0].getsockname()
        for _ in range(3 * BURST):
            reader, writer = await asyncio.open_connection(*address)
            writer.write((100).to_bytes(4, "big") + b"x" * 100)
            await reader.read()
            writer.close()
        await nodes.close()

    asyncio.run(talk())
    assert 0 < len([one for one in caplog.messages if one.startswith("Dropping malformed frame")]) < 2 * BURST


@pytest.mark.parametrize(("far", "near"), [(ONE, None), (None, ONE)])
def test_a_node_without_the_others_secret_is_told_the_variable(
    far: DeploymentSecret | None, near: DeploymentSecret | None
) -> None:
    async def talk() -> None:
        async with wires(far, near) as (zero, node, _):
            for text in await greeted(zero, node):
                assert ENV in text
                assert "has none" in text

    asyncio.run(talk())


def test_a_node_with_another_secret_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> Word | None:
        async with wires(ONE, OTHER) as (zero, node, _):
            assert await greeted(zero, node) == ("", "")
            node.send(Leaving())
            return await zero.receive()

    assert asyncio.run(talk()) is None
    assert ENV in caplog.text


def test_a_frame_counts_once_and_on_its_own_connection() -> None:
    async def talk(again: bytes | None) -> tuple[bytes, Word | None]:
        tap: list[bytes] = []
        async with wires(ONE, ONE, tap) as (zero, node, raw):
            assert await greeted(zero, node) == ("", "")
            if again is not None:
                raw.write(again)
                return again, await zero.receive()
            node.send(Leaving())
            assert await zero.receive() == Leaving()
            captured = tap[-1]
            raw.write(captured)
            assert await zero.receive() is None, "a second time"
            return captured, None

    captured, _ = asyncio.run(talk(None))
    assert asyncio.run(talk(captured))[1] is None, "on another connection"


def test_the_first_who_says_it_is_a_rank_is_that_rank_and_no_rank_is_made_up() -> None:
    meeting = Meeting("tcp://127.0.0.1:*", 2)
    try:
        for here in (Here(0, 0, "tcp://a:1"), Here(0, 0, "tcp://evil:1"), Here(9), Here(2)):
            meeting.take(b"x", [meeting_codec.encode(here)])
        for frames in ([], [b"\xff" * 40], [meeting_codec.encode(Everybody([]))], [meeting_codec.encode(Here(5)), b""]):
            meeting.take(b"x", frames)
        assert meeting.ranks == {0: Here(0, 0, "tcp://a:1")}
        for _ in range(100):
            meeting.take(b"x", [meeting_codec.encode(Here(-1))])
        assert len(meeting._waiting) <= 8
    finally:
        meeting._context.destroy(linger=0)


@pytest.mark.parametrize(("far", "near"), [(ONE, None), (None, ONE), (ONE, OTHER)])
def test_a_rank_without_the_secret_of_node_0_learns_it_at_once(
    far: DeploymentSecret | None, near: DeploymentSecret | None
) -> None:
    meeting = Meeting("tcp://127.0.0.1:*", 1, SocketKeys.of(far))
    address = meeting._socket.getsockopt_string(zmq.LAST_ENDPOINT)
    try:
        with pytest.raises(NotReadyError, match="handshake") as error:
            meet(address, Here(0), 600.0, SocketKeys.of(near))
        assert ENV in error.value.fix
    finally:
        meeting._context.destroy(linger=0)


def test_ranks_with_the_secret_meet() -> None:
    keys = SocketKeys.of(ONE)
    meeting = Meeting("tcp://127.0.0.1:*", 1, keys)
    address = meeting._socket.getsockopt_string(zmq.LAST_ENDPOINT)
    done = threading.Event()

    async def host() -> None:
        meeting.open(asyncio.get_running_loop())
        await asyncio.get_running_loop().run_in_executor(None, done.wait, 20)
        meeting.close()

    thread = threading.Thread(target=lambda: asyncio.run(host()))
    thread.start()
    try:
        assert meet(address, Here(0, 0, "tcp://a:1"), 20.0, keys)[0].step == "tcp://a:1"
    finally:
        done.set()
        thread.join(20)
