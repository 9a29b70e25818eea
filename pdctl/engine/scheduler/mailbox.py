"""A rank's ZMQ sockets: rank 0 takes requests and tells its followers what to do, step by step.

Every rank of a TP group must see the same requests in the same order, or their collectives would not match. Rank 0
is the only one with an outside socket; each loop turn it forwards the raw frames as one step and the followers block on
that. A follower whose KV manager has news wakes rank 0, never itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

import zmq

from pdctl.engine.messages import Reply, Request, reply_codec, request_codec
from pdctl.engine.wire import FrameError

if TYPE_CHECKING:
    from logging import Logger
    from pathlib import Path

    Socket = zmq.Socket[bytes]

MAX_FRAMES_PER_STEP = 256
WAKE = b"w"


def scheduler_address(ipc_dir: Path, dp_rank: int) -> str:
    return f"ipc://{ipc_dir}/scheduler-{dp_rank}"


def tokenizer_address(ipc_dir: Path) -> str:
    return f"ipc://{ipc_dir}/tokenizer"


class Mailbox:
    """Requests in, replies out, and the wake-up of a sleeping rank. Only `wake` may be called from another thread."""

    def __init__(self, ipc_dir: Path, dp_rank: int, tp_rank: int, tp_size: int, logger: Logger) -> None:
        self._log = logger
        self._leader = tp_rank == 0
        self._context: zmq.Context[Socket] = zmq.Context()
        self._replies = self._socket(zmq.PUSH)
        self._replies.connect(tokenizer_address(ipc_dir))
        step = f"ipc://{ipc_dir}/step-{dp_rank}"
        self._followers: list[Socket] = []
        self._wake_lock = threading.Lock()
        self._woken = False
        self._wake_out: Socket | None = None
        self._poller = zmq.Poller()
        if self._leader:
            self._input = self._socket(zmq.PULL)
            self._input.setsockopt(zmq.MAXMSGSIZE, request_codec.max_bytes)
            self._input.bind(scheduler_address(ipc_dir, dp_rank))
            for rank in range(1, tp_size):
                socket = self._socket(zmq.PUSH)
                socket.bind(f"{step}-{rank}")
                self._followers.append(socket)
            self._pipe, self._pipe_in = os.pipe()
            os.set_blocking(self._pipe, False)
            os.set_blocking(self._pipe_in, False)
            self._poller.register(self._input, zmq.POLLIN)
            self._poller.register(self._pipe, zmq.POLLIN)
            if tp_size > 1:
                self._wake_in = self._socket(zmq.PULL)
                self._wake_in.bind(f"{step}-wake")
                self._poller.register(self._wake_in, zmq.POLLIN)
        else:
            self._input = self._socket(zmq.PULL)
            self._input.connect(f"{step}-{tp_rank}")
            self._wake_out = self._socket(zmq.PUSH)
            self._wake_out.connect(f"{step}-wake")

    def _socket(self, kind: int) -> Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        return socket

    def wake(self) -> None:
        """End the wait of rank 0's `receive` now. Safe from any thread; many calls cost one."""
        with self._wake_lock:
            if self._woken:
                return
            self._woken = True
            if self._wake_out is not None:
                self._wake_out.send(WAKE)
            else:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._pipe_in, WAKE)

    def receive(self, wait: float) -> list[Request]:
        """Requests for this turn. Rank 0 waits up to `wait` seconds for one, or for a wake-up; followers for rank 0."""
        if not self._leader:
            frames = self._input.recv_multipart()
            with self._wake_lock:
                self._woken = False
            return self._decode(frames[1:])
        ready = dict(self._poller.poll(int(wait * 1000)))
        self._drain_wakes(ready)
        frames = self._drain_input() if self._input in ready else []
        for follower in self._followers:
            follower.send_multipart([b"step", *frames])
        return self._decode(frames)

    def _drain_wakes(self, ready: dict[object, int]) -> None:
        if self._pipe in ready:
            with self._wake_lock:
                self._woken = False
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipe, 4096)
        wake_in = getattr(self, "_wake_in", None)
        if wake_in is not None and wake_in in ready:
            with contextlib.suppress(zmq.Again):
                while True:
                    wake_in.recv(zmq.DONTWAIT)

    def _drain_input(self) -> list[bytes]:
        frames: list[bytes] = []
        with contextlib.suppress(zmq.Again):
            while len(frames) < MAX_FRAMES_PER_STEP:
                frames.append(self._input.recv(zmq.DONTWAIT))
        return frames

    def _decode(self, frames: list[bytes]) -> list[Request]:
        return [request for request in map(self._decode_one, frames) if request is not None]

    def _decode_one(self, frame: bytes) -> Request | None:
        try:
            return request_codec.decode(frame)
        except FrameError as error:
            self._log.warning("Dropping malformed frame: %s", error)
            return None

    def send(self, reply: Reply) -> None:
        self._replies.send(reply_codec.encode(reply))

    def close(self) -> None:
        self._context.destroy(linger=1000)
        if self._leader:
            os.close(self._pipe)
            os.close(self._pipe_in)
