"""What a KV manager needs to know about its rank. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.kv_link.bootstrap_rows import FOLLOW_ROOM
from pdctl.layout.kv_links import PoolSeat

if TYPE_CHECKING:
    from pdctl.deployment_secret import DeploymentSecret


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggConfig:
    """`bootstrap_*` is a prefill's own server; a decode learns it per request.

    `dp_*` counts replicas of the instance (SGLang's system DP), `attn_dp_*` the attention DP groups of one TP group;
    one of the two sizes is 1. `model`, `layers` and `kv_heads` are the whole model's; 0: as this rank's pool implies.
    """

    role: str  # prefill | decode
    rank_ip: str  # where peers reach this rank's sockets
    page_size: int  # tokens
    kv_dtype: str  # of the pool, resolved; both sides must agree on the spelling
    backend: str = "shm"  # nixl | shm | fake
    bootstrap_host: str = ""
    bootstrap_port: int = 0
    http_port: int = 0
    model: str = ""  # the same for all engines whose KV cache means the same
    layers: int = 0
    kv_heads: int = 0
    attn_tp_rank: int = 0
    attn_tp_size: int = 1
    attn_dp_rank: int = 0
    attn_dp_size: int = 1
    dp_rank: int = 0
    dp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    load_balance_method: str = FOLLOW_ROOM
    query_dp_rank: bool = False  # SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK: even where it follows the room
    bootstrap_timeout: float = 300.0
    waiting_timeout: float = 300.0
    heartbeat_interval: float = 5.0
    heartbeat_max_failure: int = 2
    registration_delay: float = 1.0  # before the second attempt, then doubled (sglang 0.5.23)
    topology_timeout: float = 15.0  # sglang 0.5.23: 15 attempts, one a second
    connect_timeout: float = 5.0  # a rank's answer to a registration
    unclaimed_ttl: float = 30.0  # how long a prefill keeps a page list nobody has asked for
    refusal_ttl: float = 60.0  # how long a prefill remembers that a decode gave a room up before its request came
    transfer_threads: int = 0  # decode ranks are shared out to so many; 0: by cores
    settle_grace: float = 30.0  # sglang 0.5.23 DEFERRED_DECODE_KV_RELEASE_TIMEOUT
    tell_unclaimed: bool = True  # whether the decode hears of it when its page list is dropped (SGLang's never does)
    tell_given_up: bool = True  # whether the prefill hears of a room given up before its page list (SGLang's: never)
    secret: DeploymentSecret | None = None  # without it peers need none, and any that reaches the port is served
    faults: str = ""  # of this rank's transport, beside those of PDCTL_FAULTS

    @property
    def write_grace(self) -> float:
        """How long a prefill lets a write of a failed room go on: half of what the decode waits before it reuses pages.

        The word of the failure takes its time to get here.
        """
        return self.settle_grace / 2

    @property
    def seat(self) -> PoolSeat:
        return PoolSeat(self.attn_tp_size, self.attn_tp_rank, self.pp_size, self.pp_rank)

    @property
    def dp_group(self) -> int:
        """Which of the instance's `dp_groups` this rank serves: what a request's prefill dp rank names."""
        return self.attn_dp_rank if self.dp_size == 1 else self.dp_rank

    @property
    def dp_groups(self) -> int:
        return self.attn_dp_size if self.dp_size == 1 else self.dp_size

    @property
    def follows_room(self) -> bool:
        """Prefill dp rank = room % dp_groups, on both sides; `auto` means that on a prefill (sglang 0.5.23)."""
        return self.load_balance_method in (FOLLOW_ROOM, "auto")

    def is_fake(self, bootstrap_host: str) -> bool:
        """Warm-up and health requests name FAKE_BOOTSTRAP_HOST: neither side moves a byte for them."""
        return self.backend == "fake" or bootstrap_host == FAKE_BOOTSTRAP_HOST
