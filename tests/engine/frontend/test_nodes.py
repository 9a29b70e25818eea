"""One instance over several nodes of one host: it starts, serves, and ends as one, whichever part of it dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.engine.frontend.conftest import READY, SHAPE, Engine, running, until
from tests.ports import free_block


@contextmanager
def nodes(model: Path, *flags: str, count: int = 2, only: tuple[int, ...] = (0, 1)) -> Iterator[list[Engine]]:
    meeting = f"127.0.0.1:{free_block(14)}"
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running(model, *flags, "--nnodes", str(count), "--node-rank", str(node), "--dist-init-addr", meeting)
            )
            for node in only
        ]


@pytest.fixture
def pair(model: Path) -> Iterator[list[Engine]]:
    with nodes(model, *SHAPE) as both:
        both[0].wait_for(READY)
        yield both


def test_both_nodes_answer_health_only_the_first_serves_and_stopping_the_second_stops_both(pair: list[Engine]) -> None:
    first, second = pair
    # The word that the instance serves travels to the other nodes; its answer is asked for after that word came.
    first.client.post("/generate", json={"text": "hi", "sampling_params": {"max_new_tokens": 2}})
    until(lambda: second.client.get("/health").status_code != 503, "an answer of node 1 that is ready")
    assert second.client.get("/health").status_code == 200
    assert second.client.post("/generate", json={"text": "hi"}).status_code == 404
    answers = [
        first.client.post("/generate", json={"text": "hi", "data_parallel_rank": rank}).json() for rank in (0, 1)
    ]
    assert [answer["meta_info"]["dp_rank"] for answer in answers] == [0, 1]
    info = first.client.get("/server_info").json()
    assert (info["dp_size"], info["attn_dp_size"], info["enable_dp_attention"]) == (1, 2, True)
    assert [state["dp_rank"] for state in info["internal_states"]] == [0, 1]
    assert len(first.children()) == 2  # a rank and the DP controller
    assert len(second.children()) == 1
    second.process.send_signal(signal.SIGTERM)
    assert [engine.exit_code() for engine in pair] == [0, 0]


def test_a_rank_that_dies_ends_every_node_with_its_name(pair: list[Engine]) -> None:
    """The prompt makes the rank of that DP group exit; group 1 stands on node 1."""
    answer = pair[0].client.post("/generate", json={"text": "!die", "data_parallel_rank": 1})
    assert answer.status_code == 503
    assert "node 1: rank DP1 TP1" in answer.json()["error"]["message"]
    assert [engine.exit_code() for engine in pair] == [1, 1]
    for engine in pair:
        assert "rank DP1 TP1" in engine.wait_for("Instance ends: ")


@pytest.mark.parametrize("gone", [0, 1])
def test_a_node_that_vanishes_ends_the_others(pair: list[Engine], gone: int) -> None:
    os.kill(pair[gone].process.pid, signal.SIGKILL)
    left = pair[1 - gone]
    left.wait_for(f"Instance ends: node {gone} is gone.")
    assert left.exit_code() == 1


def test_a_node_with_other_flags_is_refused_with_the_flag(model: Path) -> None:
    meeting = f"127.0.0.1:{free_block(14)}"
    flags = ("--nnodes", "2", "--dist-init-addr", meeting, "--node-rank")
    with running(model, *SHAPE, *flags, "0") as first, running(model, "--tp-size", "2", *flags, "1") as second:
        told = "--attn-dp-size is 2 on node 0 and 1 on this node"
        assert told in first.wait_for("Refused node 1: ")
        assert told in second.wait_for("Start-up failed: ")
        assert second.exit_code() == 1


def test_a_node_that_never_comes_is_named(model: Path) -> None:
    with nodes(model, *SHAPE, "--dist-timeout", "0.5", only=(0,)) as (first,):
        line = first.wait_for("Instance ends: waited 0.5 s for ")
        assert "DP1 TP1 of node 1" in line  # and its own rank, where half a second does not start one
        assert "start it with --node-rank 1" in line
        assert first.exit_code() == 1


def test_a_node_0_that_never_comes_is_named(model: Path) -> None:
    with nodes(model, *SHAPE, "--dist-timeout", "0.5", only=(1,)) as (second,):
        assert "waited 0.5 s for node 0 at 127.0.0.1:" in second.wait_for("Start-up failed: ")
        assert second.exit_code() == 1


def test_a_name_of_node_0_that_nobody_knows_is_named(model: Path) -> None:
    flags = ("--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "no-such-node.invalid:20000")
    with running(model, *SHAPE, *flags, "--dist-timeout", "0.5") as second:
        assert second.exit_code() == 1
        told, ended = second.lines
        assert "Waiting for the name no-such-node.invalid of --dist-init-addr to resolve: " in told
        assert "waited 0.5 s for the name no-such-node.invalid of --dist-init-addr to resolve: " in ended
        assert ended.endswith("give node 0's own name or address")
