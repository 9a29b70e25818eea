from __future__ import annotations

import threading

import pytest
import zmq

from pdctl.engine.args import ServerArgs
from pdctl.engine.dp_controller import chooser, dispatch, resolve
from pdctl.engine.messages import Abort, Generate, Sampling, Stop, request_codec


def request(room: int | None = None, rank: int | None = None) -> Generate:
    return Generate("r", [1], Sampling(), bootstrap_room=room, routed_dp_rank=rank)


@pytest.mark.parametrize(
    ("mode", "method", "resolved"),
    [
        ("prefill", "auto", "follow_bootstrap_room"),
        ("decode", "auto", "round_robin"),
        ("null", "auto", "round_robin"),
        ("prefill", "round_robin", "round_robin"),
        ("decode", "follow_bootstrap_room", "follow_bootstrap_room"),
    ],
)
def test_what_auto_means(mode: str, method: str, resolved: str) -> None:
    assert resolve(ServerArgs("/nowhere", disaggregation_mode=mode, load_balance_method=method)) == resolved


def test_following_the_room() -> None:
    choose = chooser("follow_bootstrap_room", 3)
    assert [choose(request(room)) for room in (7, 8, (1 << 63) - 1)] == [1, 2, ((1 << 63) - 1) % 3]
    assert [choose(request(None)) for _ in range(4)] == [0, 1, 2, 0]


def test_a_rank_the_router_chose_wins_and_does_not_cost_a_turn() -> None:
    choose = chooser("round_robin", 2)
    assert [choose(request(rank=1)), choose(request()), choose(request(rank=0)), choose(request())] == [1, 0, 0, 1]


def test_requests_go_to_one_replica_and_orders_to_all() -> None:
    context = zmq.Context()
    source, feed = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    source.bind("inproc://in")
    feed.connect("inproc://in")
    outs, ends = [], []
    for rank in range(2):
        outs.append(context.socket(zmq.PUSH))
        ends.append(context.socket(zmq.PULL))
        outs[rank].bind(f"inproc://out{rank}")
        ends[rank].connect(f"inproc://out{rank}")
        ends[rank].setsockopt(zmq.RCVTIMEO, 10_000)
    thread = threading.Thread(target=dispatch, args=(source, outs, chooser("round_robin", 2)))
    thread.start()
    messages = [request(), request(), Abort("r"), Stop()]
    feed.send(b"not one of ours")
    for message in messages:
        feed.send(request_codec.encode(message))
    thread.join(10)
    assert not thread.is_alive()
    for end in ends:
        assert [request_codec.decode(end.recv()) for _ in range(3)] == [messages[0], *messages[2:]]
    context.destroy(linger=0)
