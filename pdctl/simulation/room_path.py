"""The way of each request through the replicas of a simulated fleet, from its arrival to its last token.

A router gives a request a prefill and a decode at its arrival, and the decode sets memory aside before the prompt is
computed (SGLang); or all prefills share one queue, and KV cache looks for a decode when it is to leave (BlitzScale).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pdctl.layout.cost_profile import PrefillCosts
from pdctl.replica.states import ReplicaState
from pdctl.simulation.kernel import SECOND, DueEvent, Kernel, LoggedEvent
from pdctl.simulation.network import Network
from pdctl.simulation.replica_choice import NOBODY
from pdctl.simulation.simulated_decodes import SimulatedDecodes
from pdctl.simulation.weight_loads import FleetLinks, WeightLoads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.simulation.fleet_shape import FleetShape, SimulationSettings
    from pdctl.simulation.network import FlowChange
    from pdctl.simulation.replica_choice import ReplicaChoice
    from pdctl.simulation.replicas import SimulatedReplica
    from pdctl.simulation.request_trace import RequestTrace


class RoomPath(SimulatedDecodes):
    def __init__(self, shape: FleetShape, trace: RequestTrace, settings: SimulationSettings, kernel: Kernel) -> None:
        super().__init__(shape, trace, settings, kernel)
        self.network = Network()
        machines = [number // shape.replicas_per_machine for number in range(shape.replicas)]
        self.links = FleetLinks(self.network, shape.prefill, machines)
        self.loads = WeightLoads(self.links, settings.loading)
        self.waiting_tokens = self.waiting_requests = 0  # of prompts that no prefill has begun
        self.requests_seen = self.prompt_tokens_seen = self.output_tokens_seen = 0
        self.computed_tokens = self.prefill_busy_ns = 0
        self.kv_bytes = 0
        self._queue: deque[int] = deque()  # shared by all prefills
        self._unrouted: deque[int] = deque()  # by the router, which finds no prefill that takes requests
        self._idle: dict[int, None] = {}  # prefills that wait for the shared queue
        self._prefills: ReplicaChoice = self._placement(shape.replicas)
        self._senders: dict[int, None] = {}  # prefills whose KV cache finds no decode, in order
        self._flows: dict[int, int] = {}  # the room of each flow of KV cache
        most, own = shape.decode.kv_blocks, shape.prefill.kv_blocks
        # Blocks that a prompt takes where it is computed: with its answer, as the prefill may have to decode it itself.
        self._charged = self.requests.blocks if self._shared else self.requests.prompt_blocks
        sizes = zip(self.requests.blocks, self._charged, strict=True)
        self._too_large = {room for room, (blocks, charged) in enumerate(sizes) if blocks > most or charged > own}
        self._halves: dict[int, tuple[int, int]] = {}  # room → the prefill that has its first layers, and how many
        self._starting: SimulatedReplica | None = None
        self._kv_token_bytes = shape.prefill.kv_bytes_per_token
        self._before_ns = round(shape.prefill.request_s * SECOND)
        self._flip_ns = round(shape.prefill.flip_s * SECOND)
        self._park_ns = round(settings.park_s * SECOND)
        self._prefill_costs = PrefillCosts.of(shape.prefill)
        self._prefix_tokens, self._page_tokens = trace.prefix_block_tokens, shape.prefill.block_tokens
        self._nvlink = shape.prefill.nvlink_bytes_per_s > 0
        handlers = kernel.handlers
        handlers[DueEvent.ARRIVAL] = self._request_arrives
        handlers[DueEvent.ROOMS_ASK] = self._rooms_ask
        handlers[DueEvent.PASS_ENDS] = self._pass_ends
        handlers[DueEvent.FLOW_ENDS] = self._flow_ends

    def sends_weights(self, number: int) -> bool:
        return self.loads.is_sending(number)

    def begin(self) -> None:
        if self.requests.arrival:
            self.kernel.schedule(self.requests.arrival[0] + self._before_ns, DueEvent.ARRIVAL, 0)

    @property
    def finished(self) -> bool:
        return self.requests.ended == len(self.requests.arrival)

    # A request arrives.

    def _request_arrives(self, now_ns: int, room: int, _token: int) -> None:
        requests = self.requests
        arrival, count = requests.arrival, len(requests.arrival)
        moment = arrival[room]
        while room < count and arrival[room] == moment:
            self._write((now_ns, LoggedEvent.ARRIVED, room, NOBODY))
            self.requests_seen += 1
            self.prompt_tokens_seen += requests.prompt[room]
            self.output_tokens_seen += requests.output[room]
            self._route(now_ns, room)
            room += 1
        if room < count:
            self.kernel.schedule(arrival[room] + self._before_ns, DueEvent.ARRIVAL, room)

    def _route(self, now_ns: int, room: int) -> None:
        requests = self.requests
        if room in self._too_large:
            self._write((now_ns, LoggedEvent.TOO_LARGE, room, NOBODY))
            requests.too_large += 1
            self._end_request()
            return
        prompt = requests.prompt[room]
        self.waiting_tokens += prompt
        self.waiting_requests += 1
        if self._shared:
            self._queue.append(room)
            if self._idle:  # one that has its weights, if there is one
                loaded = (one for one in self._idle if self.replicas[one].state is ReplicaState.PREFILL)
                number = next(loaded, next(iter(self._idle)))
                del self._idle[number]
                self._begin_pass(now_ns, self.replicas[number])
            return
        self._give_prefill(now_ns, room)

    def _give_prefill(self, now_ns: int, room: int) -> None:
        number = self._prefills.choose()
        if number == NOBODY:  # while the only ones are a new one that is about to serve and its old one
            self._unrouted.append(room)
            return
        prefill, requests = self.replicas[number], self.requests
        prompt = requests.prompt[room]
        prefill.given += 1
        prefill.queued_tokens += prompt
        prefill.waiting_tokens += prompt
        self._prefills.put(prefill.number, prefill.queued_tokens)
        requests.source[room] = prefill.number
        self._give_decode(now_ns, room)

    def _give_decode(self, now_ns: int, room: int) -> None:
        """Choose the room's decode; memory for it is set aside there when the step under way has ended, or later."""
        number = self.decodes.choose()
        decode = self.replicas[number]
        requests = self.requests
        requests.decode[room] = number
        decode.promised[room] = None
        decode.demand += requests.blocks[room]
        self.decodes.put(number, decode.demand)
        running = decode.running
        if running is None or not running.leaving:
            self._ask(now_ns, decode, room)
            return
        if not decode.asking:
            self.kernel.schedule(running.end_of(running.steps_by(now_ns)), DueEvent.ROOMS_ASK, number)
        decode.asking.append(room)

    def _rooms_ask(self, now_ns: int, number: int, _token: int) -> None:
        decode = self.replicas[number]
        rooms, decode.asking = decode.asking, []
        for room in rooms:
            self._ask(now_ns, decode, room)

    def _ask(self, now_ns: int, decode: SimulatedReplica, room: int) -> None:
        """Ask a decode for memory, between two of its steps."""
        if decode.without_pages or not self._fits(now_ns, decode, room):
            if decode.without_pages is None:
                decode.without_pages = deque()
            decode.without_pages.append(room)
        else:
            self._reserve(now_ns, decode, room)

    def _reserve(self, now_ns: int, decode: SimulatedReplica, room: int) -> None:
        """Set memory aside for a room that was routed; then its prompt may be computed, or what is computed sent."""
        requests = self.requests
        self._charge(now_ns, decode, room)
        requests.reserved[room] = 1
        self._write((now_ns, LoggedEvent.PAGES_RESERVED, room, decode.number))
        if requests.routed[room]:
            if requests.computed[room]:
                self._send(now_ns, room)
            return
        requests.routed[room] = 1
        prefill = self.replicas[requests.source[room]]
        passes = prefill.passes
        assert passes is not None
        queue = passes.queue
        if not queue or queue[-1] < room:
            queue.append(room)
        else:
            insert_in_order(queue, room)
        if not passes.parts:
            self._begin_pass(now_ns, prefill)

    # A prefill computes.

    def _begin_pass(self, now_ns: int, prefill: SimulatedReplica) -> None:
        passes = prefill.passes
        assert passes is not None
        self._starting = prefill
        takes_new = not self._shared or prefill.takes_requests
        spent = passes.begin(self.requests.prompt, self._start_prompt, takes_new)
        if passes.parts:
            self.kernel.schedule(now_ns + spent, DueEvent.PASS_ENDS, prefill.number)
        elif self._shared and takes_new and not passes.queue:  # else it waits for memory
            self._idle[prefill.number] = None

    def _start_prompt(self, room: int) -> int:
        """Charge the memory of a prompt that begins; return the tokens that are cached, -1 if there is no memory."""
        prefill, requests = self._starting, self.requests
        assert prefill is not None
        blocks = self._charged[room]
        if prefill.used + blocks > prefill.capacity:
            return -1
        self._charge_prompt(prefill, room)
        self.waiting_tokens -= requests.prompt[room]
        self.waiting_requests -= 1
        if self._shared:
            requests.source[room] = prefill.number
            prefill.given += 1
        else:
            prefill.waiting_tokens -= requests.prompt[room]
        self._write((self.kernel.now_ns, LoggedEvent.PROMPT_BEGAN, room, prefill.number))
        if prefill.cache is None:
            return 0
        found = prefill.cache.find(requests.prefix_blocks[room]) * self._prefix_tokens
        return min(found, requests.prompt[room] - 1)

    def _pass_ends(self, now_ns: int, number: int, _token: int) -> None:
        prefill, requests = self.replicas[number], self.requests
        passes = prefill.passes
        assert passes is not None
        parts, passes.parts = passes.parts, []
        self.computed_tokens += passes.tokens
        self.prefill_busy_ns += passes.spent_ns
        for room, computed, tokens, last in parts:
            requests.computed[room] = computed + tokens
            if last:
                self._prompt_computed(now_ns, prefill, room)
            elif requests.reserved[room]:
                self._send(now_ns, room)
        if prefill.takes_requests and not self._shared:
            self._prefills.put(number, prefill.queued_tokens)
        self._write((now_ns, LoggedEvent.PASS_ENDED, len(parts), number))
        if passes.waiting or self._shared or prefill.settles:
            self._begin_pass(now_ns, prefill)
        if prefill.settles:
            self.settle(now_ns, prefill)

    def _prompt_computed(self, now_ns: int, prefill: SimulatedReplica, room: int) -> None:
        requests = self.requests
        self._write((now_ns, LoggedEvent.PROMPT_COMPUTED, room, prefill.number))
        prefill.given -= 1
        if prefill.cache is not None:
            pages = prefill.capacity - prefill.used
            prefill.cache.keep(requests.prefix_blocks[room], pages * self._page_tokens // self._prefix_tokens)
        if self._from_prefill:
            requests.first_token[room] = now_ns
        if not self._shared:
            prefill.queued_tokens -= requests.prompt[room]
            prefill.unfinished += 1
            if requests.reserved[room]:
                self._send(now_ns, room)
        elif self._from_prefill and requests.output[room] == 1:
            self._free_prompt(prefill, room)
            self._end_room(now_ns, room, prefill.number)
        else:
            prefill.unfinished += 1
            if prefill.outbox is None:
                prefill.outbox = deque()
            prefill.outbox.append(room)
            self._migrate(now_ns, prefill)

    def _charge_prompt(self, prefill: SimulatedReplica, room: int) -> None:
        blocks = self._charged[room]
        prefill.used += blocks
        prefill.prefill_blocks += blocks
        self.used_blocks += blocks
        self.prefill_blocks += blocks

    def _free_prompt(self, prefill: SimulatedReplica, room: int) -> None:
        blocks = self._charged[room]
        prefill.used -= blocks
        prefill.prefill_blocks -= blocks
        self.used_blocks -= blocks
        self.prefill_blocks -= blocks

    # KV cache moves.

    def _migrate(self, now_ns: int, source: SimulatedReplica) -> None:
        """Shared queue: find decodes for what waits on a prefill, in order."""
        outbox, requests = source.outbox, self.requests
        while outbox and not (self._one_sender and source.sending):
            number = self.decodes.choose()
            decode = self.replicas[number] if number != NOBODY else None
            self.states.decode_scarce = True
            if decode is None or not self._fits(now_ns, decode, outbox[0]):
                self._senders[source.number] = None
                return
            self.states.decode_scarce = False
            room = outbox.popleft()
            requests.decode[room] = number
            decode.demand += requests.blocks[room]
            self._charge(now_ns, decode, room)
            self._offer(decode)
            self._send(now_ns, room)

    def _send(self, now_ns: int, room: int) -> None:
        """Begin the transfer of what is computed of a room and not sent yet. Its decode has its memory."""
        requests = self.requests
        source, decode = self.replicas[requests.source[room]], self.replicas[requests.decode[room]]
        tokens = requests.computed[room] - requests.sent[room]
        if not requests.sent[room]:
            if self._one_sender and decode.senders:
                if decode.callers is None:
                    decode.callers = deque()
                if not requests.calls[room]:  # it may, since its first chunk was computed
                    requests.calls[room] = 1
                    decode.callers.append(room)
                return
            decode.promised.pop(room, None)
            source.sending += 1
            decode.senders += 1
            if self._shared:
                self._offer(decode)
            self._write((now_ns, LoggedEvent.TRANSFER_BEGAN, room, decode.number))
        requests.sent[room] += tokens
        size = tokens * self._kv_token_bytes
        if room in self._halves:
            number, layer = self._halves[room]
            first = size * layer // self.shape.prefill.layers
            size -= first
            self._flow(now_ns, room, self.replicas[number], decode, first)
        self._flow(now_ns, room, source, decode, size)

    def _flow(self, now_ns: int, room: int, source: SimulatedReplica, decode: SimulatedReplica, size: int) -> None:
        self.requests.transfers[room] += 1
        self.kv_bytes += size if source is not decode else 0
        # Also where a prefill has become the decode itself: then nothing moves.
        here, there = source.number, decode.number
        links = self.links.between(here, there) if self._nvlink else (self.links.out_of[here], self.links.into[there])
        flow, changes = self.network.begin(now_ns, size if source is not decode else 0, links)
        self._flows[flow] = room
        self.schedule_flows(changes)

    def schedule_flows(self, changes: Iterable[FlowChange]) -> None:
        schedule = self.kernel.schedule
        for finish_ns, flow, version in changes:
            schedule(finish_ns, DueEvent.FLOW_ENDS, flow, version)

    def _flow_ends(self, now_ns: int, flow: int, version: int) -> None:
        if not self.network.is_current(flow, version):
            return
        room = self._flows.pop(flow, None)
        if room is None:
            self.layer_arrived(now_ns, flow)
            return
        self.schedule_flows(self.network.end(now_ns, flow))
        requests = self.requests
        requests.transfers[room] -= 1
        if not requests.transfers[room] and requests.sent[room] == requests.prompt[room]:
            self._kv_cache_arrived(now_ns, room)

    def _kv_cache_arrived(self, now_ns: int, room: int) -> None:
        requests = self.requests
        source, decode = self.replicas[requests.source[room]], self.replicas[requests.decode[room]]
        self._write((now_ns, LoggedEvent.TRANSFER_ENDED, room, decode.number))
        source.sending -= 1
        source.unfinished -= 1
        self._free_prompt(source, room)
        if self._halves:
            self._free_half(now_ns, room)
        decode.senders -= 1
        if decode.lock_pending:
            self.states.end_transfer(decode)
        decode.inbox.append((now_ns + self._handover_ns, room))
        self._poke(now_ns, decode)
        passes = source.passes
        if passes is not None and passes.queue and not passes.parts:  # there is memory for one more
            self._begin_pass(now_ns, source)
        if source.settles:
            self.settle(now_ns, source)
        if source.retracted:
            self.wake_retracted(now_ns, source)
        if self._shared:
            self._offer(decode)
            self._migrate(now_ns, source)
            self._wake_senders(now_ns)
        elif decode.callers and not decode.senders:
            room = decode.callers.popleft()
            requests.calls[room] = 0
            self._send(now_ns, room)

    def _free_half(self, now_ns: int, room: int) -> None:
        """The first layers of the room's KV cache have left the prefill that handed it over."""
        number, _layer = self._halves.pop(room, (NOBODY, 0))
        if number != NOBODY:
            prefill = self.replicas[number]
            prefill.unfinished -= 1
            self._free_prompt(prefill, room)
            if prefill.settles:
                self.settle(now_ns, prefill)

    def _wake_senders(self, now_ns: int) -> None:
        """Shared queue: a decode has a free lock, memory or a slot; those that wait for one go in order."""
        for number in list(self._senders):
            del self._senders[number]
            self._migrate(now_ns, self.replicas[number])
            if number in self._senders:
                return

    # What the fleet adds.

    def layer_arrived(self, now_ns: int, flow: int) -> None:
        """A flow of weights has ended."""
        raise NotImplementedError


def insert_in_order(queue: deque[int], room: int) -> None:
    """However long it has waited for memory, no later room overtakes it."""
    later = []
    while queue and queue[-1] > room:
        later.append(queue.pop())
    queue.append(room)
    queue.extend(reversed(later))
