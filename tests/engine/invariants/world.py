"""The simulation as a whole: a few instances, the requests on them, and the steps that can happen."""

from __future__ import annotations

from dataclasses import dataclass

from pdctl.engine.ipc.messages import AbortRequest, Generate, Sampling
from pdctl.engine.kv_link.room_state import KVPoll
from tests.engine.invariants.instance import HOST, Instance, SimRank, Size
from tests.engine.invariants.ledger import Asked, InvariantError, check_agreement, check_rank, take
from tests.engine.invariants.model import NONSENSE
from tests.engine.invariants.net import Clock, Network, SimLink, SimLoop
from tests.engine.invariants.transport import Fabric

FOREVER = 1500.0  # virtual seconds in which every deadline of a room has passed, one after the other
STALL = 4.0  # virtual seconds the network or a process may stand still: far below the graces, as those demand
ROUNDS = 40  # of everybody's turn until nothing moves any more


@dataclass(frozen=True, slots=True)
class Shape:
    """A deployment. `lazy`: writes take time; `same_host`: a lost connection means a dead process."""

    prefills: tuple[Size, ...] = (Size("prefill", 1), Size("prefill", 1))
    decodes: tuple[Size, ...] = (Size("decode", 1),)
    lazy: bool = True
    same_host: bool = True


class World:
    def __init__(self, shape: Shape) -> None:
        self.clock = Clock()
        self.net = Network(self.clock)
        self.fabric = Fabric(shape.lazy)
        self.shape = shape
        self.asked: dict[str, Asked] = {}
        self._rooms = 0
        self._rids = 0
        self.instances: list[Instance] = []
        self.retired: list[Instance] = []

    def start(self) -> None:
        """Every instance, registered; call it inside `net.simulated`."""
        sizes = (*self.shape.prefills, *self.shape.decodes)
        self.instances = [self._launch(size, 8998 + number) for number, size in enumerate(sizes)]
        self.settle()

    def _launch(self, size: Size, port: int) -> Instance:
        return Instance(size, port, self.net, self.fabric, self.shape.same_host)

    @property
    def prefills(self) -> list[Instance]:
        return [one for one in self.instances if one.size.role == "prefill"]

    @property
    def decodes(self) -> list[Instance]:
        return [one for one in self.instances if one.size.role == "decode"]

    @property
    def loops(self) -> list[SimLoop]:
        return [rank.loop for one in self.instances for rank in one.ranks if not rank.dead]

    # --- requests

    def submit(
        self,
        prefill: Instance | None,
        decode: Instance | None,
        prompt: list[int],
        most: int,
        room: int = 0,
        named: Instance | None = None,
    ) -> int:
        """One request, on both sides or one. `named`: the prefill its decode is told; `room`: an earlier one again."""
        if not room:
            self._rooms += 1
            room = self._rooms
        for where, tokens in ((prefill, 1), (decode, most)):
            if where is None or where.dead:
                continue
            self._rids += 1
            rid = f"{where.size.role[0]}{self._rids}"
            address = named or prefill or self.prefills[0]
            message = Generate(
                rid,
                list(prompt),
                Sampling(max_new_tokens=most, temperature=0.0, ignore_eos=True),
                bootstrap_host=HOST,
                bootstrap_port=address.port,
                bootstrap_room=room,
                received=self.clock.time(),
            )
            self.asked[rid] = Asked(rid, room, tuple(prompt), tokens, where)
            where.queue.append(message)
        return room

    def abort(self, one: Asked) -> None:
        if not one.where.dead:
            one.where.queue.append(AbortRequest(one.rid, exact=True))

    @property
    def open(self) -> list[Asked]:
        return [one for one in self.asked.values() if not one.ends and not one.where.dead]

    @property
    def being_written(self) -> list[Asked]:
        """Those whose pages a write is reading or filling just now: the worst moment for anything to happen."""
        rids = {owner.rid for write in self.fabric.writes for owner in write.owners}
        rooms = {self.asked[rid].room for rid in rids}
        return [one for one in self.open if one.room in rooms]

    # --- steps

    def turn(self, instance: Instance) -> None:
        instance.turn()
        self.check(instance)

    def loop_turn(self, loop: SimLoop) -> None:
        loop.turn()

    def deliver(self, link: SimLink, frames: int = 1) -> None:
        self.net.deliver(link, frames)

    def advance(self, seconds: float) -> None:
        """Let time pass. Nothing may stand still for more than STALL seconds: what is held longer is let go."""
        left = seconds
        while left > 0:
            self._pass(min(left, STALL))
            left -= STALL
            if left > 0:
                self.release(STALL)
                self._round()

    def release(self, age: float = 0.0) -> None:
        """Let go of links held for `age` seconds."""
        for link in self.net.links:
            if link.held and self.clock.now - link.held_since >= age:
                link.held = False

    def _pass(self, seconds: float) -> None:
        """Everything that is due on the way happens in order; no frame, answer or write arrives."""
        until, loops = self.clock.now + seconds, self.loops
        while True:
            due = [(at, number) for number, loop in enumerate(loops) if (at := loop.due) is not None]
            at, number = min(due, default=(until + 1, 0))
            if at > until:
                break
            self.clock.now = max(self.clock.now, at)
            loops[number].turn()
        self.clock.now = until

    def kill(self, instance: Instance) -> None:
        instance.kill()
        for one in self.asked.values():
            if one.where is instance and not one.ends:
                one.ends += 1  # its server's clients see their connections close
                one.why = "killed"

    def restart(self, instance: Instance) -> None:
        """A successor behind the same bootstrap address, with endpoints of its own."""
        if not instance.dead:
            self.kill(instance)
        self.retired.append(instance)
        self.instances[self.instances.index(instance)] = self._launch(instance.size, instance.port)

    def check(self, instance: Instance) -> None:
        if instance.dead:
            return
        for rank in instance.ranks:
            check_rank(rank)
        check_agreement(instance)
        story = instance.leader.outbox.story
        take(self.asked, story)
        for rank in instance.ranks:
            rank.outbox.story.clear()

    def settle(self, rounds: int = ROUNDS) -> None:
        """Let everybody work without a fault until nothing moves, time standing still."""
        for _ in range(rounds):
            self._round()
            if self._still():
                return

    def _round(self) -> None:
        """A write takes at least from one round to the next."""
        begun = [write for write in self.fabric.writes if not write.stuck]
        for instance in self.instances:
            self.turn(instance)
        for loop in self.loops:
            loop.turn()
            while loop.jobs:
                loop.answer()
        for link in self.net.busy:
            self.deliver(link, len(link.wire))
        for write in begun:
            self.fabric.land(write)
        for loop in self.loops:
            loop.turn()

    def _still(self) -> bool:
        waiting = any(loop.calls or loop.jobs or loop.events or loop.asyncio.ready for loop in self.loops)
        working = any(
            rank.scheduler._overlap.under_way or len(rank.role.running)
            for one in self.instances
            if not one.crippled
            for rank in one.ranks
        )
        return not (waiting or working or self.net.busy or self._landing or any(i.queue for i in self.instances))

    @property
    def _landing(self) -> bool:
        return any(not write.stuck for write in self.fabric.writes)

    # --- the end

    def finish(self) -> None:
        """No more faults: within FOREVER every request has ended, and nothing is held by anybody."""
        self.release()
        for instance in list(self.instances):
            if instance.dead or instance.crippled:
                self.restart(instance)
        end = self.clock.now + FOREVER
        self.settle()
        while self.clock.now < end and not self._over():
            self._pass(20.0)
            self.settle()
        self.require_nothing_left()

    def _over(self) -> bool:
        held = any(rank.role.queues().total or rank.role.queues().draining for rank in self._living())
        rooms = any(rank.manager.stats().rooms for rank in self._living())
        return not (self.open or held or rooms)

    def _living(self) -> list[SimRank]:
        return [rank for one in self.instances for rank in one.ranks if not rank.dead]

    def require_nothing_left(self) -> None:
        if self.open:
            one = self.open[0]
            raise InvariantError(
                f"rid {one.rid} (room {one.room}) has not ended after {FOREVER:.0f} s: {self._where(one)}"
            )
        for rank in self._living():
            rank.resources.check_idle()
            stats = rank.manager.stats()
            if stats.rooms or stats.draining:
                raise InvariantError(f"{rank.loop.name} {rank.loop.endpoint} still has {stats.rooms} rooms")
        if self.fabric.writes:
            raise InvariantError(f"{len(self.fabric.writes)} writes are still under way")

    def _where(self, one: Asked) -> str:
        found = []
        for rank in one.where.ranks:
            for queue, req in rank.role.members():
                if req.rid == one.rid:
                    end = req.sender or req.receiver
                    found.append(f"{queue}, {KVPoll(end.poll()).name if end else '-'}")
        return "; ".join(found) or "in no queue"

    def serves(self) -> None:
        """Every pair still answers, and rightly."""
        for prefill in self.prefills:
            for decode in self.decodes:
                self.submit(prefill, decode, [7, 8, 9, NONSENSE - 1, 5], 3)
        before = len(self.asked) - 2 * len(self.prefills) * len(self.decodes)
        asked = list(self.asked.values())[before:]
        for _ in range(12):
            self.settle()
            if all(one.ends for one in asked):
                break
            self._pass(2.0)
        for one in asked:
            if one.why != "length":
                raise InvariantError(f"rid {one.rid} on a recovered pair ended with {one.why!r}: {self._where(one)}")

    def close(self) -> None:
        for instance in (*self.instances, *self.retired):
            if not instance.dead:
                instance.close()
