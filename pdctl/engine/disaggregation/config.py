"""What a KV manager needs to know about its rank. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from pdctl.engine.args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.disaggregation.bootstrap_wire import FOLLOW_ROOM


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggConfig:
    """`tp_*` are attention-TP coordinates. `bootstrap_*` is a prefill's own server; a decode learns it per request."""

    role: str  # prefill | decode
    rank_ip: str  # where peers reach this rank's sockets
    page_size: int  # tokens
    kv_dtype: str  # of the pool, resolved; both sides must agree on the spelling
    backend: str = "shm"  # nixl | shm | fake
    bootstrap_host: str = ""
    bootstrap_port: int = 0
    http_port: int = 0
    tp_rank: int = 0
    tp_size: int = 1
    dp_rank: int = 0
    dp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    load_balance_method: str = FOLLOW_ROOM
    bootstrap_timeout: float = 300.0
    waiting_timeout: float = 300.0
    heartbeat_interval: float = 5.0
    heartbeat_max_failure: int = 2
    registration_delay: float = 1.0  # before the second attempt, then doubled (sglang 0.5.23)
    topology_timeout: float = 15.0  # sglang 0.5.23: 15 attempts, one a second
    connect_timeout: float = 5.0  # a rank's answer to a registration
    orphan_ttl: float = 30.0  # how long a prefill keeps a page list nobody has asked for
    settle_grace: float = 30.0  # sglang 0.5.23 DEFERRED_DECODE_KV_RELEASE_TIMEOUT
    tell_unclaimed: bool = True  # whether the decode hears of it when its page list is dropped (SGLang's never does)

    @property
    def follows_room(self) -> bool:
        """Prefill dp rank = room % dp_size, on both sides; `auto` means that on a prefill (sglang 0.5.23)."""
        return self.load_balance_method in (FOLLOW_ROOM, "auto")

    def is_fake(self, bootstrap_host: str) -> bool:
        """Warm-up and health requests name FAKE_BOOTSTRAP_HOST: neither side moves a byte for them."""
        return self.backend == "fake" or bootstrap_host == FAKE_BOOTSTRAP_HOST
