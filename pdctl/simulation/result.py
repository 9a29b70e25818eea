"""What one simulated run gives: a record of each request and each change of a replica, and integrals over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from pdctl.policy.decision import Decision
    from pdctl.replica.states import ReplicaState
    from pdctl.replica.transitions import ReplicaEvent


class RequestColumns(NamedTuple):
    """Each request by its number in the trace: arrays of int64, times in ns of simulated time.

    `first_token_ns` and `end_ns` are -1 for a request that had not come that far at the end of the run. `tbt_ns` is the
    99th percentile of the gaps between its tokens, 0 if it has one token only.
    """

    arrival_ns: array[int]
    first_token_ns: array[int]
    end_ns: array[int]
    tbt_ns: array[int]
    prompt_tokens: array[int]
    output_tokens: array[int]


class StateChange(NamedTuple):
    """One transition of one replica."""

    time_ns: int
    replica: int
    event: ReplicaEvent
    source: ReplicaState
    target: ReplicaState


class FleetSample(NamedTuple):
    """The fleet at one moment, for plots. `replicas`: how many are in each state that any is in."""

    time_ns: int
    replicas: Mapping[ReplicaState, int]
    waiting_requests: int
    kv_use: float  # used blocks / blocks, over the decodes; 0 without any


class GpuTime(NamedTuple):
    """GPU-seconds of replicas that are not inactive or failed, by what they were doing."""

    serving_s: float
    loading_s: float
    draining_s: float

    @property
    def total_s(self) -> float:
        return self.serving_s + self.loading_s + self.draining_s


class SimulationRun(NamedTuple):
    """One policy, one seed. `digest`: SHA-256 of the event log, in hex; `events`: how many it has.

    `cut_at_ns` is the simulated time at which the run was ended before all requests had ended; None if they had.
    """

    policy: str
    seed: int
    digest: str
    events: int
    end_ns: int
    requests: RequestColumns
    changes: Sequence[StateChange]
    decisions: Sequence[tuple[int, Decision]]  # with their time in ns, those that changed or refused something
    samples: Sequence[FleetSample]
    gpu_time: GpuTime
    kv_bytes: int
    parameter_bytes: int
    decode_imbalance: float  # mean over samples of most used blocks / mean over the decodes; 1 where none is used
    cut_at_ns: int | None = None
    too_large: int = 0  # requests that are too large for any replica
