"""A simulated fleet: what changes with the states of its replicas, and what replicas do about them by themselves."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pdctl.layout.cost_profile import ATTO
from pdctl.replica.states import STATES, CountsAs, ReplicaState, Weights
from pdctl.replica.transitions import ReplicaEvent
from pdctl.simulation.kernel import SECOND, DueEvent, Kernel, LoggedEvent
from pdctl.simulation.live_loading import LiveLoading
from pdctl.simulation.prefill import PromptPasses
from pdctl.simulation.prefix_cache import PrefixCache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.policy.orders import ReplicaOrder
    from pdctl.replica.transitions import Transition
    from pdctl.simulation.fleet_shape import FleetShape, SimulationSettings
    from pdctl.simulation.replicas import SimulatedReplica
    from pdctl.simulation.request_trace import RequestTrace
    from pdctl.simulation.weight_loads import LoadProgress

# States in which a change of role takes its time, once nothing of the old role is left.
CHANGES_ROLE = (
    *(ReplicaState.MUTATING_TO_DECODE, ReplicaState.MUTATING_TO_PREFILL),
    *(ReplicaState.AUS_PREFILL, ReplicaState.AUS_DECODE),
)


class SimulatedFleet(LiveLoading):
    def __init__(self, shape: FleetShape, trace: RequestTrace, settings: SimulationSettings, kernel: Kernel) -> None:
        super().__init__(shape, trace, settings, kernel)
        kernel.handlers[DueEvent.TIMER] = self._timer
        kernel.handlers[DueEvent.LOAD_BEGINS] = self._begin_loads
        self.startup_s: float | None = None  # of the last replica that was loaded: from its order until it serves
        self._ordered_ns: dict[int, int] = {}  # when each replica that does not serve yet was told to load
        self._to_load: deque[int] = deque()  # replicas that are not loading yet, in the order in which they will begin
        self._start_ns = round(shape.prefill.start_s * SECOND)
        for replica in self.replicas[: shape.prefills + shape.decodes]:
            state = ReplicaState.PREFILL if replica.number < shape.prefills else ReplicaState.DECODE
            self.states.place(replica, state)
            self._serve(0, replica)

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second of full passes of short prompts: what is known before one was computed."""
        costs, tokens = self._prefill_costs, self._prefill_costs.batch_tokens
        return tokens * ATTO / (costs.step + costs.token * tokens or costs.square * tokens or 1)

    def machines_with_weights(self) -> set[int]:
        machines = self.links.machines
        return {machines[one.number] for one in self.replicas if STATES[one.state].weights is Weights.RESIDENT}

    def perform(self, now_ns: int, orders: Iterable[ReplicaOrder]) -> None:
        for number, event in orders:
            self.states.happen(now_ns, self.replicas[number], event)
        if self._to_load:
            self.kernel.schedule(now_ns + self._start_ns, DueEvent.LOAD_BEGINS, 0)

    def _begin_loads(self, now_ns: int, _subject: int, _token: int) -> None:
        """All that were ordered by then: those that compute meanwhile last, as the end of a chain sends nothing on."""
        ready_ns = now_ns - self._start_ns
        targets = []
        while self._to_load and self._ordered_ns[self._to_load[0]] <= ready_ns:
            targets.append(self.replicas[self._to_load.popleft()])
        if not targets:
            return
        targets.sort(key=lambda one: one.takes_requests)
        loaded = [one for one in self.replicas if STATES[one.state].weights is Weights.RESIDENT]
        # Prefills last: their links are busy with KV cache.
        loaded.sort(key=lambda one: STATES[one.state].counts_as is CountsAs.PREFILL)
        self._went_on(now_ns, self.loads.begin(now_ns, [one.number for one in targets], [one.number for one in loaded]))

    def layer_arrived(self, now_ns: int, flow: int) -> None:
        self._went_on(now_ns, self.loads.end_flow(now_ns, flow))

    def _went_on(self, now_ns: int, progress: LoadProgress) -> None:
        self.schedule_flows(progress.changes)
        for number, layers in progress.layers:
            replica = self.replicas[number]
            replica.layers = layers
            self._write((now_ns, LoggedEvent.WEIGHTS_ARRIVED, layers, number))
            self.layers_came(now_ns, number, layers)
            if layers == self.shape.prefill.layers:
                self.states.happen(now_ns, replica, ReplicaEvent.LOADED)
            self.advance_live(now_ns, number)

    def changed(self, replica: SimulatedReplica, row: Transition) -> None:
        now_ns, state = self.kernel.now_ns, row.target
        if not replica.takes_requests:
            self._prefills.drop(replica.number)
            self._idle.pop(replica.number, None)
        if not replica.takes_kv:
            self.decodes.drop(replica.number)
            self._move_promised(now_ns, replica)
        if row.event is ReplicaEvent.FLUSHED:
            self._keep_rooms(now_ns, replica)
        self.pair(now_ns, replica, row)
        if replica.takes_requests or replica.takes_kv:
            self._serve(now_ns, replica)
        elif state is ReplicaState.SHUTTING_NULL:
            self.kernel.schedule(now_ns + self._park_ns, DueEvent.TIMER, replica.number, replica.visit)
        elif state is ReplicaState.INACTIVE:
            replica.layers, replica.cache, replica.role = 0, None, CountsAs.NEITHER
            self.loads.keep_warm(now_ns, replica.number)
        if row.source is ReplicaState.INACTIVE:
            as_decode = STATES[state].counts_as is CountsAs.DECODE
            replica.gpus = (self.shape.decode if as_decode else self.shape.prefill).gpus
            self._ordered_ns[replica.number] = now_ns
            self._to_load.append(replica.number)
        elif state in CHANGES_ROLE and replica.role in (CountsAs.NEITHER, STATES[state].counts_as):
            replica.flipped_ns = now_ns  # its first role since it was loaded, or the one it had
        if STATES[state].serves and replica.number in self._ordered_ns:
            self.startup_s = (now_ns - self._ordered_ns.pop(replica.number)) / SECOND
        if replica.settles:
            self.settle(now_ns, replica)

    def _serve(self, now_ns: int, replica: SimulatedReplica) -> None:
        """Enter a role, or come back to it."""
        replica.role = STATES[replica.state].counts_as
        profile = self.shape.prefill if replica.takes_requests else self.shape.decode
        replica.gpus, replica.capacity = profile.gpus, profile.kv_blocks
        if replica.takes_kv:
            replica.cache = None  # a change of role drops it (SGLang 0.5.23)
            self.begin_decoding(replica)
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
            while self._unrouted:
                self._give_prefill(now_ns, self._unrouted.popleft())
        if not replica.passes.parts:
            self._begin_pass(now_ns, replica)

    def settle(self, now_ns: int, replica: SimulatedReplica) -> None:
        event = self.states.own_event(replica)
        if event is None:
            return
        if replica.flipped_ns < 0 and replica.state in CHANGES_ROLE:
            replica.flipped_ns = now_ns + self._flip_ns
            self.kernel.schedule(replica.flipped_ns, DueEvent.TIMER, replica.number, replica.visit)
        elif now_ns >= replica.flipped_ns:
            self.states.happen(now_ns, replica, event)

    def _timer(self, now_ns: int, number: int, visit: int) -> None:
        replica = self.replicas[number]
        if visit != replica.visit:
            return
        if replica.state is not ReplicaState.SHUTTING_NULL:
            self.settle(now_ns, replica)
        elif self.loads.is_sending(number):
            self.kernel.schedule(now_ns + max(self._park_ns, 1), DueEvent.TIMER, number, visit)
        else:
            self.states.happen(now_ns, replica, ReplicaEvent.UNLOAD)

    def _move_promised(self, now_ns: int, decode: SimulatedReplica) -> None:
        """Give the rooms that were to come to a decode another one, as it takes no KV cache any more."""
        rooms, decode.promised, decode.asking = list(decode.promised), {}, []
        decode.without_pages = decode.callers = None
        for room in rooms:
            self._write((now_ns, LoggedEvent.MOVED, room, decode.number))
            self.requests.calls[room] = 0
            if self.requests.reserved[room]:
                self.requests.reserved[room] = 0
                self._free_room(now_ns, decode, room)
            else:
                decode.demand -= self.requests.blocks[room]
            self._give_decode(now_ns, room)
        self.wake_retracted(now_ns, decode)

    def _keep_rooms(self, now_ns: int, replica: SimulatedReplica) -> None:
        """Shared queue: a prefill that has become a decode decodes the rooms whose KV cache has not begun to leave."""
        self.begin_decoding(replica)
        rooms = [room for room in replica.outbox or () if room not in self._halves]
        replica.outbox = deque(room for room in replica.outbox or () if room in self._halves)
        for room in rooms:
            replica.unfinished -= 1
            self._free_prompt(replica, room)
            self.requests.decode[room] = replica.number
            replica.demand += self.requests.blocks[room]
            self._charge(now_ns, replica, room)
            replica.inbox.append((now_ns, room))
