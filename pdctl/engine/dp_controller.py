"""`python -m pdctl.engine.dp_controller`: hands each request to one of several replicas (sglang 0.5.23 DP controller).

Its own process, without torch: it looks at the room or the turn and passes the frame on unchanged. Everything that is
not a generation request goes to every replica.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from pdctl import lifeline
from pdctl.engine.args import ServerArgs
from pdctl.engine.logs import configure
from pdctl.engine.messages import Generate, Request, Stop, request_codec
from pdctl.engine.wire import FrameError

if TYPE_CHECKING:
    Socket = zmq.Socket[bytes]

log = logging.getLogger("pdctl.engine")

Choice = Callable[[Generate], int]


def resolve(args: ServerArgs) -> str:
    """sglang 0.5.23: `auto` is follow_bootstrap_room on a prefill (decodes compute the same rank), else round_robin."""
    if args.load_balance_method != "auto":
        return args.load_balance_method
    return "follow_bootstrap_room" if args.disaggregation_mode == "prefill" else "round_robin"


def chooser(method: str, replicas: int) -> Choice:
    """A replica for each request. A rank the router asked for wins; without a room the turn decides."""
    turn = -1

    def choose(request: Generate) -> int:
        nonlocal turn
        if request.routed_dp_rank is not None:
            return request.routed_dp_rank
        if method == "follow_bootstrap_room" and request.bootstrap_room is not None:
            return request.bootstrap_room % replicas
        turn = (turn + 1) % replicas
        return turn

    return choose


def dispatch(source: Socket, replicas: list[Socket], choose: Choice) -> None:
    """Until a Stop, which every replica gets too."""
    while True:
        frame = source.recv()
        try:
            request: Request = request_codec.decode(frame)
        except FrameError as error:
            log.warning("Dropping malformed frame: %s", error)
            continue
        if isinstance(request, Generate):
            rank = choose(request)
            log.debug("Choose worker DP%d for rid='%s' bootstrap_room=%s", rank, request.rid, request.bootstrap_room)
            replicas[rank].send(frame)
            continue
        for replica in replicas:
            replica.send(frame)
        if isinstance(request, Stop):
            return


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pdctl.engine.dp_controller")
    parser.add_argument("--args-json", required=True)
    parser.add_argument("--ipc-dir", type=Path, required=True)
    options = parser.parse_args()
    lifeline.hold()
    # The server process decides when this one ends: a Ctrl-C in the terminal reaches every process of the group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    args = ServerArgs.from_json(options.args_json)
    configure(args)
    context: zmq.Context[Socket] = zmq.Context()

    def opened(kind: int) -> Socket:
        socket = context.socket(kind)
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            socket.setsockopt(option, 0)
        return socket

    source = opened(zmq.PULL)
    source.setsockopt(zmq.MAXMSGSIZE, request_codec.max_bytes)
    source.bind(f"ipc://{options.ipc_dir}/controller")
    replicas = []
    for rank in range(args.dp_size):
        replica = opened(zmq.PUSH)
        replica.connect(f"ipc://{options.ipc_dir}/scheduler-{rank}")
        replicas.append(replica)
    log.info("DP controller: %d replicas, %s", args.dp_size, resolve(args))
    dispatch(source, replicas, chooser(resolve(args), args.dp_size))
    context.destroy(linger=1000)
    sys.exit(0)


if __name__ == "__main__":
    main()
