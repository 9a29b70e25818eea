"""Pages of simulated decodes: the closed form against a count of every room, and retraction worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from pdctl.layout.kv_pages import AdmittedPages
from pdctl.simulation.decode_memory import DecodeMemory, GrowingPages
from pdctl.simulation.fleet import SimulatedFleet
from pdctl.simulation.fleet_shape import SimulationSettings
from pdctl.simulation.kernel import Kernel, LoggedEvent
from pdctl.simulation.run import simulate
from tests.cases import for_each
from tests.simulation.fleets import given, poisson, shape

MS = 10**6


def pages(tokens: int, page: int) -> int:
    return (tokens + page - 1) // page


@dataclass
class Room:
    tokens: int
    left: int
    running: bool = False

    def held(self, page: int) -> int:
        return pages(self.tokens, page)

    def kept(self, page: int, headroom: int) -> int:
        return pages(self.tokens + min(self.left, headroom), page)

    def most(self, page: int) -> int:
        return pages(self.tokens + self.left, page)


@for_each("page", [1, 7, 16, 64])
def test_growing_pages_are_those_of_each_room(page: int) -> None:
    dice = Random(page)
    growing, rooms = GrowingPages(page), list[tuple[int, int]]()
    for step in range(0, 400, 3):
        if rooms and dice.random() < 0.3:
            growing.add(*rooms.pop(dice.randrange(len(rooms))), -1)
        rooms.append((dice.randrange(1, 300), step))
        growing.add(*rooms[-1])
        for ahead in (0, 1, page, 3 * page + 1):
            at = step + ahead
            assert growing.at(at) == sum(pages(tokens + at - since, page) for tokens, since in rooms)


@for_each("seed", range(40))
def test_what_is_counted_in_closed_form_is_what_a_count_of_each_room_gives(seed: int) -> None:
    dice = Random(seed)
    page, headroom = dice.choice((1, 5, 16)), dice.choice((4, 30, 200))
    pool = pages(dice.randrange(700, 3000), page)
    memory, rooms, step = DecodeMemory(page, headroom), dict[int, Room](), 0
    for number in range(200):
        admitted = AdmittedPages(
            held=sum(room.held(page) for room in rooms.values()),
            ahead=sum(room.kept(page, headroom) - room.held(page) for room in rooms.values()),
            largest=max((room.most(page) for room in rooms.values()), default=0),
        )
        running = [room for room in rooms.values() if room.running]
        still = sum(room.kept(page, headroom) for room in rooms.values() if not room.running)
        assert memory.used(step) == admitted.held + admitted.ahead
        for ahead in (0, 1, 9):
            grown = sum(pages(room.tokens + ahead, page) for room in running)
            assert memory.is_full(step + ahead, pool) == (still + grown > pool)
        new = Room(dice.randrange(1, 300), dice.randrange(1, 300))
        fits = new.kept(page, headroom) <= admitted.left(pool) and admitted.could_finish(pool, new.most(page))
        assert memory.admits(step, pool, new.tokens, new.left) == fits
        draw = dice.random()
        if draw < 0.5 and fits:
            rooms[number] = new
            memory.admit(number, new.tokens, new.left)
        elif draw < 0.7 and (waiting := [one for one, room in rooms.items() if not room.running]):
            one = dice.choice(waiting)
            room = rooms[one]
            room.tokens, room.left, room.running = room.tokens + 1, room.left - 1, True
            memory.run(one, room.tokens, room.left, step)
        elif rooms and (draw < 0.8 or memory.is_full(step, pool)):
            one = dice.choice(list(rooms))
            del rooms[one]
            memory.free(one, step)
        elif running and not memory.is_full(step, pool):
            most = max(1, min(room.left for room in running))
            steps = memory.steps(step, pool, most)
            assert 1 <= steps <= most
            assert not memory.is_full(step + steps - 1, pool)
            assert steps == most or memory.is_full(step + steps, pool)
            step += steps
            for room in running:
                room.tokens, room.left = room.tokens + steps, room.left - steps
            for one in [one for one, room in rooms.items() if room.running and room.left <= 0]:
                del rooms[one]
                memory.free(one, step)
    assert step > 0


def test_the_latest_of_two_equal_rooms_loses_its_pages_and_goes_on_where_it_stopped() -> None:
    """Pages of a token, 145 of them. Before its step j a room needs 21 + j, so the 53rd step does not find two pages.

    The second waits while the first generates its last seven tokens. Between two of its tokens are eight steps then.
    """
    fleet = replace(shape(prefills=2, kv_blocks=145, block_tokens=1), reserved_decode_tokens=10)
    kernel = Kernel()
    kept: list[tuple[int, ...]] = []
    write = kernel.log.write
    kernel.log.write = lambda record: (write(record), kept.append(tuple(record)))[0]
    run = SimulatedFleet(fleet, given((0.0, 20, 60), (0.0, 20, 60)), SimulationSettings(), kernel)
    run.begin()
    kernel.run(10**12)
    requests = run.requests
    joined = requests.first_token[0]
    assert requests.first_token[1] == joined
    assert requests.end[0] == joined + 59 * 10 * MS
    assert requests.end[1] == joined + (59 + 7) * 10 * MS
    assert list(requests.tbt) == [10 * MS, 80 * MS]
    lost = [one for one in kept if one[1] in (LoggedEvent.RETRACTED, LoggedEvent.RESUMED)]
    assert [(one[0] - joined, one[1], one[2]) for one in lost] == [
        (520 * MS, LoggedEvent.RETRACTED, 1),
        (590 * MS, LoggedEvent.RESUMED, 1),
    ]
    assert run.used_blocks == 0


def test_answers_that_outgrow_their_headroom_share_a_decode_that_their_whole_lengths_would_not() -> None:
    """With all of the answer set aside at once, eight rooms of 125 blocks fill the pool; with 16 ahead, more run."""
    trace = poisson(64, 1000.0, 1, 200, 800, spread=False)
    fleet = shape(kv_blocks=1000, block_tokens=8)
    few, many = (
        simulate(replace(fleet, reserved_decode_tokens=ahead), trace, SimulationSettings()) for ahead in (1000, 16)
    )
    assert max(few.requests.end_ns) > 1.4 * max(many.requests.end_ns)
    assert min(few.requests.end_ns) > 0 < min(many.requests.end_ns)
