"""What is simulated: the fleet at its start, and how it is run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from pdctl.errors import UsageError
from pdctl.layout import role_settings
from pdctl.layout.kv_pages import RESERVED_DECODE_TOKENS
from pdctl.policy import ScalingPolicyName
from pdctl.simulation.weight_loads import LoadPlan

if TYPE_CHECKING:
    from pdctl.layout.cost_profile import CostProfile
    from pdctl.policy.constraints import Limits
    from pdctl.topology.model import Topology

MOST_REPLICAS = 10**5  # each takes about 1 kB, in every run that goes on at a time


class RequestRouting(str, Enum):
    """Who decides which prefill computes a prompt, and when its decode is chosen."""

    LEAST_TOKENS = "least-tokens"  # a router takes both at arrival, each the least loaded; the decode sets memory aside
    ROUND_ROBIN = "round-robin"  # a router takes both at arrival, one after the other
    SHARED_QUEUE = "shared-queue"  # one queue for all prefills; the decode is chosen when the KV cache is to leave


class FirstTokenFrom(str, Enum):
    """Who gives the client the first token."""

    DECODE = "decode"  # SGLang: once the KV cache is there, at the start of the step that the room joins
    PREFILL = "prefill"  # BlitzScale: at the end of the pass


@dataclass(frozen=True, slots=True)
class FleetShape:
    """`replicas`: in all, those that are not serving at the start are inactive.

    A profile's `gpus` are those that a replica of the role has here. `reserved_decode_tokens`: tokens that a decode
    keeps free ahead of each room, SGLang's --num-reserved-decode-tokens.
    """

    prefills: int
    decodes: int
    replicas: int
    prefill: CostProfile
    decode: CostProfile
    gpus_per_machine: int = 8
    first_token: FirstTokenFrom = FirstTokenFrom.DECODE
    reserved_decode_tokens: int = RESERVED_DECODE_TOKENS

    def __post_init__(self) -> None:
        if self.prefills < 1 or self.decodes < 1:
            raise UsageError(
                f"a fleet of {self.prefills} prefills and {self.decodes} decodes serves nobody",
                "give at least one of each",
            )
        if not self.prefills + self.decodes <= self.replicas <= MOST_REPLICAS:
            raise UsageError(
                f"{self.replicas:,} replicas in all, with {self.prefills:,} prefills and {self.decodes:,} decodes",
                f"give from {self.prefills + self.decodes:,} to {MOST_REPLICAS:,}",
            )

    @property
    def replicas_per_machine(self) -> int:
        return max(1, self.gpus_per_machine // self.prefill.gpus)

    @staticmethod
    def from_topology(
        topology: Topology, prefill: CostProfile, decode: CostProfile | None = None, replicas: int | None = None
    ) -> FleetShape:
        """The instances of each role and their GPUs, as `pdctl plan` counts them; further `replicas` are inactive."""
        prefills, decodes = topology.prefill.instances, topology.decode.instances
        machine = max(1, topology.pool(topology.prefill.pool).gpus_per_host)
        total = prefills + decodes if replicas is None else replicas
        gpus = instance_gpus(topology)
        costs = replace(prefill, gpus=gpus["prefill"]), replace(decode or prefill, gpus=gpus["decode"])
        said = role_settings.read(topology, topology.decode).args.get("num-reserved-decode-tokens")
        reserved = said if isinstance(said, int) and said > 0 else RESERVED_DECODE_TOKENS
        return FleetShape(prefills, decodes, total, *costs, machine, reserved_decode_tokens=reserved)


def instance_gpus(topology: Topology) -> dict[str, int]:
    """GPUs of one instance, by the name of its role."""
    return {role.name: role_settings.read(topology, role).shape.gpus for role in (topology.prefill, topology.decode)}


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """`interval_s` between decisions: None for the policy's own. `one_sender`: a decode takes one transfer at a time.

    `longest_s`: simulated time after which the run ends; None: an hour after the last arrival.
    `sample_s`: None for a thousandth of the trace. Without `flips` a replica that changes its role is drained
    and parked first.
    """

    policy: ScalingPolicyName = ScalingPolicyName.STATIC
    policy_settings: Any = None  # a record of the policy's; None for its defaults
    limits: Limits | None = None
    interval_s: float | None = None
    loading: LoadPlan = LoadPlan.PEER
    routing: RequestRouting = RequestRouting.LEAST_TOKENS
    one_sender: bool = False
    gate: bool = False
    flips: bool = True
    park_s: float = 0.333
    seed: int = 0
    longest_s: float | None = None
    sample_s: float | None = None
