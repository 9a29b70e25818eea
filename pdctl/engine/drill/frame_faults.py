"""KV handshake frames that get lost, late, doubled or damaged on request (pdctl.engine.drill.fault_points)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.drill.fault_points import arm
from pdctl.engine.ipc.codec import FrameError
from pdctl.engine.kv_link.kv_frames import codec
from pdctl.engine.kv_link.kv_sockets import Link

if TYPE_CHECKING:
    from collections.abc import Callable

    import zmq

    from pdctl.engine.drill.fault_points import Armed
    from pdctl.engine.ipc.socket_keys import SocketKeys

    Later = Callable[[float, Callable[[], None]], object]


class FrameFaults:
    """`later` is the loop's timer: a frame that is late holds up nothing else."""

    def __init__(self, armed: Armed, later: Later) -> None:
        self._armed = armed
        self._later = later

    def link(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: SocketKeys | None = None) -> Link:
        return FaultyLink(self, context, endpoint, keys)

    def passing(self, frame: bytes, prefix: str, go_on: Callable[[bytes], bool]) -> bool:
        """Let `frame` go on as the faults have it; what `go_on` says, True where it never gets that far."""
        kind, room = described(frame)
        fault = self._armed.at(prefix + kind, room) if kind else None
        if fault is None or fault.action == "stall":
            return go_on(frame)
        if fault.action == "delay":
            self._later(fault.value, lambda: _forget(go_on(frame)))
        elif fault.action == "duplicate":
            go_on(frame)
            return go_on(frame)
        elif fault.action == "corrupt":
            return go_on(damaged(frame))
        return True


class FaultyLink(Link):
    def __init__(
        self,
        faults: FrameFaults,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        keys: SocketKeys | None = None,
    ) -> None:
        super().__init__(context, endpoint, keys)
        self._faults = faults

    def send(self, frame: bytes) -> bool:
        return self._faults.passing(frame, "", super().send)


def described(frame: bytes) -> tuple[str, int | None]:
    """The kind of a frame and its room; an empty kind where nobody can read it."""
    try:
        message = codec.decode(frame)
    except FrameError:
        return "", None
    return str(message.__struct_config__.tag), getattr(message, "room", None)


def damaged(frame: bytes) -> bytes:
    """The header stays, so that it still is a frame of this socket; the body loses its end."""
    return frame[: max(8, len(frame) - 3)]


def faults_for(rank: int, later: Later) -> FrameFaults | None:
    armed = arm(rank)
    return FrameFaults(armed, later) if armed is not None else None


def _forget(_: bool) -> None:
    return
