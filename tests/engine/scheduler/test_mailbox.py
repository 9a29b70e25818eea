"""The sockets of a rank: order, wake-ups from other threads, foreign frames, followers in step."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pdctl.engine.messages import Abort, Flush, Flushed, reply_codec, request_codec
from pdctl.engine.scheduler.mailbox import Mailbox, scheduler_address, tokenizer_address

log = logging.getLogger("test")


@pytest.fixture
def ipc() -> Iterator[Path]:
    # Not tmp_path: a Unix socket's path may not be longer than about 100 characters.
    with tempfile.TemporaryDirectory(prefix="pd") as folder:
        yield Path(folder)


@pytest.fixture
def sender(ipc: Path) -> Iterator[zmq.Socket[bytes]]:
    """The tokenizer manager's end of the scheduler's input."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(scheduler_address(ipc, 0))
        yield socket


@pytest.fixture
def receiver(ipc: Path) -> Iterator[zmq.Socket[bytes]]:
    """The tokenizer manager's end of the replies."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(tokenizer_address(ipc))
        yield socket


def test_requests_arrive_in_order_and_foreign_frames_are_dropped(ipc: Path, sender: zmq.Socket[bytes]) -> None:
    box = Mailbox(ipc, 0, 0, 1, log)
    for frame in (
        request_codec.encode(Abort("a")),
        b"GET / HTTP/1.1",
        b"",
        request_codec.encode(Flush("f"))[:-1],
        request_codec.encode(Flush("f")),
    ):
        sender.send(frame)
    got = []
    deadline = time.monotonic() + 5
    while len(got) < 2 and time.monotonic() < deadline:
        got += box.receive(0.2)
    assert got == [Abort("a"), Flush("f")]
    box.close()


def test_a_wake_ends_the_wait_at_once(ipc: Path) -> None:
    box = Mailbox(ipc, 0, 0, 1, log)
    threading.Timer(0.1, lambda: [box.wake() for _ in range(1000)]).start()
    began = time.monotonic()
    assert box.receive(10.0) == []
    assert time.monotonic() - began < 5
    began = time.monotonic()
    assert box.receive(0.05) == []  # the thousand wakes were one
    assert time.monotonic() - began >= 0.04
    box.close()


def test_followers_see_what_the_leader_sees_and_wake_it(ipc: Path, sender: zmq.Socket[bytes]) -> None:
    leader = Mailbox(ipc, 0, 0, 2, log)
    follower = Mailbox(ipc, 0, 1, 2, log)
    sender.send(request_codec.encode(Abort("x")))
    threading.Timer(0.2, follower.wake).start()
    seen: list[tuple[list[object], list[object]]] = []
    deadline = time.monotonic() + 10
    while len(seen) < 2 and time.monotonic() < deadline:
        mine = leader.receive(10.0)
        seen.append((list(mine), list(follower.receive(10.0))))
    assert seen == [([Abort("x")], [Abort("x")]), ([], [])]
    assert time.monotonic() < deadline
    follower.close()
    leader.close()


def test_replies_reach_the_tokenizer(ipc: Path, receiver: zmq.Socket[bytes]) -> None:
    box = Mailbox(ipc, 0, 0, 1, log)
    box.send(Flushed("f", True))
    assert receiver.poll(5000)
    assert reply_codec.decode(receiver.recv()) == Flushed("f", True)
    box.close()
