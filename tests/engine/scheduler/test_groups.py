"""Rooms that fail on one rank of a group: every rank lets go of them, and the client hears that rank's reason."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.decode.decode_role import DecodeRole
from pdctl.engine.ipc.messages import Drained, Generate, Sampling
from pdctl.engine.kv_link.kv_frames import MetadataRow
from pdctl.engine.kv_link.room_state import Failure, FailureCode, KVPoll
from pdctl.engine.kvcache.allocator import PageAllocator, PageTable
from pdctl.engine.model.parallel import Group, Groups
from pdctl.engine.prefill.prefill_role import PrefillRole
from pdctl.engine.prefill.sender import Sender
from pdctl.engine.scheduler.resources import MetadataSlots, Req, Resources
from pdctl.engine.scheduler.role import pack_failure, shared_failure, unpack_failure
from pdctl.layout.kv_links import KvModel
from pdctl.layout.shape import Shape, place
from tests.engine.kv_link.instances import PAGES, Grid, Instance, Pair, pair
from tests.engine.kv_link.rig import HOST, PATIENCE
from tests.engine.scheduler.thread_groups import Meeting, ThreadGroup

RANKS = 2
ROOM = 3
MODEL = KvModel(4, 4)


def test_a_reason_survives_being_numbers() -> None:
    for failure in (Failure("transfer", "the wire is down"), Failure("mismatch", "ä" * 5000), None):
        found = unpack_failure(pack_failure(failure))
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

    def add(self, port: int) -> None:
        """One request to every rank; `port`: of the bootstrap server it names."""
        prompt, sampling = [5, 6, 7, 8, 9], Sampling(max_new_tokens=4, temperature=0)
        message = Generate("r", prompt, sampling, bootstrap_host=HOST, bootstrap_port=port, bootstrap_room=ROOM)
        self.each(lambda role: role.add(Req.of(message, 4)))

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
        ends = [item.finish for role in self.roles for item in role.resources.outbox]
        return [(end.code, end.message) for end in ends if end is not None]

    @property
    def drained(self) -> list[Drained]:
        return [item.drained for role in self.roles for item in role.resources.outbox if item.drained is not None]


def resources(mode: str, group: ThreadGroup, rank: int) -> Resources:
    shape = Shape(tp=RANKS)
    alone = Group()
    return Resources(
        args=ServerArgs("", disaggregation_mode=mode, page_size=4),
        runner=None,  # type: ignore[arg-type]  # no room gets as far as a forward pass
        groups=Groups(shape, place(shape)[rank], group, group, alone, group, alone),
        allocator=PageAllocator(PAGES),
        table=PageTable(8, PAGES),
        metadata=MetadataSlots(8),
        vocab=64,
        eos=frozenset(),
        limit=64,
        capacity=64,
        dp_rank=None,
        random=np.random.default_rng(1),
    )


@contextmanager
def roles(mode: str, **decode: object) -> Iterator[tuple[Pair, Ranks]]:
    """A pair whose `mode` side has its roles; the managers of the other side are the test's. `decode`: its settings."""
    with pair(MODEL, Grid(RANKS), Grid(RANKS), **decode) as both, ThreadPoolExecutor(RANKS) as pool:
        yield both, Ranks(both.decode if mode == "decode" else both.prefill, mode, pool)


def announced(both: Pair, ranks: Ranks) -> list[Sender]:
    """The prefill's ends of a request of the decode's roles, whose page lists have come to them."""
    senders = both.prefill.senders(ROOM)
    ranks.add(both.port)
    ranks.until("announced pages", lambda: all(role.queues().transfer for role in ranks.roles))
    both.prefill.until(senders, KVPoll.WAITING_FOR_INPUT)
    return senders


@pytest.mark.parametrize("victim", range(RANKS))
def test_a_transfer_that_fails_on_one_decode_rank(victim: int) -> None:
    with roles("decode") as (both, ranks):
        prefill, senders = both.prefill, announced(both, ranks)
        senders[victim].abort("this rank's link is down", FailureCode.TRANSFER.value)
        ranks.failed()
        text = "Decode transfer failed: this rank's link is down"
        assert ranks.told == [(FailureCode.TRANSFER.value, text)] * RANKS
        assert [one.outcome for one in ranks.drained] == ["drained"] * RANKS
        prefill.until(senders, KVPoll.FAILED)


def test_pages_that_one_prefill_rank_never_gives_back_are_waited_for_on_every_decode_rank() -> None:
    grace, hangs, silent = 0.3, threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        silent.wait(PATIENCE)

    with roles("decode", drain_grace=grace) as (both, ranks):
        announced(both, ranks)
        both.prefill.ranks[0].side.manager.loop.call(hang)
        assert hangs.wait(PATIENCE), "the prefill rank hangs before the decode ranks give up"
        try:
            ranks.each(lambda role: role.abort(lambda _: True))
            ranks.failed()
        finally:
            silent.set()
        assert [one.outcome for one in ranks.drained] == ["timeout"] * RANKS
        assert all(one.seconds > 0.9 * grace for one in ranks.drained)


@pytest.mark.parametrize("victim", range(RANKS))
@pytest.mark.parametrize(
    ("row", "why"),
    [
        (MetadataRow(4, 9).encode(), "context corruption detected: the metadata row carries room 4, expected room 3"),
        (b"torn", "metadata of 4 bytes; a row has at least 24"),
        (MetadataRow(3, 64).encode(), "metadata of room 3 names token 64; the vocabulary has 0 to 63"),
    ],
    ids=["another room's", "torn", "no word"],
)
def test_a_bad_metadata_row_on_one_decode_rank(
    victim: int, row: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with roles("decode") as (both, ranks):
        prefill, senders = both.prefill, announced(both, ranks)
        for rank, sender in enumerate(senders):
            sender.send(np.array([5, 6], dtype=np.int32), True, row if rank == victim else MetadataRow(3, 9).encode())
        prefill.until(senders, KVPoll.SUCCESS)  # all is sent, before a decode that gives up could call it off
        ranks.failed()
        assert ranks.told == [("context_corruption", f"Decode transfer failed: {why}")] * RANKS
        lines = [record.getMessage() for record in caplog.records]
        said = [line for line in lines if line.startswith("Context corruption")]
        assert said == [f"Context corruption detected: Request r (bootstrap_room=3) {why}"]


@pytest.mark.parametrize("victim", range(RANKS))
def test_a_handshake_that_fails_on_one_decode_rank(victim: int) -> None:
    with roles("decode") as (both, ranks):
        lost = both.prefill.ranks[victim].side.manager
        lost.close()
        ranks.add(both.port)
        ranks.failed()
        assert len(set(ranks.told)) == 1
        code, text = ranks.told[0]
        assert code == FailureCode.PREFILL_LOST.value
        assert lost.endpoint in text


@pytest.mark.parametrize("victim", range(RANKS))
def test_a_room_that_one_prefill_rank_hears_is_given_up(victim: int) -> None:
    with roles("prefill") as (both, ranks):
        ranks.add(both.port)
        receivers = both.decode.receivers(ROOM, both.port)
        both.decode.until(receivers, KVPoll.WAITING_FOR_INPUT)
        receivers[victim].abort("no room for it here", FailureCode.MISMATCH.value)
        ranks.failed()
        text = "Prefill bootstrap failed: no room for it here"
        assert ranks.told == [(FailureCode.MISMATCH.value, text)] * RANKS
