"""What strangers send to a rank: KV frames, bootstrap HTTP, words of a meeting and of a node, each to the living thing.

Nothing is dialled: the endpoint in a frame is held to the real rules, and then nobody is called. Memory, transport,
tables and deadlines are the real ones; the rank lives through all cases of a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import socket
from collections.abc import Callable, Iterator

import msgspec
import zmq

from pdctl.engine.cluster.node_links import NONCE, Greeting, Leaving, Lost, NodeHello, Nodes, NodeWire, Up
from pdctl.engine.cluster.node_links import codec as node_codec
from pdctl.engine.cluster.rank_processes import Ranks
from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.decode.decode_manager import DecodeManager
from pdctl.engine.drill.kv_faults import FrameFaults
from pdctl.engine.ipc.channels import Everybody, Here, Meeting, SocketKeys, meeting_codec
from pdctl.engine.kv_link import kv_loop as loops
from pdctl.engine.kv_link import room_state as failure
from pdctl.engine.kv_link.bootstrap_client import TIMEOUT, BootstrapClient, ParallelInfo, RankEndpoint
from pdctl.engine.kv_link.kv_frames import (
    Abort,
    AbortAck,
    Checksums,
    Link,
    LinkEvent,
    RegisterAck,
    Status,
    TransferInfo,
    Unregister,
    codec,
    pack_pages,
    require_address,
)
from pdctl.engine.kv_link.kv_manager import KvManager
from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from pdctl.engine.prefill.bootstrap_server import BootstrapServer
from pdctl.engine.prefill.prefill_manager import PrefillManager
from pdctl.engine.prefill.rank_table import CRASHED
from pdctl.engine.transfer import select
from tests.engine.kv_link.impostor import REGISTER
from tests.engine.kv_link.rig import DECODE, HOST, PREFILL, geometry, pages
from tests.fuzz.edits import SEPARATOR
from tests.fuzz.judge import Body, Target
from tests.fuzz.stand_ins import Taker, connection, stands_for

ENDPOINT = f"tcp://{HOST}:9"
BETWEEN = b"\x1e\x1e\x1e\x1e"  # a frame may hold SEPARATOR itself
TURNS = 4  # of the loop: a question, its answer and what is done with it
KEPT = 500  # cases after which a manager's own deadlines have come
ROOM = 77
LOG = logging.getLogger("pdctl.engine")


@stands_for(Link)
class Deaf(Link):
    """A link to nobody: the endpoint is judged, and what is sent is encoded and gone."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: SocketKeys | None = None) -> None:
        require_address(endpoint)
        self.endpoint, self.closed = endpoint, False
        self.monitor_fd = -1
        self.sent = 0

    def send(self, frame: bytes) -> bool:
        codec.decode(frame)
        self.sent += 1
        return not self.closed

    def events(self) -> list[LinkEvent]:
        return []

    def close(self, linger: float = 0.0) -> None:
        self.closed = True


@stands_for(FrameFaults)
class NobodyListens(FrameFaults):
    """Where rehearsed faults choose the links: nothing is spoilt, and nobody is called."""

    def __init__(self) -> None:
        return

    def link(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: SocketKeys | None = None) -> Link:
        return Deaf(context, endpoint, keys)

    def passing(self, frame: bytes, prefix: str, go_on: Callable[[bytes], bool]) -> bool:
        return go_on(frame)


SHAPE_ANSWER = msgspec.json.encode(ParallelInfo(1, 1, 1, 1, 4, "float32"))
RANK_ANSWER = msgspec.json.encode(RankEndpoint(HOST, 9))


@stands_for(BootstrapClient)
class Answering(BootstrapClient):
    """The bootstrap server of one prefill rank, which answers at once."""

    async def call(
        self, address: str, method: str, target: str, body: bytes | None = None, timeout: float = TIMEOUT
    ) -> bytes:
        if "/route?" not in target:
            return b"{}"
        return SHAPE_ANSWER if "prefill_dp_rank=-1" in target else RANK_ANSWER


class Rank:
    """A manager whose thread is this one. Its guard must have nothing to do: what it would catch is a finding."""

    def __init__(self, kind: type[KvManager], backend: str = "shm") -> None:
        config = PREFILL if kind is PrefillManager else DECODE
        self.transport = select.create(backend, HOST)
        self.transport.register(self.transport.allocate(geometry().nbytes))
        self.manager = kind(config, self.transport, geometry(), lambda: None)
        self.manager.on_poisonous = _raise  # type: ignore[method-assign]
        self.loop = self.manager.loop
        self.loop.bootstrap = Answering()
        self.loop._loop.add_reader = self.loop._loop.remove_reader = _unwatched  # type: ignore[method-assign,assignment]
        self.loop.faults = NobodyListens()
        self.cases = 0

    def take(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.manager.on_frame(frame)
        self.turn()
        self.manager.advance()
        self.cases += 1
        if isinstance(self.manager, PrefillManager):
            if not self.cases % KEPT:
                self._settle(self.manager)
            self._bounded(self.manager)

    def turn(self) -> None:
        """What is ready, what is due, and what follows at once."""
        for _ in range(TURNS):
            self.loop._loop.run_until_complete(asyncio.sleep(0))

    def _settle(self, manager: PrefillManager) -> None:
        """What deadlines would do in half a minute: page lists that nobody wants leave."""
        for key in list(manager._unclaimed._kept):
            manager._unclaimed._expire(key)
        for sender in list(manager._rooms.values()):
            sender.clear()
        manager.sender(ROOM, "rid")

    def _bounded(self, manager: PrefillManager) -> None:
        assert len(manager._sessions) <= 1024
        assert len(manager._unclaimed._kept) <= 4096
        assert len(self.loop._answers) <= loops.MOST_ANSWERS
        assert len(self.loop._links) <= 1024


def _unwatched(descriptor: object, *more: object) -> None:
    """No socket of the rank is anybody's to wait for."""


def _raise(message: object, why: str) -> None:
    raise AssertionError(f"the guard caught {why}")


@functools.cache
def prefill() -> Rank:
    rank = Rank(PrefillManager)
    rank.take([])
    rank.manager.sender(ROOM, "rid")  # type: ignore[attr-defined]
    return rank


@functools.cache
def decode() -> Rank:
    return Rank(DecodeManager)


@functools.cache
def far_descriptor() -> bytes:
    far_descriptor.kept = select.create("shm", HOST)  # type: ignore[attr-defined]
    far_descriptor.kept.register(far_descriptor.kept.allocate(geometry().nbytes))  # type: ignore[attr-defined]
    return bytes(far_descriptor.kept.descriptor())  # type: ignore[attr-defined]


def kv_prefill(data: bytes) -> None:
    """Frames to a prefill rank."""
    prefill().take(data.split(BETWEEN))


def kv_decode(data: bytes) -> None:
    """Frames to a decode rank that has a room, and a connection that waits for its answer or has it."""
    rank = decode()
    _connected(rank)
    rank.take(data.split(BETWEEN))
    manager = rank.manager
    assert isinstance(manager, DecodeManager)
    for receiver in list(manager._active.values()):
        if receiver.poll() == KVPoll.WAITING_FOR_INPUT:
            receiver.send_metadata(pages(1))
    rank.take([])
    assert len(manager._rooms) <= KEPT
    if len(manager._rooms) == KEPT:  # what their deadlines would do
        for receiver in list(manager._rooms.values()):
            receiver._expire()


def _connected(rank: Rank) -> None:
    """A room, and a connection under the session of the seeds: once its rank's endpoint is known."""
    manager = rank.manager
    assert isinstance(manager, DecodeManager)
    if "s" in manager._by_session and manager._active:
        return
    for known in list(manager._by_session.values()):
        known.end(failure.failure_of(FailureCode.PREFILL_LOST, "another case"))
    for room in list(manager._active.values()):
        room.fail(failure.failure_of(FailureCode.PREFILL_LOST, "another case"))
    manager._prefills._addresses.clear()
    manager._rooms.clear()
    manager._generations = itertools.count(1)
    manager.receiver(ROOM, "rid", HOST, 9)
    for _ in range(TURNS):
        rank.turn()
    (connection,) = manager._by_session.values()
    manager._by_session = {"s": connection}
    connection.session = "s"


def kv_seeds() -> tuple[bytes, ...]:
    register = msgspec.structs.replace(REGISTER, descriptor=far_descriptor(), endpoint=ENDPOINT, session="s")
    info = TransferInfo(ROOM, "s", ENDPOINT, 7, pack_pages(pages(1, 2, 3)))
    sums = Checksums(0, 6, 0, 2, pack_pages(pages(1)), b"\0" * 4)
    frames = (
        register,
        info,
        Abort(ROOM, "s", ENDPOINT, 7, "because"),
        Abort(5, "s", ENDPOINT, 7, "because", "mismatch", True),
        Unregister("s"),
        RegisterAck("s", ENDPOINT, "host", True),
        RegisterAck("s", ENDPOINT, "host", False, "because", "stale_endpoint"),
        Status(ROOM, "s", 1, KVPoll.SUCCESS, 0, metadata=b"\x00\xff", checksums=sums),
        Status(ROOM, "s", 1, KVPoll.FAILED, 0, "unknown_session", "because"),
        AbortAck(ROOM, "s", 1, 0),
    )
    alone = tuple(codec.encode(frame) for frame in frames)
    return (*alone, BETWEEN.join(alone[:2]), BETWEEN.join(alone[:3]), BETWEEN.join((alone[0], alone[1], alone[4])))


# --- the bootstrap server, as bytes of a connection


@functools.cache
def event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


@functools.cache
def options() -> socket.socket:
    """A real socket, for what is asked of the one below a connection."""
    return socket.socket()


@functools.cache
def bootstrap_server() -> BootstrapServer:
    return BootstrapServer(HOST, 0)


@contextlib.contextmanager
def no_exceptions_logged(name: str) -> Iterator[None]:
    """An exception that the server below caught and logged is a finding too."""
    logger, caught = logging.getLogger(name), Exceptions()
    logger.addHandler(caught)
    try:
        yield
    finally:
        logger.removeHandler(caught)
    for error in caught.seen:
        raise error


class Exceptions(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.seen.append(record.exc_info[1])


@functools.cache
def served() -> itertools.count[int]:
    return itertools.count(1)


def bootstrap_http(data: bytes) -> None:
    """A connection to the bootstrap server: any bytes, and what it says is HTTP."""
    server = bootstrap_server()

    async def serve() -> bytearray:
        protocol = server.protocol()
        transport = Taker({"socket": options(), "peername": (HOST, 9), "sockname": (HOST, 9)})
        transport.protocol = protocol  # type: ignore[assignment]
        protocol.connection_made(transport)
        protocol.data_received(data)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        transport.close()  # the client leaves, whatever it has said
        while protocol.tasks or not transport.over:
            await asyncio.sleep(0)
        return transport.data

    with no_exceptions_logged("uvicorn.error"):
        written = event_loop().run_until_complete(serve())
    assert not written or written.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 500" not in written or CRASHED.encode() in written  # as SGLang answers such a query
    assert len(server.table._ranks) <= 1 << 16
    if not next(served()) % KEPT:
        server.table.clear()


def bootstrap_seeds() -> tuple[bytes, ...]:
    from pdctl.engine.prefill.registration import rank_row

    row = msgspec.json.encode(rank_row(PREFILL, 4242, "an-instance"))
    head = b"%s %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
    query = b"/route?prefill_dp_rank=%d&prefill_cp_rank=%d&target_tp_rank=%d&target_pp_rank=%d"
    put = head % (b"PUT", b"/route", len(row), row)
    room = b'{"bootstrap_room": 7, "dp_rank": 1}'
    rooms = b'{"bootstrap_rooms": [7, "8"]}'
    found = (
        put,
        head % (b"GET", query % (-1, -1, -1, -1), 0, b""),
        put + head % (b"GET", query % (0, 0, 0, 0), 0, b""),
        head % (b"POST", b"/register_dp_rank", len(room), room),
        head % (b"POST", b"/query_dp_ranks", len(rooms), rooms),
        head % (b"GET", b"/health", 0, b""),
        b"PUT /route HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(row), row),
    )
    return found


# --- the meeting and the nodes


@functools.cache
def the_meeting() -> Meeting:
    return Meeting(f"tcp://{HOST}:*", 4)


def meeting(data: bytes) -> None:
    """Messages of any peers to the meeting of four ranks: no table grows beyond them."""
    met = the_meeting()
    for number, message in enumerate(data.split(BETWEEN)):
        met.take(b"\0peer%d" % number, message.split(SEPARATOR))
    assert set(met.ranks) <= set(range(4))
    assert len(met._waiting) <= 16
    if len(met.ranks) == 4:
        met.ranks.clear()


def meeting_seeds() -> tuple[bytes, ...]:
    here = [meeting_codec.encode(Here(rank, 0, ENDPOINT, ENDPOINT, ENDPOINT)) for rank in range(-1, 4)]
    return (*here, SEPARATOR.join((b"", here[1])), BETWEEN.join(here), meeting_codec.encode(Everybody([Here(0)])))


@stands_for(Ranks)
class Lose:
    """The ranks of node 0."""

    def lose(self, reason: str) -> None:
        reason.encode()


ARGS = ServerArgs(model_path="m", nnodes=2, tp_size=2, dist_init_addr=f"{HOST}:9")


def node(data: bytes) -> None:
    """A connection to node 0: any bytes end it and it alone."""
    nodes = Nodes(ARGS, Lose(), lambda: None)  # type: ignore[arg-type]

    async def serve() -> None:
        reader, writer, _ = connection(data, (HOST, 9), options())
        await nodes._serve(NodeWire(reader, writer, None, node0=True))

    event_loop().run_until_complete(serve())
    assert set(nodes._wires) <= {1}


def framed(*words: object) -> bytes:
    frames = [node_codec.encode(word) for word in words]  # type: ignore[arg-type]
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def node_seeds() -> tuple[bytes, ...]:
    greeting, hello = Greeting(b"n" * NONCE, False), NodeHello(1, ARGS.to_json())
    return (
        framed(greeting, hello, Leaving()),
        framed(greeting, hello, Lost("because"), Up()),
        framed(greeting, NodeHello(7, "{}")),
        framed(greeting, NodeHello(1, "[]")),
        framed(Greeting(b"n" * NONCE, True), hello),
        framed(hello),
    )


def quietly(body: Body) -> Body:
    """Without the engine's log: a line for each case tells nothing."""

    def run(data: bytes) -> None:
        LOG.disabled = True
        try:
            body(data)
        finally:
            LOG.disabled = False

    return run


RANK_TARGETS = {
    target.name: target
    for target in (
        Target("kv-prefill", quietly(kv_prefill), kv_seeds),
        Target("kv-decode", quietly(kv_decode), kv_seeds),
        Target("bootstrap-http", quietly(bootstrap_http), bootstrap_seeds),
        Target("meeting", quietly(meeting), meeting_seeds),
        Target("node", quietly(node), node_seeds),
    )
}
