from __future__ import annotations

import dataclasses
import threading

import pytest
import zmq

from pdctl.engine.cluster.dp_controller import Choice, Loads, chooser, dispatch, resolve
from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.ipc.messages import AbortRequest, Done, Generate, Sampling, Stop, SwitchRole, request_codec


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
    messages = [request(), request(), AbortRequest("r"), Stop()]
    feed.send(b"not one of ours")
    for message in messages:
        feed.send(request_codec.encode(message))
    thread.join(10)
    assert not thread.is_alive()
    for end in ends:
        assert [request_codec.decode(end.recv()) for _ in range(3)] == [messages[0], *messages[2:]]
    context.destroy(linger=0)


def test_an_instance_of_another_role_chooses_as_that_role_does() -> None:
    """A decode in turns, a prefill by room; only a switch that is carried out counts, not the question before it."""
    context = zmq.Context()
    source, feed = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    source.bind("inproc://in")
    feed.connect("inproc://in")
    outs, ends = [context.socket(zmq.PUSH) for _ in range(2)], [context.socket(zmq.PULL) for _ in range(2)]
    for rank in range(2):
        outs[rank].bind(f"inproc://out{rank}")
        ends[rank].connect(f"inproc://out{rank}")
        ends[rank].setsockopt(zmq.RCVTIMEO, 10_000)
    args = ServerArgs("/nowhere", disaggregation_mode="decode", dp_size=2)

    def after(role: str) -> Choice:
        return chooser(resolve(dataclasses.replace(args, disaggregation_mode=role)), 2)

    thread = threading.Thread(target=dispatch, args=(source, outs, chooser(resolve(args), 2)), kwargs={"after": after})
    thread.start()
    ask, order = SwitchRole("a", "prefill", commit=False), SwitchRole("b", "prefill", commit=True)
    messages = [request(7), ask, request(7), order, request(7), request(7), Stop()]
    for message in messages:
        feed.send(request_codec.encode(message))
    thread.join(10)
    assert not thread.is_alive()
    assert [request_codec.decode(ends[0].recv()) for _ in range(4)] == [messages[0], ask, order, Stop()]
    assert [request_codec.decode(ends[1].recv()) for _ in range(6)] == [ask, *messages[2:]]
    context.destroy(linger=0)


def sized(rid: str, tokens: int, rank: int | None = None) -> Generate:
    return Generate(rid, [1] * tokens, Sampling(), routed_dp_rank=rank)


def test_the_least_loaded_by_requests() -> None:
    loads = Loads("total_requests", 3)
    assert [loads.choose(sized(rid, 5)) for rid in "abcd"] == [0, 1, 2, 0]
    loads.done("b")
    loads.done("b")  # its end is counted once
    loads.done("never seen")
    assert [loads.choose(sized(rid, 5)) for rid in "efg"] == [1, 2, 1]


def test_the_least_loaded_by_tokens() -> None:
    loads = Loads("total_tokens", 2)
    assert loads.choose(sized("long", 1000)) == 0
    assert [loads.choose(sized(f"short{n}", 10)) for n in range(5)] == [1] * 5
    loads.done("long")
    assert loads.choose(sized("next", 10)) == 0


def test_a_chosen_rank_counts_as_load() -> None:
    loads = Loads("total_requests", 2)
    assert [loads.choose(sized(f"a{n}", 1, rank=1)) for n in range(2)] == [1, 1]
    assert [loads.choose(sized(f"b{n}", 1)) for n in range(3)] == [0, 0, 1]


def test_the_order_that_a_request_ended_is_for_the_controller_alone() -> None:
    context = zmq.Context()
    source, feed, out, end = (context.socket(kind) for kind in (zmq.PULL, zmq.PUSH, zmq.PUSH, zmq.PULL))
    source.bind("inproc://in")
    feed.connect("inproc://in")
    out.bind("inproc://out")
    end.connect("inproc://out")
    for message in (Done("gone"), Stop()):
        feed.send(request_codec.encode(message))
    told: list[str] = []
    dispatch(source, [out], chooser("round_robin", 1), told.append)
    assert told == ["gone"]
    assert request_codec.decode(end.recv()) == Stop()
    assert not end.poll(0)
    context.destroy(linger=0)
