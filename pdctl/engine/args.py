"""The engine's command line: SGLang's flag names, so that one command serves both (sglang 0.5.23 srt/server_args.py).

One frozen value travels unchanged from `python -m pdctl.engine` to every process of the instance (as JSON).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.engine import faults, rehearsal, shapes
from pdctl.layout.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_BOOTSTRAP_PORT = 8998
FAKE_BOOTSTRAP_HOST = "2.2.2.2"  # sglang: both ends of such a request use the fake sender and receiver


@dataclass(frozen=True, slots=True)
class ServerArgs:
    """Sizes in tokens unless named otherwise; times in seconds. Field names are sglang's /server_info keys."""

    model_path: str
    served_model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 30000
    disaggregation_mode: str = "null"  # null | prefill | decode
    disaggregation_bootstrap_port: int = DEFAULT_BOOTSTRAP_PORT
    disaggregation_transfer_backend: str = "auto"  # auto | nixl | shm | mooncake | mooncake_tcp | fake
    disaggregation_transfer_threads: int = 0  # decode ranks of a prefill are shared out to so many; 0: by cores
    disaggregation_enable_kv_checksum: bool = False  # on both sides: a decode checks every page before it uses it
    tp_size: int = 1
    dp_size: int = 1  # replicas (sglang 0.5.23)
    attn_dp_size: int = 1  # attention DP groups that share one TP group
    pp_size: int = 1
    ep_size: int = 1
    nnodes: int = 1
    node_rank: int = 0
    dist_init_addr: str | None = None
    dist_timeout: float = 600.0  # until every rank of every node must be there
    base_gpu_id: int = 0
    device: str = "auto"  # auto | cpu | cuda
    dtype: str = (
        "auto"  # auto | float32 | bfloat16; auto is float32 on a CPU (docs/performance.md), the checkpoint's on a GPU
    )
    page_size: int = 16
    kv_layout: str = "layer-major"  # layer-major | page-major
    max_total_tokens: int = 0  # 0: from the memory at hand
    max_running_requests: int = 64
    max_queued_requests: int = 1024
    chunked_prefill_size: int = 512
    num_reserved_decode_tokens: int = 512  # what an admitted request must find free beyond its prompt
    optimistic_prefill_attempts: int = 0  # passes a prompt may get before its decode has answered (sglang 0.5.18+)
    disable_radix_cache: bool = False
    disaggregation_decode_enable_radix_cache: bool = False
    disaggregation_decode_retraction_backup: str = "cpu_tensor"
    disable_overlap_schedule: bool = False
    context_length: int = 0  # 0: from the checkpoint
    load_balance_method: str = "auto"
    random_seed: int = 1
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
    def rehearsal(self) -> rehearsal.Rehearsal:
        """What `rehearse` asks for; nothing unless it was given."""
        return rehearsal.read(self.rehearse)

    @property
    def shape(self) -> Shape:
        """The parallel shape, as the layout reckons with it; the nodes share the ranks evenly."""
        ranks = self.tp_size * self.pp_size * self.dp_size
        return Shape(
            tp=self.tp_size,
            dp=self.attn_dp_size,
            pp=self.pp_size,
            ep=self.ep_size,
            replicas=self.dp_size,
            nnodes=self.nnodes,
            gpus_per_host=self.base_gpu_id + max(1, ranks // max(1, self.nnodes)),  # who runs it knows its GPUs
            base_gpu_id=self.base_gpu_id,
        )

    @property
    def dp_ranks(self) -> int:
        """DP groups a request can go to: replicas, or attention DP groups (one of the two is 1)."""
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
        """`engine_type` of SGLang's metrics: prefill, decode or unified."""
        return "unified" if self.disaggregation_mode == "null" else self.disaggregation_mode

    @property
    def keeps_prefixes(self) -> bool:
        """Whether finished work stays in the pool to be found again; a decode does so only when asked to (sglang)."""
        asked = self.disaggregation_mode != "decode" or self.disaggregation_decode_enable_radix_cache
        return asked and not self.disable_radix_cache

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServerArgs:
        values = json.loads(text)
        return cls(**{**values, "rehearse": tuple(values.get("rehearse", ()))})


# Flags whose name differs from the field's, or that have a second spelling in SGLang.
SPELLINGS = {
    "model_path": ("--model-path", "--model"),
    "tp_size": ("--tp-size", "--tensor-parallel-size", "--tp"),
    "dp_size": ("--dp-size", "--data-parallel-size", "--dp"),
    "attn_dp_size": ("--attn-dp-size", "--attention-data-parallel-size"),
    "pp_size": ("--pp-size", "--pipeline-parallel-size", "--pp"),
    "ep_size": ("--ep-size", "--expert-parallel-size", "--ep"),
    "dist_init_addr": ("--dist-init-addr", "--nccl-init-addr"),
}
CHOICES = {
    "disaggregation_mode": ("null", "prefill", "decode"),
    "disaggregation_transfer_backend": ("auto", "nixl", "shm", "mooncake", "mooncake_tcp", "fake"),
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "float32", "bfloat16"),
    "kv_layout": ("layer-major", "page-major"),
    "load_balance_method": ("auto", "round_robin", "follow_bootstrap_room", "total_requests", "total_tokens"),
    "disaggregation_decode_retraction_backup": ("cpu_tensor",),
    "log_level": ("debug", "info", "warning", "error"),
}
# What SGLang takes from the environment: the same variables set the defaults here.
ENVIRONMENT = {
    "bootstrap_timeout": "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
    "waiting_timeout": "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
    "disaggregation_transfer_threads": "SGLANG_DISAGGREGATION_QUEUE_SIZE",
    "heartbeat_interval": "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL",
    "heartbeat_max_failure": "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE",
}


def parse(argv: Sequence[str], environ: dict[str, str]) -> ServerArgs:
    """ServerArgs from a command line; exits 2 with argparse's message when a flag is unknown or contradicts itself."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m pdctl.engine", allow_abbrev=False, formatter_class=raw)
    for field in dataclasses.fields(ServerArgs):
        if field.name == "rehearse":
            continue
        spellings = SPELLINGS.get(field.name, ("--" + field.name.replace("_", "-"),))
        default = None if field.name == "model_path" else field.default
        variable = ENVIRONMENT.get(field.name, "")
        if field.type == "bool":  # a bare flag
            parser.add_argument(*spellings, dest=field.name, action="store_true")
            continue
        kind = {"int": int, "float": float}.get(str(field.type), str)
        if variable in environ:
            try:
                default = kind(float(environ[variable]))
            except ValueError:
                parser.error(f"environment variable {variable}={environ[variable]!r} is not a number")
        parser.add_argument(
            *spellings,
            dest=field.name,
            type=kind,
            default=default,
            required=field.name == "model_path",
            choices=CHOICES.get(field.name),
        )
    parser.add_argument("--enable-dp-attention", action="store_true", help=shapes.DEPRECATED)
    group = parser.add_argument_group("rehearsal", rehearsal.HELP)
    group.add_argument("--rehearse", nargs="+", action="extend", default=[], metavar="INCIDENT")
    values = vars(parser.parse_args(argv))
    if values.pop("enable_dp_attention"):
        values["attn_dp_size"], values["dp_size"] = max(values["dp_size"], values["attn_dp_size"]), 1
    args = ServerArgs(**{**values, "rehearse": tuple(values["rehearse"])})
    problem = refuse(args)
    if problem:
        parser.error(problem)
    args = shapes.divided(args)
    port = args.rehearsal.fallback_port
    return dataclasses.replace(args, disaggregation_bootstrap_port=port) if port else args


def refuse(args: ServerArgs) -> str:
    """Why these arguments cannot run, naming the flag and the fix; empty when they can."""
    if not (Path(args.model_path) / "config.json").is_file():
        return f"--model-path {args.model_path}: no config.json there; give the directory of a Hugging Face checkpoint"
    for name in ("port", "disaggregation_bootstrap_port"):
        if not 0 < getattr(args, name) < 65536:
            return f"--{name.replace('_', '-')} {getattr(args, name)}: a port is 1 to 65535"
    for name in (
        "tp_size",
        "dp_size",
        "attn_dp_size",
        "pp_size",
        "ep_size",
        "nnodes",
        "page_size",
        "max_running_requests",
        "chunked_prefill_size",
        "num_reserved_decode_tokens",
    ):
        if getattr(args, name) < 1:
            return f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least 1"
    if not 0 <= args.disaggregation_transfer_threads <= 64:
        return f"--disaggregation-transfer-threads {args.disaggregation_transfer_threads}: 1 to 64, or 0: by cores"
    problem = shapes.refuse(args)
    if problem:
        return problem
    if args.disaggregation_mode != "decode" and args.chunked_prefill_size % args.page_size:
        return (
            f"--chunked-prefill-size {args.chunked_prefill_size} must be a multiple of --page-size {args.page_size} "
            "(sglang: chunked_prefill_size % page_size == 0)"
        )
    return faults.refuse() or rehearsal.refuse(args.rehearse, args.role)
