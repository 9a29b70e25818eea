"""A transport behind a modelled link: real bytes into another process, a clock that only the test moves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from pdctl.engine.drill.kv_faults import CLOSED, DOWN, GIVEN_UP, GONE, ShapedTransport
from pdctl.engine.drill.modelled_link import ModelledLink, Window
from pdctl.engine.transfer.transport import Op, OpState, TransferError, TransferPlan, TransportWrapper
from tests.engine.transfer.backends import BACKENDS
from tests.engine.transfer.far import FarPool, geometry, item, pair

SRC, DST = np.array([1, 2, 3, 4], dtype=np.int32), np.array([9, 8, 7, 6], dtype=np.int32)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Slow(TransportWrapper):
    """Its operations run until the test says how they ended, as those of a transport over TCP do."""

    refuses = ""
    stuck = False

    def post(self, plan: TransferPlan, src_pages: np.ndarray, dst_pages: np.ndarray) -> Op:
        if self.refuses:
            raise TransferError(self.refuses)
        self.last = super().post(plan, src_pages, dst_pages)
        self.last.state = OpState.RUNNING
        return self.last

    def poll(self, op: Op) -> OpState:
        return op.state

    def release(self, op: Op) -> bool:
        return not self.stuck or op.state != OpState.RUNNING

    def over(self, state: OpState, error: str = "") -> None:
        self.last.state, self.last.error = state, error


@dataclass
class Rig:
    transport: ShapedTransport
    inner: Slow
    clock: Clock
    plan: TransferPlan
    pool: np.ndarray
    other: FarPool

    def post(self) -> Op:
        return self.transport.post(self.plan, SRC, DST)

    def after(self, seconds: float, op: Op) -> OpState:
        self.clock.now += seconds
        return self.transport.poll(op)

    def arrived(self) -> bool:
        shape, far = geometry(), self.other.content()
        return all(
            np.array_equal(item(far, shape, slab, dst), item(self.pool, shape, slab, src))
            for slab in range(shape.num_slabs)
            for src, dst in zip(SRC, DST, strict=True)
        )


@contextlib.contextmanager
def rig(link: ModelledLink, backend: str = "shm", slow: bool = False) -> Iterator[Rig]:
    shape, clock = geometry(), Clock()
    with pair(backend, shape, shape) as (real, pool, other, plan):
        inner = Slow(real)
        yield Rig(ShapedTransport(inner if slow else real, link, clock), inner, clock, plan, pool, other)


def moved(backend: str = "shm") -> int:
    shape = geometry()
    return len(SRC) * shape.num_slabs * shape.item_bytes


@pytest.mark.parametrize("backend", BACKENDS)
def test_word_of_it_comes_when_the_link_is_through(backend: str) -> None:
    """A second for the bytes, one for the operation, a quarter for each of 24 descriptors: pages 1..4 to 9..6."""
    with rig(ModelledLink(rate=moved(), op=1.0, descriptor=0.25), backend) as world:
        op = world.post()
        assert (op.state, op.nbytes) == (OpState.RUNNING, moved())
        while world.inner.poll(op.handle.made) == OpState.RUNNING:
            continue
        assert world.after(7.9, op) == OpState.RUNNING
        assert world.after(0.2, op) == OpState.DONE
        assert op.nbytes == moved()
        assert world.arrived()
        assert world.transport.release(op)


def test_it_says_when_to_look_again() -> None:
    with rig(ModelledLink(rate=moved(), op=1.0)) as world:
        op = world.post()
        looks = 0
        while world.transport.poll(op) == OpState.RUNNING:
            assert op.due > world.clock.now
            world.clock.now = op.due
            looks += 1
        assert world.clock.now == pytest.approx(1002.0)
        assert looks == 2  # when its bytes start to move, and when it is over


def test_a_link_of_no_cost_changes_nothing() -> None:
    with rig(ModelledLink()) as world:
        assert world.post().state == OpState.DONE
        assert world.arrived()


def test_operations_wait_for_a_lane() -> None:
    with rig(ModelledLink(op=1.0)) as world:
        first, second = world.post(), world.post()
        assert (world.after(1.0, first), world.transport.poll(second)) == (OpState.DONE, OpState.RUNNING)
        assert world.after(1.0, second) == OpState.DONE


def test_a_real_copy_that_takes_longer_than_the_link_is_waited_for() -> None:
    with rig(ModelledLink(op=1.0), slow=True) as world:
        op = world.post()
        assert world.after(5.0, op) == OpState.RUNNING
        assert op.due == 0.0  # the transport inside does not say when it will be done: look soon
        world.inner.over(OpState.DONE)
        assert world.after(0.0, op) == OpState.DONE


def test_what_fails_inside_fails_at_once() -> None:
    with rig(ModelledLink(op=1.0), slow=True) as world:
        op, other = world.post(), None
        world.inner.over(OpState.FAILED, "the wire is cut")
        assert world.after(0.0, op) == OpState.FAILED
        assert (op.error, op.nbytes) == ("the wire is cut", 0)
        other = world.post()  # and its lane is free
        world.inner.over(OpState.DONE)
        assert world.after(1.0, other) == OpState.DONE


def test_what_cannot_even_be_posted_takes_no_lane() -> None:
    with rig(ModelledLink(op=1.0), slow=True) as world:
        world.inner.refuses = "no such page"
        with pytest.raises(TransferError, match="no such page"):
            world.post()
        world.inner.refuses = ""
        op = world.post()
        world.inner.over(OpState.DONE)
        assert world.after(1.0, op) == OpState.DONE


def test_a_flap_fails_it() -> None:
    with rig(ModelledLink(rate=moved(), flap=Window(1.0, 0.5 + 1.0))) as world:
        world.clock.now += 1.0
        op = world.post()
        assert world.after(0.6, op) == OpState.FAILED
        assert (op.error, op.nbytes) == (DOWN, 0)
        assert world.after(1.0, op) == OpState.FAILED


def test_a_flap_does_not_settle_what_is_still_being_written() -> None:
    with rig(ModelledLink(rate=moved(), flap=Window(1.0, 1.5)), slow=True) as world:
        world.inner.stuck = True
        world.clock.now += 1.0
        op = world.post()
        assert world.after(0.6, op) == OpState.RUNNING
        world.inner.over(OpState.DONE)
        assert world.after(0.0, op) == OpState.FAILED


def test_given_up_while_it_is_held() -> None:
    with rig(ModelledLink(op=9.0)) as world:
        op, other = world.post(), world.post()
        assert world.transport.release(op)
        assert (world.transport.poll(op), op.error) == (OpState.FAILED, GIVEN_UP)
        assert world.after(9.0, other) == OpState.DONE  # the lane went to the one behind it


def test_what_is_still_being_written_cannot_be_given_up() -> None:
    with rig(ModelledLink(op=9.0), slow=True) as world:
        world.inner.stuck = True
        op = world.post()
        assert not world.transport.release(op)
        assert op.state == OpState.RUNNING
        world.inner.over(OpState.DONE)
        assert world.transport.release(op)
        assert op.state == OpState.FAILED


def test_a_peer_that_leaves_takes_what_was_on_the_wire_with_it() -> None:
    with rig(ModelledLink(op=9.0)) as world:
        op = world.post()
        world.transport.drop_peer("somebody else")
        assert op.state == OpState.RUNNING
        world.transport.drop_peer("far")
        assert (world.transport.poll(op), op.error) == (OpState.FAILED, GONE)


def test_closed_while_it_is_held() -> None:
    with rig(ModelledLink(op=9.0)) as world:
        op = world.post()
        world.transport.close()
        assert (op.state, op.error) == (OpState.FAILED, CLOSED)


def test_it_passes_for_the_transport_inside() -> None:
    with rig(ModelledLink(op=9.0)) as world:
        plan = world.transport.plan("far", geometry(), geometry())
        assert (world.transport.name, plan.cut) == ("shm", world.plan.cut)
        assert not world.transport.caps.sync_post
        assert world.transport.caps.same_host
