"""Simulate a fleet under a trace: one policy, one seed, one result."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pdctl.replica.states import ReplicaState
from pdctl.simulation.fleet import SimulatedFleet
from pdctl.simulation.kernel import SECOND, DueEvent, Kernel
from pdctl.simulation.result import FleetSample, RequestColumns, SimulationRun
from pdctl.simulation.scaling import ScalingLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.simulation.fleet_shape import FleetShape, SimulationSettings
    from pdctl.simulation.request_trace import RequestTrace

AFTER_LAST_S = 3600.0  # simulated, from the last arrival, after which what is not ended never will be
SAMPLES = 1000  # over the time in which requests arrive
SHORTEST_NS = 10**6  # between two samples
FEW_REPLICAS = 2000  # of more, not every sample compares all
MOST_SAMPLES = 4096  # kept; then every second one goes, and the next ones are twice as far apart
WITH_ROOMS = (ReplicaState.DECODE, ReplicaState.SHUTTING_DECODE, ReplicaState.MUTATING_TO_PREFILL)


def simulate(
    fleet: FleetShape,
    trace: RequestTrace,
    settings: SimulationSettings,
    progress: Callable[[int], bool | None] | None = None,
) -> SimulationRun:
    """The run ends when all requests have ended, at the longest time, or when `progress` answers True.

    `progress` is told the simulated time every few thousand events.
    """
    last_ns = trace.requests[-1].arrival_ns if trace.requests else 0
    longest_s = settings.longest_s
    until_ns = last_ns + round(AFTER_LAST_S * SECOND) if longest_s is None else round(longest_s * SECOND)
    kernel = Kernel()
    with _no_cycles():
        simulated = SimulatedFleet(fleet, trace, settings, kernel)
        scaling = ScalingLoop(simulated, settings)
        sampler = FleetSampler(simulated, settings, last_ns)
        simulated.begin()
        completed = kernel.run(until_ns, progress)
    end_ns = kernel.now_ns if simulated.finished or not completed else until_ns
    requests = simulated.requests
    return SimulationRun(
        policy=settings.policy.value,
        seed=settings.seed,
        digest=kernel.log.digest(),
        events=kernel.log.records,
        end_ns=end_ns,
        requests=RequestColumns(
            *(requests.arrival, requests.first_token, requests.end, requests.tbt, requests.prompt, requests.output)
        ),
        changes=simulated.states.changes,
        decisions=scaling.decisions,
        samples=sampler.samples,
        gpu_time=simulated.states.gpu_time(end_ns),
        kv_bytes=simulated.kv_bytes,
        parameter_bytes=simulated.loads.bytes_moved,
        decode_imbalance=sampler.imbalance,
        cut_at_ns=None if simulated.finished else end_ns,
        too_large=requests.too_large,
    )


@contextmanager
def _no_cycles() -> Iterator[None]:
    """A run makes millions of values and no circles of them: to look for circles again and again costs half as much."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class FleetSampler:
    """Looks at the fleet now and then, at even intervals: for plots, and for how evenly decodes are filled."""

    def __init__(self, fleet: SimulatedFleet, settings: SimulationSettings, last_ns: int) -> None:
        every_s = settings.sample_s
        self._every_ns = max(SHORTEST_NS, last_ns // SAMPLES if every_s is None else round(every_s * SECOND))
        self._fleet = fleet
        self.samples: list[FleetSample] = []
        self._imbalance = 0.0
        self._taken = self._compared = 0
        self._stride = 1 + len(fleet.replicas) // FEW_REPLICAS
        fleet.kernel.handlers[DueEvent.SAMPLE] = self._sample
        fleet.kernel.schedule(0, DueEvent.SAMPLE, 0)

    @property
    def imbalance(self) -> float:
        """The mean over the samples."""
        return self._imbalance / self._compared if self._compared else 1.0

    def _sample(self, now_ns: int, _subject: int, _token: int) -> None:
        fleet = self._fleet
        counts = fleet.states.counts
        decodes = sum(counts[state] for state in WITH_ROOMS)
        used = fleet.used_blocks - fleet.prefill_blocks
        self.samples.append(
            FleetSample(
                now_ns,
                {state: count for state, count in counts.items() if count},
                fleet.waiting_requests,
                used / (decodes * fleet.shape.decode.kv_blocks) if decodes else 0.0,
            )
        )
        if self._taken % self._stride == 0:
            self._imbalance += max(fleet.decode_used) * decodes / used if used else 1.0
            self._compared += 1
        self._taken += 1
        if len(self.samples) >= MOST_SAMPLES:
            del self.samples[1::2]
            self._every_ns *= 2
        fleet.kernel.schedule(now_ns + self._every_ns, DueEvent.SAMPLE, 0)
