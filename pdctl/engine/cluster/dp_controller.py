"""`python -m pdctl.engine.cluster.dp_controller`: hands each request to one of several DP groups (sglang 0.5.23).

The groups are replicas, or the attention DP groups of one replica: a request goes to the leader of one of them. The
controller is a process of its own on node 0, without torch: it chooses a group and passes the frame on unchanged. All
other messages go to every group over the same sockets, so that an abort never overtakes the request it is for.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from pdctl import lifeline
from pdctl.engine.cluster import rank_processes
from pdctl.engine.config.instance_args import ReplicaRank, ServerArgs
from pdctl.engine.config.process_log import LogRate, configure, hit_an_exception
from pdctl.engine.drill import fault_points
from pdctl.engine.ipc.channels import Channels, Here, keys_of, local_input, meet
from pdctl.engine.ipc.messages import (
    Died,
    Done,
    FrameError,
    Generate,
    Request,
    Stop,
    SwitchRole,
    reply_codec,
    request_codec,
)
from pdctl.errors import NotReadyError
from pdctl.thread_death import in_words

if TYPE_CHECKING:
    Socket = zmq.Socket[bytes]

log = logging.getLogger("pdctl.engine")

Choice = Callable[[Generate], int]
LEAST_LOADED = ("total_requests", "total_tokens")


def resolve(args: ServerArgs) -> str:
    """sglang 0.5.23: `auto` is follow_bootstrap_room on a prefill (decodes compute the same rank), else round_robin."""
    if args.load_balance_method != "auto":
        return args.load_balance_method
    return "follow_bootstrap_room" if args.disaggregation_mode == "prefill" else "round_robin"


def chooser(method: str, groups: int) -> Choice:
    """Return a function that chooses a request's DP group. A rank named by the router wins; without a room, in turn.

    Only the engine's own health checks have no room: the HTTP side refuses such requests of clients
    (frontend/intake.py).
    """
    turn = -1

    def choose(request: Generate) -> int:
        nonlocal turn
        if request.routed_dp_rank is not None:
            return request.routed_dp_rank
        if method == "follow_bootstrap_room" and request.bootstrap_room is not None:
            return request.bootstrap_room % groups
        turn = (turn + 1) % groups
        return turn

    return choose


class Loads:
    """The unfinished requests of each DP group: the least loaded group gets the next one, equal ones take turns.

    `by` is total_requests, or total_tokens: those of the open prompts, the only ones known beforehand.
    """

    def __init__(self, by: str, groups: int) -> None:
        self._by_tokens = by == "total_tokens"
        self._requests = [0] * groups
        self._tokens = [0] * groups
        self._given: dict[str, tuple[int, int]] = {}
        self._last = groups - 1

    def choose(self, request: Generate) -> int:
        group = request.routed_dp_rank
        if group is None:
            group = min(range(len(self._requests)), key=self._load)
            self._last = group
        tokens = len(request.input_ids)
        self._requests[group] += 1
        self._tokens[group] += tokens
        self._given[request.rid] = (group, tokens)
        return group

    def _load(self, group: int) -> tuple[int, int, int]:
        first, second = self._requests[group], self._tokens[group]
        if self._by_tokens:
            first, second = second, first
        return first, second, (group - self._last - 1) % len(self._requests)

    def done(self, rid: str) -> None:
        group, tokens = self._given.pop(rid, (0, 0))
        if tokens:
            self._requests[group] -= 1
            self._tokens[group] -= tokens


def dispatch(
    source: Socket,
    groups: list[Socket],
    choose: Choice,
    done: Callable[[str], None] = lambda rid: None,
    after: Callable[[str], Choice] | None = None,
) -> None:
    """Dispatch until a Stop, which every group gets too. `after` returns how to choose after a switch to a role."""
    reach = fault_points.raiser("thread.dp-controller")
    rate = LogRate(log)
    while True:
        frame = source.recv()
        if reach is not None:
            reach()
        try:
            request: Request = request_codec.decode(frame)
        except FrameError as error:
            rate.warning("Dropping malformed frame: %s", error)
            continue
        if isinstance(request, Generate):
            rank = choose(request)
            log.debug("Choose worker DP%d for rid='%s' bootstrap_room=%s", rank, request.rid, request.bootstrap_room)
            groups[rank].send(frame)
            continue
        if isinstance(request, Done):
            done(request.rid)
            continue
        for group in groups:
            group.send(frame)
        if isinstance(request, SwitchRole) and request.commit and after is not None:
            choose = after(request.role)
        if isinstance(request, Stop):
            return


def inputs(args: ServerArgs, channels: Channels, ipc_dir: Path) -> list[str]:
    """Return where the leader of each DP group takes requests. Raise NotReadyError if a node's ranks do not join."""
    leaders = [
        here
        for here in ReplicaRank.all(args.shape)
        if not (here.rank.pp_rank or here.rank.attn_tp_rank or here.rank.attn_cp_rank)
    ]
    leaders.sort(key=lambda here: here.key)
    if not channels.meeting:
        return [local_input(ipc_dir, here.rank) for here in leaders]
    lines = meet(channels.meeting, Here(-1), args.dist_timeout, keys_of(channels))
    return [lines[here.rank.world_rank].input for here in leaders]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pdctl.engine.cluster.dp_controller")
    parser.add_argument("--args-json", required=True)
    parser.add_argument("--ipc-dir", type=Path, required=True)
    options = parser.parse_args()
    lifeline.hold()
    # The server process decides when this one ends: a Ctrl-C in the terminal reaches every process of the group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    args = ServerArgs.from_json(options.args_json)
    configure(args)
    channels = Channels.of(args, options.ipc_dir)
    context: zmq.Context[Socket] = zmq.Context()
    alarms = context.socket(zmq.PUSH)  # now: after the start, its address is gone with its directory
    keys = keys_of(channels)
    if keys is not None:
        keys.dial(alarms)
    alarms.connect(channels.tokenizer)
    code = 0
    try:
        control(args, channels, context, options.ipc_dir)
    except Exception as error:  # noqa: BLE001  # report whatever ends this process
        hit_an_exception(log, "DataParallelController", error)
        rank_processes.tell_end_reason(in_words(error))
        alarms.send(reply_codec.encode(Died(0, 0, in_words(error), who="DP controller")))
        code = 1
    context.destroy(linger=1000)
    sys.exit(code)


def control(args: ServerArgs, channels: Channels, context: zmq.Context[Socket], ipc_dir: Path) -> None:
    """Listen, connect to the groups, and dispatch until told to stop."""

    def opened(kind: int) -> Socket:
        socket = context.socket(kind)
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            socket.setsockopt(option, 0)
        return socket

    source = opened(zmq.PULL)
    source.setsockopt(zmq.MAXMSGSIZE, request_codec.max_bytes)
    keys = keys_of(channels)
    if keys is not None:
        keys.listen(source)
    source.bind(channels.controller)
    groups = []
    try:
        addresses = inputs(args, channels, ipc_dir)
    except NotReadyError as error:
        log.error("DP controller: %s", error)
        rank_processes.tell_end_reason(error.message)
        sys.exit(1)
    for address in addresses:
        group = opened(zmq.PUSH)
        if keys is not None:
            keys.dial(group)
        group.connect(address)
        groups.append(group)
    method = resolve(args)
    kind = "attention DP group" if args.attn_dp_size > 1 else "replica"
    log.info("DP controller: %d %s%s, %s", len(groups), kind, "s" if len(groups) > 1 else "", method)
    if method in LEAST_LOADED:
        loads = Loads(method, len(groups))
        dispatch(source, groups, loads.choose, loads.done)
    else:
        dispatch(
            source,
            groups,
            chooser(method, len(groups)),
            after=lambda role: chooser(resolve(dataclasses.replace(args, disaggregation_mode=role)), len(groups)),
        )


if __name__ == "__main__":
    main()
