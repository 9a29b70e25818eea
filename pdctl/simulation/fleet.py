"""A simulated fleet: what changes with the states of its replicas, and what replicas do about them by themselves."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pdctl.replica.states import STATES, ReplicaState
from pdctl.replica.transitions import ReplicaEvent
from pdctl.simulation.decode import RunningRooms
from pdctl.simulation.kernel import EventClass, Kernel, LoggedEvent
from pdctl.simulation.prefill import PromptPasses
from pdctl.simulation.prefix_cache import PrefixCache
from pdctl.simulation.room_path import RoomPath

if TYPE_CHECKING:
    from pdctl.replica.transitions import Transition
    from pdctl.simulation.fleet_shape import FleetShape, SimulationSettings
    from pdctl.simulation.replicas import SimulatedReplica
    from pdctl.simulation.request_trace import RequestTrace

# States in which a change of role takes its time, once nothing of the old role is left.
CHANGES_ROLE = (
    *(ReplicaState.MUTATING_TO_DECODE, ReplicaState.MUTATING_TO_PREFILL),
    *(ReplicaState.AUS_PREFILL, ReplicaState.AUS_DECODE),
)


class SimulatedFleet(RoomPath):
    def __init__(self, shape: FleetShape, trace: RequestTrace, settings: SimulationSettings, kernel: Kernel) -> None:
        super().__init__(shape, trace, settings, kernel)
        kernel.handlers[EventClass.TIMER] = self._timer
        for replica in self.replicas[: shape.prefills + shape.decodes]:
            state = ReplicaState.PREFILL if replica.number < shape.prefills else ReplicaState.DECODE
            self.states.place(replica, state)
            self._serve(0, replica)

    def changed(self, replica: SimulatedReplica, row: Transition) -> None:
        now_ns, state = self.kernel.now_ns, row.target
        if not replica.takes_requests:
            self._prefills.drop(replica.number)
            self._idle.pop(replica.number, None)
        if not replica.takes_kv:
            self._decodes.drop(replica.number)
            self._move_promised(now_ns, replica)
        if row.event is ReplicaEvent.FLUSHED:
            self._keep_rooms(now_ns, replica)
        if replica.takes_requests or replica.takes_kv:
            self._serve(now_ns, replica)
        elif state is ReplicaState.SHUTTING_NULL:
            self.kernel.schedule(now_ns + self._park_ns, EventClass.TIMER, replica.number, replica.stay)
        elif state is ReplicaState.INACTIVE:
            replica.layers, replica.cache = 0, None
        elif state in (ReplicaState.AUS_PREFILL, ReplicaState.AUS_DECODE) and STATES[state].counts_as is replica.role:
            replica.flipped_ns = now_ns  # it comes back to the role it had
        if replica.settles:
            self.settle(now_ns, replica)

    def _serve(self, now_ns: int, replica: SimulatedReplica) -> None:
        """Enter a role, or come back to it."""
        replica.role = STATES[replica.state].counts_as
        profile = self.shape.prefill if replica.takes_requests else self.shape.decode
        replica.gpus, replica.capacity = profile.gpus, profile.kv_blocks
        if replica.takes_kv:
            replica.cache = None  # a change of role drops it (SGLang 0.5.23)
            replica.running = replica.running or RunningRooms(self._decode_costs)
            self._offer(replica)
            if replica.inbox:
                self._poke(now_ns, replica)
            if self._shared:
                self._wake_senders(now_ns)
            return
        if replica.passes is None:
            replica.passes = PromptPasses(self._prefill_costs, self._queue if self._shared else deque())
        if replica.cache is None and self.requests.prefix_blocks:
            replica.cache = PrefixCache()
        if not self._shared:
            self._prefills.put(replica.number, replica.queued_tokens)
        elif not replica.passes.parts:
            self._begin_pass(now_ns, replica)

    def settle(self, now_ns: int, replica: SimulatedReplica) -> None:
        event = self.states.own_event(replica)
        if event is None:
            return
        if replica.flipped_ns < 0 and replica.state in CHANGES_ROLE:
            replica.flipped_ns = now_ns + self._flip_ns
            self.kernel.schedule(replica.flipped_ns, EventClass.TIMER, replica.number, replica.stay)
        elif now_ns >= replica.flipped_ns:
            self.states.happen(now_ns, replica, event)

    def _timer(self, now_ns: int, number: int, stay: int) -> None:
        replica = self.replicas[number]
        if stay != replica.stay:
            return
        if replica.state is not ReplicaState.SHUTTING_NULL:
            self.settle(now_ns, replica)
        elif replica.feeding:
            self.kernel.schedule(now_ns + max(self._park_ns, 1), EventClass.TIMER, number, stay)
        else:
            self.states.happen(now_ns, replica, ReplicaEvent.UNLOAD)

    def _move_promised(self, now_ns: int, decode: SimulatedReplica) -> None:
        """Give the rooms that were to come to a decode another one, as it takes no KV cache any more."""
        rooms, decode.promised = list(decode.promised), {}
        decode.without_pages = decode.callers = None
        for room in rooms:
            self._write((now_ns, LoggedEvent.MOVED, room, decode.number))
            if self.requests.reserved[room]:
                self.requests.reserved[room] = 0
                self._free_room(decode, room)
            else:
                decode.demand -= self.requests.blocks[room]
            self._give_decode(now_ns, room)

    def _keep_rooms(self, now_ns: int, replica: SimulatedReplica) -> None:
        """Shared queue: a prefill that has become a decode decodes the rooms whose KV cache has not begun to leave."""
        outbox = replica.outbox
        while outbox:
            room = outbox.popleft()
            replica.unfinished -= 1
            self._free_prompt(replica, room)
            self.requests.decode[room] = replica.number
            replica.demand += self.requests.blocks[room]
            self._charge(replica, room)
            replica.inbox.append((now_ns, room))
        self._senders.pop(replica.number, None)
