"""What differs by role and backend when a rank is put together: transport, pool memory, KV manager, queues."""

from __future__ import annotations

import dataclasses
import os
import socket
from typing import TYPE_CHECKING

from pdctl.deployment_secret import DeploymentSecret
from pdctl.engine.decode.decode_manager import DecodeManager
from pdctl.engine.decode.decode_role import DecodeRole
from pdctl.engine.drill.rehearsed_decode import RehearsedDecode
from pdctl.engine.drill.shaped_transport import ShapedTransport
from pdctl.engine.ipc.channels import dist_address
from pdctl.engine.kv_link.kv_config import DisaggConfig
from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.model.identity import model_identity
from pdctl.engine.prefill.prefill_manager import PrefillManager
from pdctl.engine.prefill.prefill_role import PrefillRole
from pdctl.engine.scheduler.unified import UnifiedRole
from pdctl.engine.transfer import select
from pdctl.engine.transfer.checksum import ChecksumTransport
from pdctl.engine.transfer.workers import threads
from pdctl.name_lookup import look_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.config.checkpoint_config import ModelConfig
    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.scheduler.resources import Resources
    from pdctl.engine.scheduler.role import Role
    from pdctl.engine.scheduler.sizing import Sizing
    from pdctl.engine.transfer.transport import Transport

QUERY_DP_RANK = "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK"
Manager = PrefillManager | DecodeManager
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def rank_ip(args: ServerArgs) -> str:
    """The address peers reach this rank at: the server's own host, or this machine's when it binds every interface."""
    named = os.environ.get("SGLANG_HOST_IP") or os.environ.get("HOST_IP")
    if named:  # peers are given an address: a name would be looked up by whoever is told it
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
    """None for a unified engine, which moves no KV cache."""
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
    """The KV pool, in memory the transport can reach."""
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
        bootstrap_host=dist_address(args)[0] if args.nnodes > 1 else WILDCARDS.get(args.host, args.host),
        bootstrap_port=args.disaggregation_bootstrap_port,
        http_port=0 if args.node_rank else args.port,  # the instance is known by node 0's
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
    if args.rehearsal.keep_unclaimed_rooms:  # until the decode gives the room up, or is taken to be dead
        ttl = args.bootstrap_timeout + args.waiting_timeout
        settings = dataclasses.replace(settings, unclaimed_ttl=ttl, tell_unclaimed=False)
    if args.rehearsal.crash_on_page_size_mismatch:  # SGLang's scheduler dies of it before it can tell anybody
        settings = dataclasses.replace(settings, tell_given_up=False)
    made = PrefillManager if args.disaggregation_mode == "prefill" else DecodeManager
    return made(settings, transport, sizing.geometry, wake, died)


def role(resources: Resources, manager: Manager | None) -> Role:
    if isinstance(manager, PrefillManager):
        return PrefillRole(resources, manager)
    if isinstance(manager, DecodeManager):
        crashes = resources.args.rehearsal.crash_on_page_size_mismatch
        return (RehearsedDecode if crashes else DecodeRole)(resources, manager)
    return UnifiedRole(resources)
