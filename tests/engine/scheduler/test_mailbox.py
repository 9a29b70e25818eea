"""The sockets of a rank: order, wake-ups from other threads, foreign frames, followers and other groups in step."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

from pdctl.engine.config.instance_args import ReplicaRank
from pdctl.engine.ipc.channels import Line, local_line
from pdctl.engine.ipc.messages import AbortRequest, Flush, Flushed, Request, reply_codec, request_codec
from pdctl.engine.scheduler.rank_mailbox import Mailbox
from pdctl.layout.shape import Shape

log = logging.getLogger("test")
ALONE = Shape(nnodes=1)


@pytest.fixture
def ipc() -> Iterator[Path]:
    # Not tmp_path: a Unix socket's path may not be longer than about 100 characters.
    with tempfile.TemporaryDirectory(prefix="pd") as folder:
        yield Path(folder)


@contextmanager
def boxes(ipc: Path, shape: Shape) -> Iterator[dict[int, Mailbox]]:
    """A mailbox for every rank of one replica, all in this process, by world rank."""
    everyone = [here.rank for here in ReplicaRank.all(shape)]
    lines: dict[int, Line] = {rank.world_rank: local_line(ipc, 0, rank) for rank in everyone}
    with ExitStack() as stack:
        made = {}
        for rank in everyone:
            box = made[rank.world_rank] = Mailbox(shape, rank, f"ipc://{ipc}/tokenizer", log)
            stack.callback(box.close)
            box.join(lines)
        yield made


@contextmanager
def sender(ipc: Path, group: int = 0) -> Iterator[zmq.Socket[bytes]]:
    """The DP controller's end of a group's input, or the tokenizer manager's."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(f"ipc://{ipc}/scheduler-{group}")
        yield socket


def turns(box: Mailbox, count: int, seen: list[list[Request]], wait: float = 20.0) -> threading.Thread:
    """A rank on a thread of its own: it writes down what `count` turns bring it."""

    def run() -> None:
        for _ in range(count):
            seen.append(box.receive(wait))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


class LockThatLetsOneIn:
    """A lock that wakes the rank as soon as it is released for the first time: as another thread may."""

    def __init__(self, box: Mailbox) -> None:
        self._box: Mailbox | None = box
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        box, self._box = self._box, None
        if box is not None:
            box.wake()


def test_a_wake_up_while_others_are_taken_is_not_the_last(ipc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn would wait for its deadline from then on, and a room for up to 50 ms in vain."""
    with boxes(ipc, ALONE) as ranks:
        box = ranks[0]
        box.wake()
        monkeypatch.setattr(box, "_wake_lock", LockThatLetsOneIn(box))
        box.receive(20.0)
        for _ in range(3):
            box.wake()
            began = time.monotonic()
            box.receive(20.0)
            assert time.monotonic() - began < 10.0


def test_requests_arrive_in_order_and_foreign_frames_are_dropped(ipc: Path) -> None:
    with boxes(ipc, ALONE) as ranks, sender(ipc) as out:
        for frame in (
            request_codec.encode(AbortRequest("a")),
            b"GET / HTTP/1.1",
            b"",
            request_codec.encode(Flush("f"))[:-1],
            request_codec.encode(Flush("f")),
        ):
            out.send(frame)
        got: list[Request] = []
        deadline = time.monotonic() + 5
        while len(got) < 2 and time.monotonic() < deadline:
            got += ranks[0].receive(0.2)
    assert got == [AbortRequest("a"), Flush("f")]


def test_a_wake_ends_the_wait_and_many_are_one(ipc: Path) -> None:
    with boxes(ipc, ALONE) as ranks:
        box = ranks[0]
        seen: list[list[Request]] = []
        waiting = turns(box, 1, seen, wait=60.0)
        threading.Timer(0.1, box.wake).start()
        waiting.join(30)
        assert seen == [[]]
        for _ in range(1000):
            box.wake()
        assert box.receive(60.0) == []
        began = time.monotonic()
        assert box.receive(0.05) == []
        assert time.monotonic() - began >= 0.04


def test_a_wake_before_there_is_anybody_to_wake_is_not_lost(ipc: Path) -> None:
    shape = Shape(tp=2, nnodes=1)
    leader, follower = (here.rank for here in ReplicaRank.all(shape))
    lines = {rank.world_rank: local_line(ipc, 0, rank) for rank in (leader, follower)}
    first, second = (Mailbox(shape, rank, f"ipc://{ipc}/tokenizer", log) for rank in (leader, follower))
    try:
        second.wake()
        second.join(lines)
        first.join(lines)
        seen: list[list[Request]] = []
        thread = turns(first, 1, seen)
        thread.join(10)
        assert seen == [[]]
    finally:
        second.close()
        first.close()


def test_followers_see_what_the_leader_sees_and_wake_it(ipc: Path) -> None:
    with boxes(ipc, Shape(tp=2, nnodes=1)) as ranks, sender(ipc) as out:
        out.send(request_codec.encode(AbortRequest("x")))
        seen: list[tuple[list[Request], list[Request]]] = []
        deadline = time.monotonic() + 10
        threading.Timer(0.2, ranks[1].wake).start()
        while len(seen) < 2 and time.monotonic() < deadline:
            mine = ranks[0].receive(10.0)
            seen.append((mine, ranks[1].receive(10.0)))
    assert seen == [([AbortRequest("x")], [AbortRequest("x")]), ([], [])]


@pytest.mark.parametrize("shape", [Shape(tp=4, dp=2, nnodes=1), Shape(tp=4, dp=2, pp=2, nnodes=1)], ids=["pp1", "pp2"])
def test_a_request_reaches_its_own_dp_group_only_and_all_turn_together(ipc: Path, shape: Shape) -> None:
    """The second group's request wakes the world leader; both groups take the same number of turns."""
    with boxes(ipc, shape) as ranks, sender(ipc, 1) as second:
        seen: dict[int, list[list[Request]]] = {rank: [] for rank in ranks}
        threads = [turns(box, 1, seen[rank]) for rank, box in ranks.items()]
        second.send(request_codec.encode(AbortRequest("for the second")))
        for thread in threads:
            thread.join(10)
        inside = {here.rank.world_rank for here in ReplicaRank.all(shape) if here.rank.attn_dp_rank == 1}
        assert seen == {rank: [[AbortRequest("for the second")] if rank in inside else []] for rank in ranks}


def test_every_rank_of_every_stage_and_group_can_wake_the_world_leader(ipc: Path) -> None:
    shape = Shape(tp=4, dp=2, pp=2, nnodes=1)
    with boxes(ipc, shape) as ranks:
        for waking in ranks.values():
            seen: dict[int, list[list[Request]]] = {rank: [] for rank in ranks}
            threads = [turns(box, 1, seen[rank]) for rank, box in ranks.items()]
            waking.wake()
            for thread in threads:
                thread.join(10)
            assert seen == {rank: [[]] for rank in ranks}


def test_replies_reach_the_tokenizer(ipc: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as receiver:
        receiver.bind(f"ipc://{ipc}/tokenizer")
        with boxes(ipc, ALONE) as ranks:
            ranks[0].send(Flushed("f", True))
            assert receiver.poll(5000)
            assert reply_codec.decode(receiver.recv()) == Flushed("f", True)
