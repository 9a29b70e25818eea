"""The parts of a rank: device and sizes, transport, pool memory, KV manager, role."""

from __future__ import annotations

import dataclasses
import os
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from pdctl.deployment_secret import DeploymentSecret
from pdctl.engine.decode.decode_manager import DecodeManager
from pdctl.engine.decode.decode_role import DecodeRole
from pdctl.engine.drill.rehearsed_parts import RehearsedDecode, ShapedTransport
from pdctl.engine.ipc.channels import dist_address
from pdctl.engine.kv_link.kv_manager import DisaggConfig
from pdctl.engine.kvcache.allocator import RESERVED_PAGES
from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.model.model_runner import resolve_dtype
from pdctl.engine.model.weights import model_identity
from pdctl.engine.prefill.prefill_manager import PrefillManager
from pdctl.engine.prefill.prefill_role import PrefillRole
from pdctl.engine.prefill.registration import WILDCARDS
from pdctl.engine.scheduler.role import UnifiedRole
from pdctl.engine.transfer import select
from pdctl.engine.transfer.checksum import ChecksumTransport
from pdctl.engine.transfer.workers import threads
from pdctl.errors import UsageError
from pdctl.name_lookup import look_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.config.checkpoint_config import ModelConfig
    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.scheduler.resources import Resources
    from pdctl.engine.scheduler.role import SchedulerRole
    from pdctl.engine.transfer.transport import Transport

QUERY_DP_RANK = "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK"
Manager = PrefillManager | DecodeManager
# A rehearsal on a laptop needs a pool that is quick to pre-touch (1.2 GB/s of page faults) and small beside the model.
CPU_POOL_BYTES = 96 << 20
GPU_POOL_SHARE = 0.8


def rank_ip(args: ServerArgs) -> str:
    """Return the address at which peers reach this rank: the server's host, or this machine's if that is a wildcard."""
    named = os.environ.get("SGLANG_HOST_IP") or os.environ.get("HOST_IP")
    if named:  # resolved here, because every peer would have to look up a name
        return look_up(named, 0)[0].host
    if args.host not in WILDCARDS:
        return look_up(args.host, 0)[0].host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: connecting a datagram socket only picks the interface that faces the default route.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return WILDCARDS[args.host]
        return str(probe.getsockname()[0])


def transport(args: ServerArgs, sizing: Sizing) -> Transport | None:
    """Return the KV transport; None for a unified engine, which moves no KV cache."""
    if args.disaggregation_mode == "null":
        return None
    writes = args.disaggregation_mode == "prefill" or args.may_switch
    lanes = threads(args.disaggregation_transfer_threads) if writes else 1
    made = select.create(args.disaggregation_transfer_backend, rank_ip(args), sizing.device.type == "cuda", lanes)
    link = args.rehearsal.link
    if args.disaggregation_mode == "prefill" and link:
        made = ShapedTransport(made, link)
    return ChecksumTransport(made) if args.disaggregation_enable_kv_checksum else made


def pool(sizing: Sizing, transport: Transport | None) -> KVPool:
    """Return the KV pool, in memory that the transport can reach."""
    geometry = sizing.geometry
    if transport is None:
        return KVPool(geometry, None, sizing.dtype, sizing.device)
    if sizing.device.type == "cuda":
        made = KVPool(geometry, None, sizing.dtype, sizing.device)
        transport.register(made.buffer)
        return made
    memory = transport.allocate(geometry.nbytes)
    transport.register(memory)
    return KVPool(geometry, memory, sizing.dtype, sizing.device)


def manager(
    args: ServerArgs,
    config: ModelConfig,
    sizing: Sizing,
    groups: Groups,
    replica: int,
    transport: Transport | None,
    wake: Callable[[], None],
    died: Callable[[str], None],
) -> Manager | None:
    if transport is None:
        return None
    settings = DisaggConfig(
        role=args.disaggregation_mode,
        rank_ip=rank_ip(args),
        page_size=args.page_size,
        kv_dtype=str(sizing.dtype).removeprefix("torch."),
        backend=transport.name,
        # sglang: the bootstrap server of several nodes is node 0's.
        bootstrap_host=dist_address(args)[0] if args.nnodes > 1 else args.host,
        bootstrap_port=args.disaggregation_bootstrap_port,
        http_port=0 if args.node_rank else args.port,  # peers know the instance by node 0's
        model=model_identity(config, args.model_path),
        layers=config.layers,
        kv_heads=1 if config.latent else config.kv_heads,
        attn_tp_rank=groups.attn_tp.rank,
        attn_tp_size=groups.attn_tp.size,
        attn_dp_rank=groups.attn_dp.rank,
        attn_dp_size=groups.attn_dp.size,
        dp_rank=replica,
        dp_size=args.dp_size,
        pp_rank=groups.pp.rank,
        pp_size=groups.pp.size,
        load_balance_method=args.load_balance_method,
        query_dp_rank=os.environ.get(QUERY_DP_RANK, "").lower() in ("1", "true", "yes"),
        bootstrap_timeout=args.bootstrap_timeout,
        waiting_timeout=args.waiting_timeout,
        transfer_threads=args.disaggregation_transfer_threads,
        heartbeat_interval=args.heartbeat_interval,
        heartbeat_max_failure=args.heartbeat_max_failure,
        secret=DeploymentSecret.from_environment(os.environ),
        faults=args.rehearsal.fault(args.disaggregation_mode),
    )
    if args.rehearsal.keep_unclaimed_rooms:  # until the decode gives up the room, or is considered dead
        ttl = args.bootstrap_timeout + args.waiting_timeout
        settings = dataclasses.replace(settings, unclaimed_ttl=ttl, tell_unclaimed=False)
    if args.rehearsal.crash_on_page_size_mismatch:  # SGLang's scheduler dies of it before it can tell its peer
        settings = dataclasses.replace(settings, tell_given_up=False)
    made = PrefillManager if args.disaggregation_mode == "prefill" else DecodeManager
    return made(settings, transport, sizing.geometry, wake, died)


def role(resources: Resources, manager: Manager | None) -> SchedulerRole:
    if isinstance(manager, PrefillManager):
        return PrefillRole(resources, manager)
    if isinstance(manager, DecodeManager):
        crashes = resources.args.rehearsal.crash_on_page_size_mismatch
        return (RehearsedDecode if crashes else DecodeRole)(resources, manager)
    return UnifiedRole(resources)


@dataclass(frozen=True, slots=True)
class Sizing:
    """Resolved sizes. `context` counts prompt and answer together; `tokens` is what the pool holds."""

    device: torch.device
    dtype: torch.dtype
    context: int
    geometry: PoolGeometry

    @property
    def tokens(self) -> int:
        return (self.geometry.num_pages - RESERVED_PAGES) * self.geometry.page_size

    @classmethod
    def resolve(cls, args: ServerArgs, config: ModelConfig, stage: int = 0) -> Sizing:
        """Return the sizes for a rank of pipeline stage `stage`. Raise UsageError naming the flag if no page fits."""
        device = _device(args)
        dtype = resolve_dtype(args.dtype, config, device)
        context = min(args.context_length or config.max_position, config.max_position)
        stages = args.shape.pp

        def geometry(pages: int, stage: int) -> PoolGeometry:
            return KVPool.geometry_for(
                config, args.shape.attn_tp_size, args.page_size, pages, dtype, args.kv_layout, stage, stages
            )

        # The size of a page on the stage with the most layers: all stages allocate the same pages, so all need as many.
        most = max(geometry(1, each).nbytes for each in range(stages))
        if args.max_total_tokens:
            pages = args.max_total_tokens // args.page_size
        else:
            useful = -(-args.max_running_requests * context // args.page_size)
            pages = min(useful, max(_budget(device) // most, -(-2 * context // args.page_size)))
        if pages < 1:
            raise UsageError(
                f"--max-total-tokens {args.max_total_tokens} is less than one page of {args.page_size} tokens"
            )
        return cls(device, dtype, context, geometry(pages + RESERVED_PAGES, stage))

    def agreed(self, groups: Groups) -> Sizing:
        """Return the sizes with the smallest page count of all ranks of the replica. Every one of them calls this.

        A rank sees only the free memory of its own device, but all ranks of a schedule allocate the same pages.
        """
        pages = self.geometry.num_pages
        for group in (groups.tp, groups.pp):  # first within each stage, then over all stages
            (pages,) = group.min_ints([pages])
        return replace(self, geometry=replace(self.geometry, num_pages=pages))


def use_threads(args: ServerArgs) -> int:
    """Set and return the compute threads of this rank: few, because prefill and decode on a laptop share the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = args.num_threads or max(1, cores // (2 * args.tp_size * args.dp_size))
    torch.set_num_threads(threads)
    return threads


def _device(args: ServerArgs) -> torch.device:
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: this torch finds no CUDA device", "use --device cpu")
    cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    return torch.device("cuda", args.base_gpu_id) if cuda else torch.device("cpu")


def _budget(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * GPU_POOL_SHARE)
    return CPU_POOL_BYTES
