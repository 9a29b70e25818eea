"""A rank's ZMQ sockets: leaders receive requests, and every rank learns when a turn begins.

All ranks of a replica must see the same requests in the same order, or their collectives would not match. So only the
leader of an attention DP group (pipeline stage 0, attention TP rank 0) has an outside socket. Each turn it forwards the
raw frames as one step to the ranks of its group, which block until it arrives. The groups' MLP and expert layers are
computed together, so their turns are common too: the world leader (TP rank 0 of stage 0) begins each turn, and the
other leaders wait for it. Any other rank with news (requests for its group, or its KV manager's) wakes the world
leader, never itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

import zmq

from pdctl.engine.config.process_log import LogRate
from pdctl.engine.ipc.channels import Here, Line, meet, own_ip
from pdctl.engine.ipc.messages import FrameError, Reply, Request, reply_codec, request_codec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from logging import Logger

    from pdctl.engine.ipc.channels import Channels, SocketKeys
    from pdctl.layout.shape import RankPlace, Shape

    Socket = zmq.Socket[bytes]

MAX_FRAMES_PER_STEP = 256
WAKE = b"w"
STEP = b"step"


class Mailbox:
    """Requests in, replies out, and the wake-up of a sleeping replica.

    Only `wake` and `alarm` may be called from another thread.

    Nothing is received before `join`.
    """

    def __init__(
        self, shape: Shape, rank: RankPlace, tokenizer: str, logger: Logger, keys: SocketKeys | None = None
    ) -> None:
        """`keys`: for all sockets, if they use TCP."""
        self._rate = LogRate(logger)
        self._keys = keys
        self._shape = shape
        self._rank = rank
        self._leads_group = rank.pp_rank == 0 and rank.attn_tp_rank == 0 and rank.attn_cp_rank == 0
        self._leads_world = rank.world_rank == 0
        self._context: zmq.Context[Socket] = zmq.Context()
        self._replies = self._dialled(tokenizer)
        # A socket belongs to one thread at a time, and a new one could not be connected later: the tokenizer manager's
        # address is removed with its directory as soon as all ranks are ready.
        self._alarms = self._dialled(tokenizer)
        self._alarm_lock = threading.Lock()
        self._followers: list[Socket] = []
        self._leaders: list[Socket] = []
        self._wake_lock = threading.Lock()
        self._woken = False
        self._wake_out: Socket | None = None
        self._sleeper = zmq.Poller()  # what wakes a leader
        self._pipe = self._pipe_in = -1

    def join(self, lines: Mapping[int, Line]) -> None:
        """Listen on this rank's addresses and connect to the others: on one node, all are known beforehand."""
        self._bind(lines[self._rank.world_rank])
        self._dial(lines)

    def join_nodes(self, channels: Channels, seconds: float) -> None:
        """Do the same over TCP, on free ports that the ranks exchange at the meeting. Raise NotReadyError naming it."""
        address = f"tcp://{own_ip(channels.nodes[0])}:*"
        bound = self._bind(Line(address, address, address))
        here = Here(self._rank.world_rank, self._rank.node, bound.step, bound.input, bound.wake)
        self._dial(meet(channels.meeting, here, seconds, self._keys))

    def _bind(self, line: Line) -> Line:
        """Bind only the sockets that this rank needs; return their addresses."""
        step, inlet, wake = line
        if self._leads_world:
            self._wake_in = self._socket(zmq.PULL)
            wake = self._bound(self._wake_in, wake)
            self._pipe, self._pipe_in = os.pipe()
            os.set_blocking(self._pipe, False)
            os.set_blocking(self._pipe_in, False)
            self._sleeper.register(self._wake_in, zmq.POLLIN)
            self._sleeper.register(self._pipe, zmq.POLLIN)
        else:
            self._steps = self._socket(zmq.PULL)
            step = self._bound(self._steps, step)
            self._sleeper.register(self._steps, zmq.POLLIN)
        if self._leads_group:
            self._input = self._socket(zmq.PULL)
            inlet = self._bound(self._input, inlet)
            self._sleeper.register(self._input, zmq.POLLIN)
        return Line(step, inlet, wake)

    def _bound(self, socket: Socket, address: str) -> str:
        socket.setsockopt(zmq.MAXMSGSIZE, request_codec.max_bytes)
        if self._keys is not None:
            self._keys.listen(socket)
        socket.bind(address)
        return str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")

    def _dial(self, lines: Mapping[int, Line]) -> None:
        shape, rank = self._shape, self._rank
        if not self._leads_world:
            self._wake_out = self._dialled(lines[0].wake)
            self._wake_again()
        if self._leads_group:
            first = rank.tp_rank
            members = [
                shape.tp * stage + tp for stage in range(shape.pp) for tp in range(first, first + shape.attn_tp_size)
            ]
            self._followers = [self._dialled(lines[member].step) for member in members if member != rank.world_rank]
        if self._leads_world:
            leaders = range(shape.attn_tp_size, shape.tp, shape.attn_tp_size)
            self._leaders = [self._dialled(lines[leader].step) for leader in leaders]

    def _dialled(self, address: str) -> Socket:
        socket = self._socket(zmq.PUSH)
        if self._keys is not None:
            self._keys.dial(socket)
        socket.connect(address)
        return socket

    def _socket(self, kind: int) -> Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        return socket

    def wake(self) -> None:
        """End the wait of the world leader's `receive` now. Safe from any thread; many calls cost one."""
        with self._wake_lock:
            if self._woken:
                return
            self._woken = True
            if self._wake_out is not None:
                self._wake_out.send(WAKE)
            elif self._pipe_in >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._pipe_in, WAKE)

    def _wake_again(self) -> None:
        """Repeat a wake-up that came before there was a socket to send it on."""
        with self._wake_lock:
            early, self._woken = self._woken, False
        if early:
            self.wake()

    def receive(self, wait: float) -> list[Request]:
        """Return this turn's requests. The world leader waits `wait` seconds for any or a wake-up, others for it."""
        if not self._leads_group:
            return self._decode(self._stepped())
        if self._leads_world:
            ready = dict(self._sleeper.poll(int(wait * 1000)))
            self._drain_wakes(ready)
            for leader in self._leaders:
                leader.send(STEP)
        else:
            self._await_step()
        frames = self._drain_input()
        for follower in self._followers:
            follower.send_multipart([STEP, *frames])
        return self._decode(frames)

    def _stepped(self) -> list[bytes]:
        frames = self._steps.recv_multipart()
        with self._wake_lock:
            self._woken = False
        return frames[1:]

    def _await_step(self) -> None:
        """Wait for the next turn; wake the world leader, once, if requests arrive before it."""
        ready = dict(self._sleeper.poll())
        if self._steps not in ready:
            self.wake()
        self._stepped()

    def _drain_wakes(self, ready: dict[object, int]) -> None:
        if self._pipe in ready:
            # Together: a wake-up in between would be read here while its flag stays, and every later one be left out.
            with self._wake_lock, contextlib.suppress(BlockingIOError):
                self._woken = False
                os.read(self._pipe, 4096)
        if self._wake_in in ready:
            with contextlib.suppress(zmq.Again):
                while True:
                    self._wake_in.recv(zmq.DONTWAIT)

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
            self._rate.warning("Dropping malformed frame: %s", error)
            return None

    def send(self, reply: Reply) -> None:
        self._replies.send(reply_codec.encode(reply))

    def alarm(self, reply: Reply) -> None:
        """Tell the tokenizer manager, whatever the scheduler's thread is doing. Safe from any thread."""
        with self._alarm_lock:
            if not self._alarms.closed:
                self._alarms.send(reply_codec.encode(reply))

    def close(self) -> None:
        self._context.destroy(linger=1000)
        for end in (self._pipe, self._pipe_in):
            if end >= 0:
                os.close(end)
        self._pipe = self._pipe_in = -1
