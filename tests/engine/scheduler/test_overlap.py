"""A pass computes while the results of the last one leave: what may be seen of it, and that no answer knows."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pdctl.engine.ipc.messages import AbortRequest, Sampling
from pdctl.engine.model.forward_pass import ForwardBatch
from pdctl.engine.scheduler.loop import WORTH_A_THREAD, Overlap
from tests.engine.kv_link.rig import PATIENCE
from tests.engine.scheduler.rig import Station, ask, ids, pair, unified, with_fields


class Gate:
    """Holds a forward pass at its beginning until `release`, and says when one has come."""

    def __init__(self, station: Station) -> None:
        self._forward = station.resources.runner.forward
        self.arrived = threading.Semaphore(0)
        self._open = threading.Semaphore(0)
        self.passes: list[int] = []  # tokens

    def __call__(self, batch: ForwardBatch) -> object:
        self.passes.append(len(batch.input_ids))
        self.arrived.release()
        assert self._open.acquire(timeout=PATIENCE), "the test left a pass waiting"
        return self._forward(batch)

    def release(self, count: int = 1) -> None:
        self._open.release(count)

    def wait(self) -> None:
        assert self.arrived.acquire(timeout=PATIENCE), "no pass began"


@contextmanager
def gated(station: Station) -> Iterator[Gate]:
    gate = Gate(station)
    runner = station.resources.runner
    plain = runner.forward
    runner.forward = gate  # type: ignore[assignment, method-assign]
    try:
        yield gate
    finally:
        gate.release(1000)
        runner.forward = plain  # type: ignore[method-assign]


def mixed() -> list[object]:
    seeded = Sampling(max_new_tokens=20, temperature=1.0, ignore_eos=True, seed=5)
    plain = [ask(f"m{index}", ids(10 + 17 * index, index), tokens=5 + 9 * index) for index in range(6)]
    return [*plain, with_fields(ask("seeded", 30), sampling=seeded), with_fields(ask("lp", 12), return_logprob=True)]


def test_answers_and_their_order_are_those_without_overlap() -> None:
    told: dict[bool, Station] = {}
    for disabled in (False, True):
        with unified(disable_overlap_schedule=disabled, chunked_prefill_size=16) as station:
            station.run(*mixed())
            told[disabled] = station
    assert told[False].answer == told[True].answer
    assert told[False].logprobs == told[True].logprobs
    assert {rid: finish.length for rid, finish in told[False].finish.items()} == {
        rid: len(answer) for rid, answer in told[True].answer.items()
    }


def test_a_request_that_ended_is_never_run_again() -> None:
    with unified() as station, gated(station) as gate:
        gate.release(1000)
        station.run(ask("a", 5, tokens=3), ask("b", ids(5, 9), tokens=6))
        # prompt pass, then two passes for both, then three for the longer answer
        assert gate.passes == [10, 2, 2, 1, 1, 1]


def test_requests_are_taken_in_while_a_pass_computes() -> None:
    with unified() as station, gated(station) as gate:
        station.turn(ask("a", 5, tokens=3))
        gate.wait()
        station.box.requests.append(ask("b", ids(5, 9), tokens=3))
        gate.release(1)
        station.turn()  # takes b in, then waits for the pass
        gate.wait()
        assert gate.passes == [5, 5]
        assert station.answer["a"] != []
        gate.release(1000)
        station.run()


def send_begins_before_the_next_pass_ends(chunk: int, requests: list[object]) -> None:
    with pair(prefill={"chunked_prefill_size": chunk}) as both, gated(both.prefill) as gate:
        both.send(*requests)  # type: ignore[arg-type]
        overlap = both.prefill.scheduler._overlap
        both.until("the first pass", lambda: overlap.under_way)
        gate.release()  # A computes
        both.prefill.turn()
        both.until("the second pass", lambda: overlap.under_way)  # its request may still be shaking hands
        gate.wait()
        gate.wait()
        # B has begun and cannot end: what follows happens beside it.
        room = both.prefill.manager._rooms.get(21)  # type: ignore[union-attr]
        if room is not None:  # else it is through already
            both.prefill.woken.wait("pages of A on their way", lambda: room.stats.pages or room.poll().final)
        assert len(gate.passes) == 2
        assert overlap.under_way
        gate.release(1000)
        both.until("the answers", lambda: both.idle and len(both.decode.finish) == len(requests))


def test_pages_of_a_chunk_leave_while_the_next_one_computes() -> None:
    send_begins_before_the_next_pass_ends(16, [ask("long", 40, room=21)])


def test_pages_of_a_batch_leave_while_the_next_one_computes() -> None:
    send_begins_before_the_next_pass_ends(32, [ask("a", 30, room=21), ask("b", ids(31, 5), room=22)])


@pytest.mark.parametrize("what", ["chunk", "last chunk", "decode"])
def test_an_abort_while_the_pass_computes_frees_the_pages_at_its_end(what: str) -> None:
    with unified(disable_radix_cache=True) as station, gated(station) as gate:
        station.turn(ask("gone", 50, tokens=20))
        for _ in range(("chunk", "last chunk", "decode").index(what)):
            gate.release()
            station.turn()
        free = station.resources.available_pages
        station.box.requests.append(AbortRequest("gone", exact=True))
        told: list[int] = []

        def check() -> None:
            """From another thread, while the scheduler's waits for the pass: it has handled the abort by then."""
            assert turned.wait(PATIENCE)
            told.append(station.resources.available_pages)
            gate.release()

        turned = threading.Event()
        station.role.poll = _then(station.role.poll, turned.set)  # type: ignore[method-assign]
        thread = threading.Thread(target=check)
        thread.start()
        station.turn()
        thread.join(PATIENCE)
        assert told == [free]
        assert station.resources.available_pages == station.resources.num_pages
        assert station.finish["gone"].type == "abort"
        gate.release(1000)
        station.run(ask("after", 9))
        assert len(station.answer["after"]) == 8


def _then(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


def test_a_pass_that_fails_ends_the_rank() -> None:
    def run() -> None:
        with unified() as station:
            station.resources.runner.forward = _fail  # type: ignore[assignment, method-assign]
            station.run(ask("a", 5))

    with pytest.raises(RuntimeError, match="out of memory"):
        run()


def _fail(batch: ForwardBatch) -> object:
    del batch
    raise RuntimeError("out of memory")


def test_small_passes_stay_on_the_loops_own_thread() -> None:
    with unified() as station:
        overlap = station.scheduler._overlap
        overlap.threshold = WORTH_A_THREAD
        station.turn(ask("a", 5))
        assert not overlap.under_way
        station.run()


def test_a_pass_with_nothing_to_hand_on_beside_it_stays_too() -> None:
    with unified(chunked_prefill_size=16) as station:
        overlap = station.scheduler._overlap
        overlap.lone = False
        station.turn(ask("a", 16))
        assert not overlap.under_way
        station.turn(ask("long", 24))  # its second chunk can be chosen beside the first one
        assert overlap.under_way
        station.run()


def test_a_pass_on_its_thread_takes_as_many_cores_as_one_in_the_loop() -> None:
    """OpenMP keeps the number per thread, and a new thread begins with every core."""
    with unified() as station:
        before = torch.get_num_threads()
        torch.set_num_threads(3)
        try:
            overlap = Overlap(station.resources)
            assert overlap._thread.submit(openmp_threads).result(PATIENCE) == 3
            overlap.close()
        finally:
            torch.set_num_threads(before)


def openmp_threads() -> int:
    """What a parallel loop of this thread would take, asked of the library torch has loaded."""
    mapped = Path("/proc/self/maps")
    if not mapped.is_file():
        pytest.skip("needs Linux to find the OpenMP library")
    libraries = {line.split()[-1] for line in mapped.read_text().splitlines() if "libgomp" in line}
    if not libraries:
        pytest.skip("this torch does not use GNU OpenMP")
    return max(ctypes.CDLL(library).omp_get_max_threads() for library in libraries)
