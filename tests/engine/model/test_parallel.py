"""Two real ranks over gloo compute what one rank computes, and agree on everything else."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from pathlib import Path

import pytest
import torch

from pdctl.engine.model.parallel import Groups
from pdctl.errors import NotReadyError
from pdctl.layout.shape import Shape
from tests.engine.model import forked_ranks
from tests.engine.model.peers import make_peer, make_runner
from tests.engine.model.tp_rank import RANKS, TP_CASES, steps
from tests.ports import free_port


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    directory = tmp_path_factory.mktemp("tp")
    for case in TP_CASES:
        make_peer(case, directory / case.name)
    init = f"tcp://127.0.0.1:{free_port()}"
    forked_ranks.run("tests.engine.model.tp_rank", RANKS, init, str(directory))
    return directory, [torch.load(directory / f"rank{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("case", TP_CASES, ids=lambda case: case.name)
def test_two_ranks_equal_one(ranks: tuple[Path, list[dict]], case) -> None:
    directory, results = ranks
    alone = steps(make_runner(case, directory / case.name), case)
    assert (results[0]["logits"][case.name] - alone).abs().max() < 1e-4


@pytest.mark.parametrize("case", TP_CASES, ids=lambda case: case.name)
def test_every_rank_holds_the_same_logits(ranks: tuple[Path, list[dict]], case) -> None:
    """Bit for bit: each rank samples for itself and must take the same token."""
    first, second = (result["logits"][case.name] for result in ranks[1])
    assert torch.equal(first, second)


def test_ranks_agree_on_the_smallest(ranks: tuple[Path, list[dict]]) -> None:
    assert [result["agreed"] for result in ranks[1]] == [[2, 4, 9]] * 2


def test_a_group_of_one_needs_no_network() -> None:
    groups = Groups.single()
    tp = groups.tp
    tensor = torch.arange(6.0).view(2, 3)
    assert tp.all_reduce(tensor) is tensor
    assert tp.all_gather_last(tensor) is tensor
    assert tp.min_ints([3, 1]) == [3, 1]
    tp.barrier()
    groups.close()


def test_a_rank_that_waits_alone_says_for_whom() -> None:
    init = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(NotReadyError, match=f"rank 1 of 2 waited 1 s for the others at {init}"):
        Groups.join(Shape(tp=2, nnodes=1), 1, 0, "cpu", init, join_timeout=1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere loopback has one address")
def test_ranks_meet_at_the_given_address_and_at_no_other(tmp_path: Path) -> None:
    """torch alone listens on every address, whatever --host and --dist-init-addr say."""
    port = free_port()
    told: list[str] = []

    def join() -> None:
        with pytest.raises(NotReadyError) as error:
            Groups.join(Shape(tp=2, nnodes=1), 0, 0, "cpu", f"tcp://127.0.0.1:{port}", join_timeout=3.0)
        told.append(str(error.value))

    rank = threading.Thread(target=join)
    rank.start()
    while not reaches("127.0.0.1", port):
        assert rank.is_alive()
    assert not reaches("127.0.0.2", port)
    rank.join()
    assert "rank 0 of 2 waited 3 s for the others" in told[0]


def reaches(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False


def test_a_meeting_place_that_is_taken_is_said_at_once() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        init = f"tcp://127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(NotReadyError, match=f"rank 0 of 2 cannot listen at {init}.*--dist-init-addr is") as refused:
            Groups.join(Shape(tp=2, nnodes=1), 0, 0, "cpu", init, join_timeout=1e6)
    assert "give another --dist-init-addr" in refused.value.fix
