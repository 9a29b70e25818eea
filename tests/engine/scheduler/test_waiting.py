"""Which tokens of which prompts go into a pass: budget, page edges, order of arrival, memory."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np

from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.ipc.messages import Generate, Sampling
from pdctl.engine.kvcache.allocator import PageAllocator, PageTable
from pdctl.engine.model.parallel import Groups
from pdctl.engine.scheduler.resources import MetadataSlots, Req, Resources
from pdctl.engine.scheduler.schedule_batch import Batch, WaitingQueue
from tests.cases import for_each

PAGE = 4


def resources(pages: int = 64, budget: int = 16) -> Resources:
    args = dataclasses.replace(ServerArgs("unused"), page_size=PAGE, chunked_prefill_size=budget)
    return Resources(
        args=args,
        runner=SimpleNamespace(),  # type: ignore[arg-type]  # no forward pass happens in these tests
        groups=Groups.single(),
        allocator=PageAllocator(pages + 1),
        table=PageTable(8, 64),
        metadata=MetadataSlots(8),
        eos=frozenset(),
        limit=256,
        capacity=pages * PAGE,
        dp_rank=None,
        random=np.random.default_rng(1),
    )


def waiting(shared: Resources) -> WaitingQueue:
    return WaitingQueue(shared, lambda req: shared.allocate(req, req.prompt_len))


def request(length: int, rid: str = "r") -> Req:
    return Req.of(Generate(rid, list(range(length)), Sampling()), 1)


def computed(batch: Batch | None) -> list[tuple[str, int]]:
    """What the pass would do, done to the requests: the batch as (rid, tokens)."""
    assert batch is not None
    for req, extend in batch.parts:
        req.computed += extend
    return [(part.req.rid, part.extend) for part in batch.parts]


@for_each("length", [1, PAGE - 1, PAGE, PAGE + 1, 15, 16, 17, 31, 32, 33, 50])
def test_chunks_end_on_pages_and_cover_the_prompt(length: int) -> None:
    queue = waiting(resources())
    req = request(length)
    queue.add(req)
    sizes: list[int] = []
    while req.computed < length:
        sizes.append(computed(queue.next_batch(8))[0][1])
        assert req.computed == length or req.computed % PAGE == 0
    assert sum(sizes) == length
    assert all(size <= 16 for size in sizes)
    assert queue.next_batch(8) is None
    assert len(queue) == 0


def test_short_prompts_share_a_pass_in_order_of_arrival() -> None:
    queue = waiting(resources())
    for rid, length in (("a", 5), ("b", 6), ("c", 30), ("d", 1)):
        queue.add(request(length, rid))
    assert computed(queue.next_batch(8)) == [("a", 5), ("b", 6), ("c", 4)]
    assert computed(queue.next_batch(8)) == [("c", 16)]
    assert computed(queue.next_batch(8)) == [("c", 10), ("d", 1)]


def test_who_was_ready_late_keeps_the_place_of_its_arrival() -> None:
    queue = waiting(resources())
    for order in (2, 5, 1, 3):
        req = request(2, f"r{order}")
        req.order = order
        queue.add(req)
    assert [req.rid for req in queue] == ["r1", "r2", "r3", "r5"]


def test_no_pass_larger_than_the_slots_left() -> None:
    queue = waiting(resources())
    for rid in "abc":
        queue.add(request(2, rid))
    assert computed(queue.next_batch(2)) == [("a", 2), ("b", 2)]
    assert queue.next_batch(0) is None


def test_a_prompt_that_does_not_fit_waits_and_holds_back_the_next() -> None:
    shared = resources(pages=4)
    queue = waiting(shared)
    first = request(12, "first")
    for req in (first, request(8, "second"), request(1, "third")):
        queue.add(req)
    assert computed(queue.next_batch(8)) == [("first", 12)]
    assert queue.next_batch(8) is None
    shared.release(first)
    assert computed(queue.next_batch(8)) == [("second", 8), ("third", 1)]


def test_removing_the_chunked_prompt_lets_the_next_start() -> None:
    shared = resources()
    queue = waiting(shared)
    long = request(40, "long")
    queue.add(long)
    queue.add(request(3, "short"))
    computed(queue.next_batch(8))
    queue.remove(long)
    shared.release(long)
    shared.check_idle()
    assert computed(queue.next_batch(8)) == [("short", 3)]
