"""The state machine: any step may follow any other; the invariants are looked at after each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.engine.invariants.instance import Size
from tests.engine.invariants.net import simulated
from tests.engine.invariants.world import Shape, World

BOOL = st.booleans()
RANKS = st.sampled_from([1, 1, 2])


def shape(
    near: int, far: int, attempts: int, tight: bool, cached: bool, overlap: bool, lazy: bool, same_host: bool
) -> Shape:
    """Two prefills of attention TP `near`, two decodes of `far`; in a `tight` pool requests are retracted."""
    pages = 22 if tight else 60
    return Shape(
        tuple(Size("prefill", near, 28, 4, 8, cached, overlap, attempts) for _ in range(2)),
        tuple(Size("decode", far, pages, 4, 8, False, overlap) for _ in range(2)),
        lazy,
        same_host,
    )


ATTEMPTS = st.sampled_from([0, 0, 1, 3])  # of optimistic prefill
SHAPES = st.builds(shape, RANKS, RANKS, ATTEMPTS, BOOL, BOOL, BOOL, BOOL, BOOL)
PLACE = st.integers(0, 63)  # which of those that are there
SMALL = ("turn", "turn", "turn", "loop", "loop", "deliver", "deliver", "deliver", "answer", "land")
SECONDS = (0.03, 0.03, 0.5, 0.5, 0.5, 3.0, 3.0, 12.0, 31.0, 65.0, 305.0)
WIRE = ("hold", "drop", "duplicate", "reorder", "refuse", "fail_write", "stick_write")
DEATHS = ("kill", "kill_rank", "restart", "restart", "restart", "forget")
WAYS = ("both", "both", "both", "both", "prefill", "decode", "misrouted", "again")


T = TypeVar("T")


def pick(items: Sequence[T], which: int) -> T:
    return items[which % len(items)]


class Pair(RuleBasedStateMachine):
    """Two prefills and two decodes. What each rule picks is a number modulo what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.world: World | None = None

    @initialize(shape=SHAPES)
    def start(self, shape: Shape) -> None:
        self.world = World(shape)
        self.stack.enter_context(simulated(self.world.net))
        self.stack.callback(self.world.close)
        self.world.start()

    # --- requests

    @rule(
        pair=PLACE,
        way=st.sampled_from(WAYS),
        length=st.integers(1, 40),
        most=st.integers(1, 12),
        count=st.integers(1, 4),
    )
    def ask(self, pair: int, way: str, length: int, most: int, count: int) -> None:
        for number in range(count):
            self._ask(pair + number, way, length, most)

    def _ask(self, pair: int, way: str, length: int, most: int) -> None:
        world = self.w
        prefill, decode = world.prefills[pair % 2], world.decodes[pair // 2 % 2]
        prompt = [(length * 7 + place * (3 if pair % 3 else 5)) % 60 for place in range(length)]
        if way == "prefill":
            world.submit(prefill, None, prompt, most)
        elif way == "decode":
            world.submit(None, decode, prompt, most, named=prefill)
        elif way == "misrouted":
            world.submit(prefill, decode, prompt, most, named=world.prefills[(pair + 1) % 2])
        elif way == "again" and world.asked:
            old = pick(list(world.asked.values()), pair)
            world.submit(prefill, decode, list(old.prompt), most, room=old.room)
        else:
            world.submit(prefill, decode, prompt, most)

    # --- progress

    @rule(kinds=st.lists(st.tuples(st.sampled_from(SMALL), PLACE), min_size=1, max_size=8))
    def small_steps(self, kinds: list[tuple[str, int]]) -> None:
        for kind, which in kinds:
            getattr(self, f"_{kind}")(which)

    def _turn(self, which: int) -> None:
        self.w.turn(pick(self.w.instances, which))

    def _loop(self, which: int) -> None:
        if self.w.loops:
            self.w.loop_turn(pick(self.w.loops, which))

    def _deliver(self, which: int) -> None:
        if self.w.net.busy:
            self.w.deliver(pick(self.w.net.busy, which), 1 + which % 3)

    def _answer(self, which: int) -> None:
        asking = [loop for loop in self.w.loops if loop.jobs]
        if asking:
            pick(asking, which).answer()

    def _land(self, which: int) -> None:
        if self.w.fabric.writes:
            self.w.fabric.land(pick(self.w.fabric.writes, which))

    @rule(rounds=st.integers(1, 6))
    def work(self, rounds: int) -> None:
        self.w.settle(rounds)

    @rule(seconds=st.sampled_from(SECONDS))
    def wait(self, seconds: float) -> None:
        self.w.advance(seconds)

    # --- trouble

    @rule(which=PLACE)
    def abort(self, which: int) -> None:
        if self.w.open:
            self.w.abort(pick(self.w.being_written or self.w.open, which))

    @rule(kind=st.sampled_from(WIRE), which=PLACE)
    def trouble_on_the_wire(self, kind: str, which: int) -> None:
        getattr(self, f"_{kind}")(which)

    def _hold(self, which: int) -> None:
        if self.w.net.busy:
            link = pick(self.w.net.busy, which)
            link.held, link.held_since = True, self.w.clock.now

    def _drop(self, which: int) -> None:
        if self.w.net.busy:
            pick(self.w.net.busy, which).wire.popleft()

    def _duplicate(self, which: int) -> None:
        if self.w.net.busy:
            wire = pick(self.w.net.busy, which).wire
            wire.appendleft(wire[0])

    def _reorder(self, which: int) -> None:
        if self.w.net.busy:
            pick(self.w.net.busy, which).wire.rotate(1)

    def _refuse(self, which: int) -> None:
        asking = [loop for loop in self.w.loops if loop.jobs]
        if asking:
            pick(asking, which).answer(refused=True)

    def _fail_write(self, which: int) -> None:
        if self.w.fabric.writes:
            self.w.fabric.fail(pick(self.w.fabric.writes, which))

    def _stick_write(self, which: int) -> None:
        if self.w.fabric.writes:
            pick(self.w.fabric.writes, which).stuck = True

    @rule(kind=st.sampled_from(DEATHS), which=PLACE)
    def death(self, kind: str, which: int) -> None:
        getattr(self, f"_{kind}")(which)

    def _kill(self, which: int) -> None:
        instance = pick(self.w.instances, which)
        if not instance.dead:
            self.w.kill(instance)

    def _kill_rank(self, which: int) -> None:
        instance = pick(self.w.instances, which)
        if not instance.dead:
            instance.kill_rank(pick(instance.ranks, which // 8))

    def _restart(self, which: int) -> None:
        down = [one for one in self.w.instances if one.dead or one.crippled]
        if down:
            self.w.restart(pick(down, which))

    def _forget(self, which: int) -> None:
        pick(self.w.prefills, which).forget_ranks()

    @rule(seconds=st.sampled_from([-3600.0, 3600.0, -1.0]))
    def clock_jumps(self, seconds: float) -> None:
        self.w.clock.jump += seconds

    # --- the end

    @property
    def w(self) -> World:
        assert self.world is not None
        return self.world

    def teardown(self) -> None:
        try:
            if self.world is not None:
                self.world.finish()
                self.world.serves()
        finally:
            self.stack.close()
