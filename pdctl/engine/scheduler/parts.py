"""What differs by role and backend when a rank is put together: transport, pool memory, KV manager, queues."""

from __future__ import annotations

import dataclasses
import os
import socket
from typing import TYPE_CHECKING

from pdctl.engine.cache.pool import KVPool
from pdctl.engine.disaggregation.config import DisaggConfig
from pdctl.engine.disaggregation.decode import DecodeManager
from pdctl.engine.disaggregation.prefill import PrefillManager
from pdctl.engine.scheduler.decode import DecodeRole
from pdctl.engine.scheduler.prefill import PrefillRole
from pdctl.engine.scheduler.rehearsal import End, RehearsedDecode, RehearsedPrefill
from pdctl.engine.scheduler.unified import UnifiedRole
from pdctl.engine.transfer import select
from pdctl.engine.transfer.rehearsal import RehearsedTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.args import ServerArgs
    from pdctl.engine.scheduler.resources import Resources
    from pdctl.engine.scheduler.role import Role
    from pdctl.engine.scheduler.sizing import Sizing
    from pdctl.engine.transfer.base import Transport

Manager = PrefillManager | DecodeManager
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def rank_ip(args: ServerArgs) -> str:
    """The address peers reach this rank at: the server's own host, or this machine's when it binds every interface."""
    named = os.environ.get("SGLANG_HOST_IP") or os.environ.get("HOST_IP")
    if named:
        return named
    if args.host not in WILDCARDS:
        return str(socket.getaddrinfo(args.host, None)[0][4][0])
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
    made = select.create(args.disaggregation_transfer_backend, rank_ip(args), sizing.device.type == "cuda")
    rehearsal = args.rehearsal
    if args.disaggregation_mode == "prefill" and (rehearsal.rate or rehearsal.dies):
        return RehearsedTransport(made, rehearsal.rate, End())
    return made


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
    args: ServerArgs, sizing: Sizing, tp_rank: int, dp_rank: int, transport: Transport | None, wake: Callable[[], None]
) -> Manager | None:
    if transport is None:
        return None
    config = DisaggConfig(
        role=args.disaggregation_mode,
        rank_ip=rank_ip(args),
        page_size=args.page_size,
        kv_dtype=str(sizing.dtype).removeprefix("torch."),
        backend=transport.name,
        bootstrap_host=WILDCARDS.get(args.host, args.host),
        bootstrap_port=args.disaggregation_bootstrap_port,
        http_port=args.port,
        tp_rank=tp_rank,
        tp_size=args.tp_size,
        dp_rank=dp_rank,
        dp_size=args.dp_size,
        bootstrap_timeout=args.bootstrap_timeout,
        waiting_timeout=args.waiting_timeout,
        heartbeat_interval=args.heartbeat_interval,
        heartbeat_max_failure=args.heartbeat_max_failure,
    )
    if args.rehearsal.keep_unclaimed_rooms:  # until the decode gives the room up, or is taken to be dead
        ttl = args.bootstrap_timeout + args.waiting_timeout
        config = dataclasses.replace(config, orphan_ttl=ttl, tell_unclaimed=False)
    made = PrefillManager if args.disaggregation_mode == "prefill" else DecodeManager
    return made(config, transport, sizing.geometry, wake)


def role(resources: Resources, manager: Manager | None) -> Role:
    rehearsal = resources.args.rehearsal
    if isinstance(manager, PrefillManager):
        return (RehearsedPrefill if rehearsal.dies else PrefillRole)(resources, manager)
    if isinstance(manager, DecodeManager):
        crashes = rehearsal.dies or rehearsal.crash_on_page_size_mismatch
        return (RehearsedDecode if crashes else DecodeRole)(resources, manager)
    return UnifiedRole(resources)
