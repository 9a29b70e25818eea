"""New prefills that compute while their weights arrive, and the old ones that finish what they park (zigzag.py).

The batch of a new prefill is whole prompts. Both halves of the KV cache of a batch that was handed over leave when its
prompts are computed, each from where it is, to one decode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.replica.states import ReplicaState
from pdctl.replica.transitions import ReplicaEvent
from pdctl.simulation.kernel import DueEvent, Kernel
from pdctl.simulation.room_path import RoomPath
from pdctl.simulation.zigzag import LivePrefill

if TYPE_CHECKING:
    from pdctl.replica.transitions import Transition
    from pdctl.simulation.fleet_shape import FleetShape, SimulationSettings
    from pdctl.simulation.prefill import PromptBatch
    from pdctl.simulation.replicas import SimulatedReplica
    from pdctl.simulation.request_trace import RequestTrace


class LiveLoading(RoomPath):
    def __init__(self, shape: FleetShape, trace: RequestTrace, settings: SimulationSettings, kernel: Kernel) -> None:
        super().__init__(shape, trace, settings, kernel)
        kernel.handlers[DueEvent.LAYER_ENDS] = self._layer_ends
        self._live: dict[int, LivePrefill[PromptBatch]] = {}  # new prefills, the longest loading first
        self._waiting_olds: dict[int, None] = {}  # old prefills that found nothing to take over

    def pair(self, now_ns: int, replica: SimulatedReplica, row: Transition) -> None:
        """Keep the books of live loads and their old prefills (`GuardFacts.credit`), after a transition."""
        states = self.states
        if row.event is ReplicaEvent.LOAD_LIVE:
            states.unpaired_loads += 1
            self._live[replica.number] = LivePrefill(self.shape.prefill.layers, now_ns)
        elif row.event is ReplicaEvent.PAIR_AS_OLD:
            states.unpaired_loads -= 1
            if replica.passes is not None and not replica.passes.parts:
                self._begin_pass(now_ns, replica)
        elif row.event is ReplicaEvent.RELAY_ENDED and row.source is ReplicaState.OLD_PREFILL:
            states.credit -= 1
            self._waiting_olds.pop(replica.number, None)
        elif row.event is ReplicaEvent.RELAY_ENDED:
            states.credit += 1
            del self._live[replica.number]
            self._wake_olds(now_ns)

    def layers_came(self, now_ns: int, number: int, layers: int) -> None:
        live = self._live.get(number)
        if live is not None:
            live.layers_arrived(layers)

    def advance_live(self, now_ns: int, number: int) -> None:
        """Let a new prefill go on after anything has changed for it."""
        live, replica = self._live.get(number), self.replicas[number]
        if live is None:
            return
        end_ns = live.begin_layer(now_ns)
        if end_ns is not None:
            self.kernel.schedule(end_ns, DueEvent.LAYER_ENDS, number)
        replica.parked_batches = len(live.batches)
        busy = now_ns < live.busy_until_ns  # with a layer, of a batch that was handed over perhaps
        if live.loaded and not replica.parked_batches and not busy:
            replica.relay_empty = True
            self.settle(now_ns, replica)
        else:
            self._wake_olds(now_ns)

    def _layer_ends(self, now_ns: int, number: int, _token: int) -> None:
        live, replica = self._live.get(number), self.replicas[number]
        if live is None:  # the layer of a batch that was handed over ended at the moment at which all was over
            return
        done = live.end_layer(now_ns)
        if done is not None:
            self.computed_tokens += done.tokens
            self.prefill_busy_ns += done.spent_ns
            for room in done.rooms:
                self.requests.computed[room] = self.requests.prompt[room]
                self._prompt_computed(now_ns, replica, room)
        self._begin_pass(now_ns, replica)

    def _begin_pass(self, now_ns: int, prefill: SimulatedReplica) -> None:
        live = self._live.get(prefill.number)
        if live is None:
            super()._begin_pass(now_ns, prefill)
            passes = prefill.passes
            if prefill.state is ReplicaState.OLD_PREFILL and passes is not None and not passes.parts:
                self._relay(now_ns, prefill)
            return
        passes = prefill.passes
        assert passes is not None
        self._starting = prefill
        while prefill.takes_requests and live.room(now_ns):
            batch = passes.take_whole(self.requests.prompt, self._start_prompt)
            if not batch.rooms:
                break
            live.admit(batch, batch.spent_ns)
        if self._shared and not passes.queue and prefill.takes_requests:
            self._idle[prefill.number] = None
        self.advance_live(now_ns, prefill.number)

    def _relay(self, now_ns: int, old: SimulatedReplica) -> None:
        """Take over what the new prefill that loads longest has parked; without any, wait for it or be let go."""
        for number, live in self._live.items():
            most = max((self._blocks_of(one.batch.rooms) for one in live.batches), default=0)
            handed = live.relay(now_ns) if old.used + most <= old.capacity else None
            if handed is None:
                continue
            new, passes = self.replicas[number], old.passes
            assert passes is not None
            passes.tokens, passes.spent_ns = (
                handed.batch.tokens,
                handed.batch.spent_ns,
            )  # of all layers
            for room in handed.batch.rooms:
                self._hand_over(new, old, room, handed.layer)
                passes.parts.append((room, 0, self.requests.prompt[room], True))
            self.kernel.schedule(handed.at_ns + handed.left_ns, DueEvent.PASS_ENDS, old.number)
            old.relay_empty = False
            self._begin_pass(now_ns, new)
            return
        old.relay_empty = True
        self._waiting_olds[old.number] = None
        self.settle(now_ns, old)

    def _wake_olds(self, now_ns: int) -> None:
        for number in list(self._waiting_olds):
            if self._waiting_olds.pop(number, self) is None:
                self._relay(now_ns, self.replicas[number])

    def _blocks_of(self, rooms: list[int]) -> int:
        return sum(self._charged[room] for room in rooms)

    def _hand_over(self, new: SimulatedReplica, old: SimulatedReplica, room: int, layer: int) -> None:
        new.given -= 1
        old.given += 1
        if not self._shared:
            new.queued_tokens -= self.requests.prompt[room]
            old.queued_tokens += self.requests.prompt[room]
        self.requests.source[room] = old.number
        self._charge_prompt(old, room)
        if layer:
            self._halves[room] = (new.number, layer)
            new.unfinished += 1
        else:
            self._free_prompt(new, room)
