"""Rooms that fail on one rank of a group: every rank lets go of them, and the client hears that rank's reason."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from pdctl.engine.args import ServerArgs
from pdctl.engine.cache.allocator import PageAllocator
from pdctl.engine.cache.metadata import MetadataBuffers
from pdctl.engine.cache.table import PageTable
from pdctl.engine.disaggregation.failure import Failure, FailureCode
from pdctl.engine.disaggregation.state import KVPoll
from pdctl.engine.messages import Generate, Sampling
from pdctl.engine.model.parallel import Group, Groups
from pdctl.engine.scheduler.decode import DecodeRole
from pdctl.engine.scheduler.prefill import PrefillRole
from pdctl.engine.scheduler.request import Req
from pdctl.engine.scheduler.resources import Resources
from pdctl.engine.scheduler.verdict import pack, shared_failure, unpack
from pdctl.layout.cuts import KvModel
from pdctl.layout.ranks import place
from pdctl.layout.shape import Shape
from tests.engine.disaggregation.instances import PAGES, Grid, Instance, instance
from tests.engine.disaggregation.rig import HOST, PATIENCE, bootstrap

RANKS = 2
MODEL = KvModel(4, 4)


class Meeting:
    """Where the ranks of a group, each in a thread, hand their numbers to one another."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=PATIENCE)
        self._said: list[tuple[int, ...]] = [()] * size

    def exchange(self, rank: int, values: Sequence[int]) -> list[tuple[int, ...]]:
        self._said[rank] = tuple(values)
        self._barrier.wait()
        heard = list(self._said)
        self._barrier.wait()
        return heard


class ThreadGroup(Group):
    """A group whose ranks are threads of one process; what torch.distributed does between processes."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        super().__init__(range(RANKS), rank)
        self._meeting = meeting

    def gather_ints(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        return self._meeting.exchange(self.rank, values)

    def min_ints(self, values: Sequence[int]) -> list[int]:
        return [min(column) for column in zip(*self.gather_ints(values), strict=True)]


def test_a_reason_survives_being_numbers() -> None:
    for failure in (Failure("transfer", "the wire is down"), Failure("mismatch", "ä" * 5000), None):
        found = unpack(pack(failure))
        if failure is None:
            assert found is None
        else:
            assert found is not None
            assert found.code == failure.code
            assert failure.message.startswith(found.message)
            assert len(found.message) > 10


def test_a_cause_goes_before_an_echo_whatever_the_rank() -> None:
    meeting = Meeting(RANKS)
    own = [Failure(FailureCode.ABORTED.value, "told by another"), Failure("transfer", "the wire is down")]
    with ThreadPoolExecutor(RANKS) as pool:
        agreed = list(pool.map(lambda rank: shared_failure(ThreadGroup(meeting, rank), own[rank]), range(RANKS)))
    assert agreed == [own[1], own[1]]


class Ranks:
    """The roles of all ranks of one group; `poll` is one turn of each, all at once."""

    def __init__(self, made: Instance, mode: str, pool: ThreadPoolExecutor) -> None:
        meeting, self._pool, self.roles = Meeting(RANKS), pool, []
        for rank, side in enumerate(made.ranks):
            role = PrefillRole if mode == "prefill" else DecodeRole
            self.roles.append(role(resources(mode, ThreadGroup(meeting, rank), rank), side.side.manager))  # type: ignore[arg-type]

    def each(self, action: Callable[[PrefillRole | DecodeRole], object]) -> None:
        list(self._pool.map(action, self.roles))

    def until(self, what: str, done: Callable[[], bool]) -> None:
        for _ in range(int(PATIENCE / 0.005)):
            if done():
                return
            self.each(lambda role: role.poll())
            threading.Event().wait(0.005)  # as a scheduler sleeps when only its managers have work
        raise AssertionError(f"no {what}")

    def failed(self) -> None:
        """Every rank ended the request, and holds nothing any more."""
        self.until("end of the request", lambda: all(role.resources.outbox for role in self.roles))
        self.until("release", lambda: not any(role.queues().draining for role in self.roles))
        for role in self.roles:
            role.resources.check_idle()
            assert role.queues().total == 0

    @property
    def told(self) -> list[tuple[str, str]]:
        ends = [role.resources.outbox[-1].finish for role in self.roles]
        return [(end.code, end.message) for end in ends if end is not None]


def resources(mode: str, group: ThreadGroup, rank: int) -> Resources:
    shape = Shape(tp=RANKS)
    alone = Group()
    return Resources(
        args=ServerArgs("", disaggregation_mode=mode, page_size=4),
        runner=None,  # type: ignore[arg-type]  # no room gets as far as a forward pass
        groups=Groups(shape, place(shape)[rank], group, group, alone, group, alone),
        allocator=PageAllocator(PAGES),
        table=PageTable(8, PAGES),
        metadata=MetadataBuffers(8),
        eos=frozenset(),
        limit=64,
        capacity=64,
        dp_rank=None,
        random=np.random.default_rng(1),
    )


def request(room: int, port: int) -> Callable[[], Req]:
    sampling = Sampling(max_new_tokens=4, temperature=0)
    message = Generate("r", [5, 6, 7, 8, 9], sampling, bootstrap_host=HOST, bootstrap_port=port, bootstrap_room=room)
    return lambda: Req.of(message, 4)


@contextmanager
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(RANKS) as pool:
        yield pool


@pytest.mark.parametrize("victim", range(RANKS))
def test_a_transfer_that_fails_on_one_decode_rank(victim: int) -> None:
    with (
        bootstrap() as server,
        instance("prefill", MODEL, Grid(RANKS), server.port) as prefill,
        instance("decode", MODEL, Grid(RANKS)) as decode,
        threads() as pool,
    ):
        ranks, req = Ranks(decode, "decode", pool), request(3, server.port)
        senders = prefill.senders(3)
        ranks.each(lambda role: role.add(req()))
        ranks.until("announced pages", lambda: all(role.queues().transfer for role in ranks.roles))
        prefill.until(senders, KVPoll.WAITING_FOR_INPUT)
        senders[victim].abort("this rank's link is down", FailureCode.TRANSFER.value)
        ranks.failed()
        text = "Decode transfer failed: this rank's link is down"
        assert ranks.told == [(FailureCode.TRANSFER.value, text)] * RANKS
        prefill.until(senders, KVPoll.FAILED)


@pytest.mark.parametrize("victim", range(RANKS))
def test_a_handshake_that_fails_on_one_decode_rank(victim: int) -> None:
    with (
        bootstrap() as server,
        instance("prefill", MODEL, Grid(RANKS), server.port) as prefill,
        instance("decode", MODEL, Grid(RANKS)) as decode,
        threads() as pool,
    ):
        ranks, req = Ranks(decode, "decode", pool), request(3, server.port)
        prefill.ranks[victim].side.manager.close()
        ranks.each(lambda role: role.add(req()))
        ranks.failed()
        assert len(set(ranks.told)) == 1
        code, text = ranks.told[0]
        assert code == FailureCode.PREFILL_LOST.value
        assert prefill.ranks[victim].side.manager.endpoint in text


@pytest.mark.parametrize("victim", range(RANKS))
def test_a_room_that_one_prefill_rank_hears_is_given_up(victim: int) -> None:
    with (
        bootstrap() as server,
        instance("prefill", MODEL, Grid(RANKS), server.port) as prefill,
        instance("decode", MODEL, Grid(RANKS)) as decode,
        threads() as pool,
    ):
        ranks, req = Ranks(prefill, "prefill", pool), request(3, server.port)
        ranks.each(lambda role: role.add(req()))
        receivers = decode.receivers(3, server.port)
        decode.until(receivers, KVPoll.WAITING_FOR_INPUT)
        receivers[victim].abort("no room for it here", FailureCode.MISMATCH.value)
        ranks.failed()
        text = "Prefill bootstrap failed: no room for it here"
        assert ranks.told == [(FailureCode.MISMATCH.value, text)] * RANKS
