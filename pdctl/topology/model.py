"""The topology as frozen values: what the user wrote, with every default filled in.

Named tuples rather than dataclasses: fifteen dataclasses take as long to define as a bare Python takes to start.
Units: sizes in bytes, bandwidth in bits per second, times in seconds. Ports and counts are plain integers.
"""

from __future__ import annotations

from collections.abc import Mapping

from pdctl.quick_definitions import NamedTuple

VERSION = "pdctl/v1"

Scalar = str | int | float | bool
FlagValue = Scalar | tuple[Scalar, ...]
Flags = Mapping[str, FlagValue]  # kebab-case flag → value; True: the bare flag, False: no flag
Env = Mapping[str, str]


class SourceSpan(NamedTuple):
    """A stretch of one line, 1-based, `end_column` exclusive. `lines` is the whole source, for excerpts."""

    file: str
    line: int
    column: int
    end_column: int
    lines: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Span({self.file}:{self.line}:{self.column}-{self.end_column})"


class Model(NamedTuple):
    path: str  # a Hugging Face id or a directory; for the embedded engine the shipped checkpoint when none was given
    served_name: str
    dtype: str = "auto"
    kv_dtype: str = "auto"
    context_length: int | None = None  # None: the checkpoint's own
    config: str | None = None  # a config.json, for planning without the checkpoint


class Engine(NamedTuple):
    kind: str  # embedded | sglang
    version: str | None
    command: tuple[str, ...]  # empty: the engine's own
    args: Flags
    env: Env
    host: str | None = None  # None: the target decides
    pace: str | None = None  # embedded: name or file of a cost profile
    traceable: bool = True  # sglang: request time stats, the request log at level 0, metrics


class Pool(NamedTuple):
    """Hosts that are alike. `nic_speed` is one NIC's; `nic_count` NICs per host."""

    name: str
    gpus_per_host: int
    gpu: str | None
    gpu_memory: int | None
    nic_speed: int | None
    nic_count: int
    nic_devices: tuple[str, ...]
    interface: str | None
    labels: Mapping[str, str]


class Role(NamedTuple):
    """Sizes are those of one instance, as SGLang counts them: `tp` includes the GPUs of all `dp` attention groups."""

    name: str  # prefill | decode
    instances: int
    tp: int
    dp: int
    replicas: int
    ep: int
    pp: int
    pool: str
    page_size: int | None
    mem_fraction: float | None
    args: Flags
    env: Env
    spread: bool


class Router(NamedTuple):
    kind: str  # pdctl | sglang-router | smg | mini-lb
    command: tuple[str, ...]  # empty: the router's own
    host: str
    port: int
    policy: str
    prefill_policy: str | None
    decode_policy: str | None
    args: Flags


class Transfer(NamedTuple):
    backend: str | None  # None: the engine's default
    ib_devices: tuple[str, ...] | str  # device names, or "auto"
    env: Env


class Ports(NamedTuple):
    """First ports of each kind; instances count up from them on one host."""

    http: int = 30000
    bootstrap: int = 8998
    dist_init: int = 20000
    stride: int = 32


class Readiness(NamedTuple):
    timeout: float
    interval: float
    path: str
    restart: str  # keep-serving | none | instance | all
    max_restarts: int
    backoff: float
    backoff_max: float
    logs_dir: str | None


class Security(NamedTuple):
    deployment_secret: bool  # processes of pdctl authenticate each other with a secret that launch mints
    api_key_file: str | None = None  # clients' key, for pdctl's engines and router


class Workload(NamedTuple):
    """Tokens in, tokens out, requests per second, share of the input found in the prefix cache."""

    isl: int
    osl: int
    rate: float | None
    hit: float


class Slo(NamedTuple):
    ttft: float | None
    tpot: float | None


class Ignore(NamedTuple):
    """A finding of doctor that is accepted. `code` may be a slug, `where` a pattern of instance names."""

    code: str
    where: str | None
    because: str
    until: str | None  # YYYY-MM-DD, inclusive


class Local(NamedTuple):
    gpus: tuple[int, ...] | str  # device indices, "auto" or "none"


class Targets(NamedTuple):
    """`slurm` and `kubernetes` hold the keys of docs/topology.md, checked and in base units; empty when absent."""

    local: Local
    slurm: Mapping[str, object]
    kubernetes: Mapping[str, object]


class Topology(NamedTuple):
    """`spans` maps a key path ("roles.prefill.tp") to where its value was written; defaulted keys are absent."""

    version: str
    name: str
    source: str
    model: Model
    engine: Engine
    pools: tuple[Pool, ...]
    prefill: Role
    decode: Role
    router: Router
    transfer: Transfer
    ports: Ports
    readiness: Readiness
    security: Security
    workload: Workload | None
    slo: Slo | None
    ignored: tuple[Ignore, ...]
    targets: Targets
    spans: Mapping[str, SourceSpan]

    @property
    def roles(self) -> tuple[Role, Role]:
        return (self.prefill, self.decode)

    def pool(self, name: str) -> Pool:
        """The pool of that name; a resolved topology has every pool its roles name."""
        return next(pool for pool in self.pools if pool.name == name)
