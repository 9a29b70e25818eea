"""An instance's arguments, one frozen value that its processes receive as JSON, and the places of its ranks."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from pdctl.engine.drill import rehearsed_mistakes
from pdctl.layout.kv_pages import RESERVED_DECODE_TOKENS
from pdctl.layout.shape import RankPlace, Shape, place
from pdctl.quick_definitions import NamedTuple

DEFAULT_BOOTSTRAP_PORT = 8998
FAKE_BOOTSTRAP_HOST = "2.2.2.2"  # sglang: both ends of a request with this host use the fake sender and receiver
Key = tuple[int, int, int]  # dp_rank (0 without data parallelism), pp_rank, tp_rank: names a rank in its messages


@dataclass(frozen=True, slots=True)
class ServerArgs:
    """Sizes are in tokens unless stated otherwise, times in seconds. Field names are sglang's /server_info keys."""

    model_path: str
    served_model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 30000
    disaggregation_mode: str = "null"  # null | prefill | decode
    disaggregation_bootstrap_port: int = DEFAULT_BOOTSTRAP_PORT
    disaggregation_transfer_backend: str = "auto"  # auto | nixl | shm | mooncake | mooncake_tcp | fake
    disaggregation_transfer_threads: int = 0  # threads that share a prefill's decode ranks; 0: by cores
    disaggregation_enable_kv_checksum: bool = False  # set on both sides; a decode checks every page before it uses it
    enable_pd_role_switch: bool = False  # POST /pd_role_switch may turn a prefill into a decode and back
    tp_size: int = 1
    dp_size: int = 1  # replicas (sglang 0.5.23)
    attn_dp_size: int = 1  # attention DP groups that share one TP group
    pp_size: int = 1
    ep_size: int = 1
    nnodes: int = 1
    node_rank: int = 0
    dist_init_addr: str | None = None
    dist_timeout: float = 600.0  # within which every rank of every node must have joined
    base_gpu_id: int = 0
    device: str = "auto"  # auto | cpu | cuda
    dtype: str = (
        "auto"  # auto | float32 | bfloat16; auto is float32 on a CPU (docs/performance.md), the checkpoint's on a GPU
    )
    page_size: int = 16
    kv_layout: str = "layer-major"  # layer-major | page-major | head-major
    max_total_tokens: int = 0  # 0: from the available memory
    max_running_requests: int = 64
    max_queued_requests: int = 1024
    chunked_prefill_size: int = 512
    num_reserved_decode_tokens: int = (
        RESERVED_DECODE_TOKENS  # must be free beyond its prompt for a request to be admitted
    )
    optimistic_prefill_attempts: int = 0  # times a prompt may start before its decode has answered (sglang 0.5.18+)
    disable_radix_cache: bool = False
    disaggregation_decode_enable_radix_cache: bool = False
    disaggregation_decode_retraction_backup: str = "cpu_tensor"
    disable_overlap_schedule: bool = False
    context_length: int = 0  # 0: from the checkpoint
    load_balance_method: str = "auto"
    random_seed: int = 1
    pace: str = ""  # cost profile whose times passes take (docs/simulate.md); empty: as fast as this machine
    num_threads: int = 0  # 0: cores divided by the processes that share them
    decode_log_interval: int = 40
    log_level: str = "info"
    bootstrap_timeout: float = 300.0
    waiting_timeout: float = 300.0
    heartbeat_interval: float = 5.0
    heartbeat_max_failure: int = 2
    shutdown_grace: float = 10.0
    enable_trace: bool = False
    otlp_traces_endpoint: str = "localhost:4317"
    rehearse: tuple[str, ...] = ()

    @property
    def rehearsal(self) -> rehearsed_mistakes.Rehearsal:
        """The mistakes named by `rehearse`; none by default."""
        return rehearsed_mistakes.read(self.rehearse)

    @property
    def shape(self) -> Shape:
        """The parallel shape as the layout uses it; the ranks are split evenly over the nodes."""
        ranks = self.tp_size * self.pp_size * self.dp_size
        return Shape(
            tp=self.tp_size,
            dp=self.attn_dp_size,
            pp=self.pp_size,
            ep=self.ep_size,
            replicas=self.dp_size,
            nnodes=self.nnodes,
            gpus_per_host=self.base_gpu_id + max(1, ranks // max(1, self.nnodes)),  # assume that the host has enough
            base_gpu_id=self.base_gpu_id,
        )

    @property
    def dp_ranks(self) -> int:
        """Number of DP groups a request can be sent to: replicas or attention DP groups (one of the two is 1)."""
        return self.dp_size * self.attn_dp_size

    @property
    def dispatches(self) -> bool:
        """Whether a DP controller stands between the HTTP process and the ranks."""
        return self.dp_ranks > 1 or self.nnodes > 1

    @property
    def name(self) -> str:
        """The name /v1/models reports."""
        return self.served_model_name or self.model_path

    @property
    def role(self) -> str:
        """prefill, decode or unified."""
        return "unified" if self.disaggregation_mode == "null" else self.disaggregation_mode

    @property
    def engine_type(self) -> str:
        """A label of SGLang's metrics: the role, or `dynamic` if it may change, so that a switch keeps the series."""
        return "dynamic" if self.may_switch else self.role

    @property
    def may_switch(self) -> bool:
        return self.enable_pd_role_switch and self.disaggregation_mode != "null"

    @property
    def prefills(self) -> bool:
        """Whether the instance may have to compute prompts."""
        return self.disaggregation_mode != "decode" or self.may_switch

    @property
    def serves_bootstrap(self) -> bool:
        """Whether the instance runs a bootstrap server; one that may become a prefill does from the start (sglang)."""
        return self.disaggregation_mode == "prefill" or self.may_switch

    @property
    def keeps_prefixes(self) -> bool:
        """Whether computed pages stay in the pool for reuse; on a decode, only if it was asked for (sglang)."""
        asked = self.disaggregation_mode != "decode" or self.disaggregation_decode_enable_radix_cache
        return asked and not self.disable_radix_cache

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServerArgs:
        values = json.loads(text)
        return cls(**{**values, "rehearse": tuple(values.get("rehearse", ()))})


class ReplicaRank(NamedTuple):
    """A rank's place in the instance. `replica` is 0 unless --dp-size is above 1."""

    replica: int
    rank: RankPlace

    @classmethod
    def all(cls, shape: Shape) -> tuple[ReplicaRank, ...]:
        """Return every rank of the instance, in the order in which the nodes start them."""
        plain = shape.replicas > 1
        return tuple(cls((rank.dp_rank or 0) if plain else 0, rank) for rank in place(shape))

    @classmethod
    def find(cls, shape: Shape, replica: int, pp_rank: int, tp_rank: int) -> ReplicaRank:
        wanted = (replica, pp_rank, tp_rank)
        return next(here for here in cls.all(shape) if (here.replica, here.rank.pp_rank, here.rank.tp_rank) == wanted)

    @property
    def key(self) -> Key:
        return self.rank.dp_rank or 0, self.rank.pp_rank, self.rank.tp_rank
