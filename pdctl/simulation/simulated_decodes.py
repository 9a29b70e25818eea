"""The decodes of a simulated fleet: memory for rooms, the steps of their batches, and who loses pages in between.

Only where some answer is longer than its headroom do rooms outgrow what was set aside for them (DecodeMemory);
otherwise a room's blocks are charged once, with its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.layout.cost_profile import ATTO_PER_NS, DecodeCosts
from pdctl.layout.kv_pages import most_headroom, retraction_order
from pdctl.replica.states import ReplicaState
from pdctl.simulation.decode import RunningRooms
from pdctl.simulation.decode_memory import DecodeMemory
from pdctl.simulation.fleet_shape import FirstTokenFrom, RequestRouting
from pdctl.simulation.kernel import SECOND, DueEvent, LoggedEvent
from pdctl.simulation.replica_choice import LeastLoadedReplica, ReplicaInTurn, UngatedReplica
from pdctl.simulation.replicas import ReplicaStates, SimulatedReplica
from pdctl.simulation.request_progress import RequestProgress

if TYPE_CHECKING:
    from pdctl.replica.transitions import Transition
    from pdctl.simulation.fleet_shape import FleetShape, SimulationSettings
    from pdctl.simulation.kernel import Kernel
    from pdctl.simulation.replica_choice import ReplicaChoice
    from pdctl.simulation.request_trace import RequestTrace


class SimulatedDecodes:
    def __init__(self, shape: FleetShape, trace: RequestTrace, settings: SimulationSettings, kernel: Kernel) -> None:
        self.shape, self.settings, self.kernel = shape, settings, kernel
        self.requests = RequestProgress(trace, shape)
        self.replicas = [SimulatedReplica(number, shape.prefill.gpus) for number in range(shape.replicas)]
        self.states = ReplicaStates(self.replicas, shape.prefill.layers, kernel.log, self.changed, self.sends_weights)
        self.used_blocks = self.prefill_blocks = 0
        self.decode_steps = self.decode_busy_ns = 0
        self.decode_used = [0] * shape.replicas  # blocks of rooms, by replica; 0 for what is no decode
        self._shared = settings.routing is RequestRouting.SHARED_QUEUE
        self._from_prefill = shape.first_token is FirstTokenFrom.PREFILL
        self._placement = ReplicaInTurn if settings.routing is RequestRouting.ROUND_ROBIN else LeastLoadedReplica
        self.decodes: ReplicaChoice = self._placement(shape.replicas)
        if settings.gate:
            self.decodes = UngatedReplica(self.decodes, self.decode_used, self._gated)
        self._handover_ns = round(shape.prefill.handover_s * SECOND)
        self._decode_costs = DecodeCosts.of(shape.decode)
        self._slots = shape.decode.decode_batch_rooms
        self._one_sender = settings.one_sender
        page = shape.decode.block_tokens
        self._headroom = most_headroom(shape.reserved_decode_tokens, page, shape.decode.kv_blocks * page)
        self._outgrown = max(self.requests.output, default=0) > self._headroom
        self._write = kernel.log.write
        kernel.handlers[DueEvent.STEP_ENDS] = self._step_ends

    def begin_decoding(self, replica: SimulatedReplica) -> None:
        """Prepare one that is about to have rooms, for the first time or again."""
        replica.running = replica.running or RunningRooms(self._decode_costs)
        if self._outgrown and replica.memory is None:
            replica.memory = DecodeMemory(self.shape.decode.block_tokens, self._headroom)

    # Memory.

    def count_rooms(self, now_ns: int, decode: SimulatedReplica) -> None:
        """Bring `used` up to the step that has just ended: rooms grow, and keep pages ahead while there are some."""
        memory, running = decode.memory, decode.running
        if memory is None or running is None:
            return
        pool = decode.capacity - decode.prefill_blocks
        blocks = min(pool, memory.used(running.steps_at(now_ns)))
        more = blocks - self.decode_used[decode.number]
        if more:
            decode.used += more
            self.used_blocks += more
            self.decode_used[decode.number] = blocks

    def _gated(self, number: int) -> bool:
        """Whether a decode uses more than twice the mean of all, and more than half of what it has: never all do."""
        used = self.decode_used[number]
        decodes = self.states.counts[ReplicaState.DECODE]
        above = used * decodes > 2 * (self.used_blocks - self.prefill_blocks)
        return above and 2 * used > self.replicas[number].capacity

    def _fits(self, now_ns: int, decode: SimulatedReplica, room: int) -> bool:
        """Whether it may have its memory now. Retracted rooms come first."""
        if decode.slots >= self._slots:
            return False
        requests, memory = self.requests, decode.memory
        if memory is None:
            return decode.used + requests.blocks[room] <= decode.capacity
        running = decode.running
        assert running is not None
        pool = decode.capacity - decode.prefill_blocks
        step = running.steps_at(now_ns)
        return not decode.retracted and memory.admits(step, pool, requests.prompt[room], requests.output[room])

    def _charge(self, now_ns: int, decode: SimulatedReplica, room: int) -> None:
        decode.slots += 1
        requests, memory = self.requests, decode.memory
        if memory is not None:
            memory.admit(room, requests.prompt[room], requests.output[room])
            self.count_rooms(now_ns, decode)
            return
        blocks = requests.blocks[room]
        decode.used += blocks
        self.used_blocks += blocks
        self.decode_used[decode.number] += blocks

    def _free_room(self, now_ns: int, decode: SimulatedReplica, room: int) -> None:
        blocks, memory = self.requests.blocks[room], decode.memory
        decode.demand -= blocks
        decode.slots -= 1
        if memory is not None:
            running = decode.running
            assert running is not None
            memory.free(room, running.steps_at(now_ns))
            self.count_rooms(now_ns, decode)
            return
        decode.used -= blocks
        self.used_blocks -= blocks
        self.decode_used[decode.number] -= blocks

    def _make_room(self, now_ns: int, decode: SimulatedReplica, memory: DecodeMemory) -> None:
        """Retract rooms until the others find a page for each token of the step that begins."""
        requests, running = self.requests, decode.running
        assert running is not None
        pool, step = decode.capacity - decode.prefill_blocks, running.steps
        while running.leaving and memory.is_full(step, pool):

            def order(entry: tuple[int, int, int, int]) -> tuple[int, int, int]:
                last, room, _, _ = entry
                return retraction_order(requests.output[room] - (last - step), requests.prompt[room], room)

            room = min(running.leaving, key=order)[1]
            decode.retracted.append(running.retract(room, now_ns, requests.prompt[room], requests.output[room]))
            memory.free(room, step)
            self._write((now_ns, LoggedEvent.RETRACTED, room, decode.number))
        decode.retracted.sort(key=lambda one: one.room)

    def _resume(self, now_ns: int, decode: SimulatedReplica, memory: DecodeMemory) -> None:
        """Let retracted rooms run again, in order of arrival; the first that does not fit holds back the others."""
        running = decode.running
        assert running is not None
        pool, step = decode.capacity - decode.prefill_blocks, running.steps
        while decode.retracted:
            one = decode.retracted[0]
            if not memory.admits(step, pool, one.tokens, one.left):
                return
            del decode.retracted[0]
            memory.admit(one.room, one.tokens, one.left)
            memory.run(one.room, one.tokens, one.left, step)
            running.resume(one, now_ns)
            self._write((now_ns, LoggedEvent.RESUMED, one.room, decode.number))

    def wake_retracted(self, now_ns: int, decode: SimulatedReplica) -> None:
        """Memory was freed that no room of its batch had: where none runs, no step will notice."""
        if decode.retracted and not decode.due_ns:
            self._wait_for(decode, now_ns, 0)

    def _offer(self, decode: SimulatedReplica) -> None:
        """Tell the choice of decodes how loaded one is, or that nothing may be sent to it now."""
        taken = self._shared and (decode.slots >= self._slots or (self._one_sender and decode.senders))
        if decode.takes_kv and not taken:
            self.decodes.put(decode.number, decode.demand)
        else:
            self.decodes.drop(decode.number)

    # Steps.

    def _poke(self, now_ns: int, decode: SimulatedReplica) -> None:
        """Let the first room of the inbox join at the end of the step under way when it may."""
        running, ready = decode.running, decode.inbox[0][0]
        assert running is not None
        if running.leaving:
            steps = running.steps_by(max(ready, now_ns))
            if steps < decode.due_steps:
                self._wait_for(decode, running.end_of(steps), steps)
        elif not decode.due_ns:
            self._wait_for(decode, max(ready, now_ns), 0)

    def _wait_for(self, decode: SimulatedReplica, due_ns: int, steps: int) -> None:
        decode.turn += 1
        decode.due_ns, decode.due_steps = due_ns, steps
        self.kernel.schedule(due_ns, DueEvent.STEP_ENDS, decode.number, decode.turn)

    def _step_ends(self, now_ns: int, number: int, turn: int) -> None:
        decode, requests = self.replicas[number], self.requests
        if turn != decode.turn:
            return
        running = decode.running
        assert running is not None
        freed = False
        if running.leaving:
            steps = decode.due_steps
            self.decode_steps += steps
            self.decode_busy_ns += now_ns - running.began_ns
            self._write((now_ns, LoggedEvent.STEPS_ENDED, steps, number))
            running.advance(steps)
            running.began_ns = now_ns  # so that memory is counted by the steps that have ended
            if running.leaving[0][0] == running.steps:
                freed = True
                for room, tbt in running.leave(requests.prompt, requests.output):
                    requests.tbt[room] = tbt
                    self._free_room(now_ns, decode, room)
                    self._end_room(now_ns, room, number)
        running.began_ns = now_ns
        memory = decode.memory
        if memory is not None and decode.retracted:
            self._resume(now_ns, decode, memory)
            freed = True  # for those that waited behind them
        inbox = decode.inbox
        while inbox and inbox[0][0] <= now_ns:
            freed |= self._join(now_ns, decode, inbox.pop(0)[1])
        if memory is not None:
            self._make_room(now_ns, decode, memory)
            self.count_rooms(now_ns, decode)
        if running.leaving:
            steps = running.begin(now_ns)
            if inbox:
                steps = min(steps, running.steps_by(inbox[0][0]))
            if memory is not None:
                steps = memory.steps(running.steps, decode.capacity - decode.prefill_blocks, steps)
            self._wait_for(decode, running.end_of(steps), steps)
        else:
            decode.due_ns = 0
            if inbox:
                self._wait_for(decode, inbox[0][0], 0)
        if freed:
            self._rooms_left(now_ns, decode)

    def _join(self, now_ns: int, decode: SimulatedReplica, room: int) -> bool:
        """Let a room join the batch; return True if that was all, because its first token is its last."""
        requests, running = self.requests, decode.running
        assert running is not None
        self._write((now_ns, LoggedEvent.JOINED, room, decode.number))
        gap = 0
        if not self._from_prefill:
            requests.first_token[room] = now_ns
        else:
            gap = (now_ns - requests.first_token[room]) * ATTO_PER_NS
        output = requests.output[room]
        if output == 1:
            self._free_room(now_ns, decode, room)
            self._end_room(now_ns, room, decode.number)
            requests.end[room] = requests.first_token[room]
            return True
        if decode.memory is not None:
            decode.memory.run(room, requests.prompt[room] + 1, output - 1, running.steps)
        running.join(room, requests.prompt[room] + 1, output - 1, gap)
        return False

    def _rooms_left(self, now_ns: int, decode: SimulatedReplica) -> None:
        """Memory and slots of a decode are free: rooms that wait for them get them in order."""
        self._offer(decode)
        waiting = decode.without_pages
        while waiting and self._fits(now_ns, decode, waiting[0]):
            self._reserve(now_ns, decode, waiting.popleft())
        if self._shared:
            self._wake_senders(now_ns)
        if decode.settles:
            self.settle(now_ns, decode)

    def _end_room(self, now_ns: int, room: int, number: int) -> None:
        self._write((now_ns, LoggedEvent.FINISHED, room, number))
        self.requests.end[room] = now_ns
        self._end_request()

    def _end_request(self) -> None:
        self.requests.ended += 1
        if self.requests.ended == len(self.requests.arrival):
            self.kernel.stop()

    # What others add.

    def changed(self, replica: SimulatedReplica, row: Transition) -> None:
        """A replica has changed its state."""
        raise NotImplementedError

    def sends_weights(self, number: int) -> bool:
        """Whether a replica sends its weights."""
        raise NotImplementedError

    def _reserve(self, now_ns: int, decode: SimulatedReplica, room: int) -> None:
        """Set memory aside for a room that was routed."""
        raise NotImplementedError

    def _wake_senders(self, now_ns: int) -> None:
        """Shared queue: a decode has a free lock, memory or a slot."""
        raise NotImplementedError

    def settle(self, now_ns: int, replica: SimulatedReplica) -> None:
        """Let a replica that is on its way to another state go on, if nothing holds it back any more."""
        raise NotImplementedError
