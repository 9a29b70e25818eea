"""The sockets to and from the schedulers, and questions that every DP replica answers.

Runs on the HTTP process's event loop and never blocks it: ZMQ queues what is sent, and replies are read whenever the
socket's descriptor becomes readable.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import zmq

from pdctl.engine.config.instance_args import Whereabouts
from pdctl.engine.drill import fault_points
from pdctl.engine.frontend.request_bodies import HttpRefusal
from pdctl.engine.ipc.channels import Channels, keys_of, local_input
from pdctl.engine.ipc.messages import FrameError, reply_codec, request_codec
from pdctl.thread_death import guarded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.ipc.messages import Reply, Request
    from pdctl.thread_death import Tell

    Socket = zmq.Socket[bytes]

log = logging.getLogger("pdctl.engine")


class SchedulerSocket:
    """Connects to the leader of the only DP group, or to the DP controller of several. Needs a running event loop."""

    def __init__(self, args: ServerArgs, ipc_dir: Path, receive: Callable[[Reply], None], lose: Tell) -> None:
        """`receive` is called with every reply, `lose` with the reason if no more can be read."""
        self._receive = receive
        self._reach = fault_points.raiser("thread.tokenizer-manager")
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[Socket] = zmq.Context()
        self._replies = self._context.socket(zmq.PULL)
        self._replies.setsockopt(zmq.RCVHWM, 0)
        self._replies.setsockopt(zmq.MAXMSGSIZE, reply_codec.max_bytes)
        channels = Channels.of(args, ipc_dir)
        keys = keys_of(channels)
        if keys is not None:
            keys.listen(self._replies)
        self._replies.bind(channels.tokenizer)
        self._requests = self._context.socket(zmq.PUSH)
        self._requests.setsockopt(zmq.SNDHWM, 0)
        if keys is not None and args.dispatches:
            keys.dial(self._requests)
        leader = Whereabouts.all(args.shape)[0].rank  # on this node
        self._requests.connect(channels.controller if args.dispatches else local_input(ipc_dir, leader))
        # ZMQ's descriptor does not signal again for what an error leaves unread, so such an error ends the instance.
        drain = guarded(self._drain, "tokenizer manager", lose)
        self._loop.add_reader(self._replies.fileno(), drain)
        drain()

    def send(self, request: Request) -> None:
        self._requests.send(request_codec.encode(request), zmq.DONTWAIT)

    def _drain(self) -> None:
        """Read until nothing is left: ZMQ's descriptor signals a change of state, not every message."""
        while True:
            try:
                frame = self._replies.recv(zmq.DONTWAIT)
            except zmq.Again:
                return
            if self._reach is not None:
                self._reach()
            try:
                self._receive(reply_codec.decode(frame))
            except FrameError as error:
                log.warning("Dropping malformed frame: %s", error)

    def close(self) -> None:
        self._loop.remove_reader(self._replies.fileno())
        self._context.destroy(linger=0)


class Numbered(Protocol):
    """A reply that says which question it answers."""

    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Numbered)


class Questions(Generic[T]):
    """Open questions of one kind, each answered by all replicas or ended by a deadline."""

    def __init__(self, what: str, replicas: int, send: Callable[[Request], None]) -> None:
        self._what, self._replicas, self._send = what, replicas, send
        self._open: dict[str, tuple[list[T], asyncio.Future[list[T]]]] = {}

    async def ask(self, message: Callable[[str], Request], seconds: float) -> list[T]:
        """Return one answer from every replica, in order of arrival. `message` makes the question from its id.

        Raise HttpRefusal (504) naming what was waited for.
        """
        name = uuid.uuid4().hex
        answers: list[T] = []
        complete: asyncio.Future[list[T]] = asyncio.get_running_loop().create_future()
        self._open[name] = answers, complete
        try:
            self._send(message(name))
            return await asyncio.wait_for(complete, seconds)
        except asyncio.TimeoutError:
            have = f"{len(answers)} of {self._replicas} scheduler(s) answered"
            raise HttpRefusal(504, f"waited {seconds:g} s for {self._what}: {have}") from None
        finally:
            del self._open[name]

    def answer(self, reply: T) -> None:
        """Count an answer; one that comes after the deadline is dropped."""
        answers, complete = self._open.get(reply.id, (None, None))
        if answers is None or complete is None:
            return
        answers.append(reply)
        if len(answers) == self._replicas and not complete.done():
            complete.set_result(answers)

    def fail(self, reason: str) -> None:
        """End every open question with an HttpRefusal (503): no answer will come, for this `reason`."""
        for _, complete in self._open.values():
            if not complete.done():
                complete.set_exception(HttpRefusal(503, reason))
