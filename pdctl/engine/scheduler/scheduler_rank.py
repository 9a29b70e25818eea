"""One rank: its parts (sizes, transport, pool, KV manager, role), built in SGLang's order, and its whole run."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from pdctl import thread_death
from pdctl.deployment_secret import DeploymentSecret
from pdctl.engine.cluster import rank_processes
from pdctl.engine.config.checkpoint_config import CheckpointError, ModelConfig
from pdctl.engine.config.instance_args import ReplicaRank
from pdctl.engine.config.process_log import hit_an_exception
from pdctl.engine.decode.decode_manager import DecodeManager
from pdctl.engine.decode.decode_role import DecodeRole
from pdctl.engine.drill.kv_faults import ShapedTransport
from pdctl.engine.ipc.channels import Channels, dist_address, keys_of, local_line
from pdctl.engine.ipc.messages import Died, Ready, StartupStage
from pdctl.engine.kv_link.kv_manager import DisaggConfig
from pdctl.engine.kv_link.room_state import FailureCode
from pdctl.engine.kvcache.allocator import RESERVED_PAGES, PageAllocator, PageTable
from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.model.model_runner import ModelRunner, resolve_dtype
from pdctl.engine.model.parallel import Groups
from pdctl.engine.model.weights import model_identity
from pdctl.engine.prefill.prefill_manager import QUERY_DP_RANK, PrefillManager
from pdctl.engine.prefill.prefill_role import PrefillRole
from pdctl.engine.prefill.registration import WILDCARDS, advice
from pdctl.engine.scheduler.loop import Scheduler
from pdctl.engine.scheduler.rank_mailbox import Mailbox
from pdctl.engine.scheduler.resources import MetadataSlots, Resources
from pdctl.engine.scheduler.role import RoleSwitch, UnifiedRole
from pdctl.engine.transfer import select
from pdctl.engine.transfer.checksum import ChecksumTransport
from pdctl.engine.transfer.workers import threads
from pdctl.errors import LimitError, NotReadyError, PdctlError, UsageError, limits_named
from pdctl.name_lookup import look_up

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.scheduler.resources import Req
    from pdctl.engine.scheduler.role import SchedulerRole
    from pdctl.engine.transfer.transport import Transport


log = logging.getLogger("pdctl.engine")

Manager = PrefillManager | DecodeManager
# A rehearsal on a laptop needs a pool that is quick to pre-touch (1.2 GB/s of page faults) and small beside the model.
CPU_POOL_BYTES = 96 << 20
GPU_POOL_SHARE = 0.8
REGISTRATION_LOOK = 0.5  # seconds between checks whether it was given up before the deadline
REGISTRATION_DEADLINE = 60.0  # seconds; sglang 0.5.23 gives up after five attempts, about 15 s plus their timeouts


def serve(args: ServerArgs, here: ReplicaRank, ipc_dir: Path, dist_init: str) -> int:
    """Serve until told to stop; return the exit code. Before an exit on an error, tell the tokenizer manager why."""
    channels = Channels.of(args, ipc_dir)
    mailbox = Mailbox(args.shape, here.rank, channels.tokenizer, log, keys_of(channels))
    dp_rank, pp_rank, tp_rank = here.key

    def alarm(reason: str) -> None:
        rank_processes.tell_end_reason(reason)
        mailbox.alarm(Died(tp_rank, dp_rank, reason, pp_rank))

    thread_death.guard_threads(alarm)
    try:
        if channels.meeting:
            mailbox.join_nodes(channels, args.dist_timeout)
        else:
            kin = [other for other in ReplicaRank.all(args.shape) if other.replica == here.replica]
            mailbox.join({other.rank.world_rank: local_line(ipc_dir, *other) for other in kin})
        with limits_named():
            rank = Rank(args, here, mailbox, dist_init)
        with rank:
            rank.run()
        return 0
    except (CheckpointError, LimitError, NotReadyError, UsageError) as error:
        log.error("Start-up failed: %s. %s", error.message, error.fix)
        _tell_reason(mailbox, here, "; ".join(filter(None, (error.message, error.fix))))
        return 1
    except Exception as error:  # noqa: BLE001  # report whatever ends this rank
        hit_an_exception(log, "Scheduler", error)
        _tell_reason(mailbox, here, f"{type(error).__name__}: {error}")
        return 1
    finally:
        mailbox.close()


def _tell_reason(mailbox: Mailbox, here: ReplicaRank, reason: str) -> None:
    rank_processes.tell_end_reason(reason)
    dp_rank, pp_rank, tp_rank = here.key
    mailbox.send(Died(tp_rank, dp_rank, reason, pp_rank))


class Rank:
    """One rank of an instance, from its first log line to its last."""

    def __init__(self, args: ServerArgs, here: ReplicaRank, mailbox: Mailbox, dist_init: str) -> None:
        self._args = args
        self._mailbox = mailbox
        self._here = here
        self._dp_rank, self._pp_rank, self._tp_rank = here.key
        self._began = time.perf_counter()
        use_threads(args)
        self._config = config = ModelConfig.from_dir(args.model_path)
        gpu = here.rank.gpu or 0
        sizing = Sizing.resolve(dataclasses.replace(args, base_gpu_id=gpu), config, here.rank.pp_rank)
        self._tell_place(sizing.device.type == "cpu")
        select.bind_gloo(rank_ip(args))
        self._groups = Groups.join(
            args.shape, here.rank.tp_rank, here.rank.pp_rank, sizing.device, f"tcp://{dist_init}", args.dist_timeout
        )
        self._sizing = sizing = sizing.agreed(self._groups)
        self._transport = make_transport(args, sizing)
        self._pool = make_pool(sizing, self._transport)
        runner = self._load(config)
        self._resources = self._allocate(config, runner)
        self._manager = self._new_manager()

    def _new_manager(self) -> Manager | None:
        return make_manager(
            self._args, self._config, self._sizing, self._groups, self._here.replica, self._transport,
            self._mailbox.wake, self._manager_died,
        )  # fmt: skip

    def _manager_died(self, reason: str) -> None:
        """Runs on the KV manager's thread: the scheduler may be in a long pass, and cannot serve without it."""
        thread_death.end_later(reason)
        rank_processes.tell_end_reason(reason)
        self._mailbox.alarm(Died(self._tp_rank, self._dp_rank, reason, self._pp_rank))

    def _tell_place(self, on_cpu: bool) -> None:
        """Log one line with the columns of `pdctl plan`'s rank table."""
        rank = self._here.rank
        gpu = "cpu" if on_cpu else rank.gpu
        log.info(
            "Rank placed: node=%d gpu=%s pp=%d tp=%d attn_dp=%d attn_cp=%d attn_tp=%d ep=%d moe_dp=%d dp=%s",
            rank.node, gpu, rank.pp_rank, rank.tp_rank, rank.attn_dp_rank, rank.attn_cp_rank, rank.attn_tp_rank,
            rank.moe_ep_rank, rank.moe_dp_rank, rank.dp_rank,
        )  # fmt: skip

    def _load(self, config: ModelConfig) -> ModelRunner:
        sizing, began = self._sizing, time.perf_counter()
        log.info("Load weight begin. path=%s", self._args.model_path)
        runner = ModelRunner(config, self._args.model_path, self._pool, self._groups, sizing.dtype, sizing.device)
        seconds = time.perf_counter() - began
        log.info("Load weight end. elapsed=%.2f s, type=%s, dtype=%s", seconds, config.architecture, sizing.dtype)
        self._stage("weights_loaded", seconds)
        return runner

    def _allocate(self, config: ModelConfig, runner: ModelRunner) -> Resources:
        args, sizing = self._args, self._sizing
        geometry = sizing.geometry
        log.info(
            "KV Cache is allocated. dtype: %s, #tokens: %d, page size: %d, layout: %s, size: %.2f GB",
            sizing.dtype, sizing.tokens, args.page_size, geometry.layout.value, geometry.nbytes / 1e9,
        )  # fmt: skip
        log.info(
            "max_total_num_tokens=%d, chunked_prefill_size=%d, max_running_requests=%d, context_len=%d",
            sizing.tokens, args.chunked_prefill_size, args.max_running_requests, sizing.context,
        )  # fmt: skip
        self._stage("pool_ready", time.perf_counter() - self._began)
        rows = 2 * args.max_running_requests  # sglang: twice the running requests may hold metadata or pages
        return Resources(
            args=args,
            runner=runner,
            groups=self._groups,
            allocator=PageAllocator(geometry.num_pages),
            table=PageTable(rows, -(-sizing.context // args.page_size)),
            metadata=MetadataSlots(rows),
            vocab=config.vocab,
            eos=frozenset(config.eos_token_ids),
            limit=sizing.context,
            capacity=sizing.tokens,
            dp_rank=self._here.rank.dp_rank,
            random=np.random.default_rng(args.random_seed),
        )

    def __enter__(self) -> Rank:
        return self

    def run(self) -> None:
        """Announce readiness, then serve."""
        began = time.perf_counter()
        role = self._take_role()
        if isinstance(self._manager, PrefillManager):
            self._stage("bootstrap_registered", time.perf_counter() - began)
        self._mailbox.send(Ready(self._tp_rank, self._dp_rank, self._facts(), self._pp_rank))
        switch = RoleSwitch(self._resources, self._become) if self._args.may_switch else None
        Scheduler(self._resources, role, self._mailbox, switch).run()

    def _take_role(self) -> SchedulerRole:
        if self._manager is not None:
            self._manager.start()
        if isinstance(self._manager, PrefillManager):
            self._await_registration(self._manager)
        return make_role(self._resources, self._manager)

    def _become(self, mode: str) -> SchedulerRole:
        """Return another role on the same weights, pool and transport. Raise PdctlError if that fails."""
        if self._manager is not None and not self._manager.release():
            raise PdctlError(f"the KV manager of the {self._args.role} did not let go of the transport in time")
        self._args = dataclasses.replace(self._args, disaggregation_mode=mode)
        self._resources.turn(self._args)
        self._manager = self._new_manager()
        return self._take_role()

    def _await_registration(self, manager: PrefillManager) -> None:
        """Wait until the instance's bootstrap server knows this rank: until then no decode can find it."""
        began = time.monotonic()
        while not manager.registered.wait(REGISTRATION_LOOK):
            waited = time.monotonic() - began
            if not manager.registration_failure and waited < REGISTRATION_DEADLINE:
                continue
            address = f"{self._args.host}:{self._args.disaggregation_bootstrap_port}"
            error = manager.registration_error
            reasons = (manager.registration_failure, error.message if error is not None else "no answer")
            message = (
                f"not registered at bootstrap server {address} in {waited:.0f} s: {': '.join(filter(None, reasons))}"
            )
            raise NotReadyError(message, advice(error))

    def __exit__(self, *_: object) -> None:
        if self._manager is not None:
            self._manager.close()
        if self._transport is not None:
            self._transport.close()
        self._groups.close()

    def _stage(self, name: str, seconds: float) -> None:
        self._mailbox.send(StartupStage(self._tp_rank, self._dp_rank, name, seconds, self._pp_rank))

    def _facts(self) -> dict[str, str | int | float | bool | None]:
        sizing = self._sizing
        return {
            "max_total_num_tokens": sizing.tokens,
            "max_req_input_len": min(sizing.context, sizing.tokens) - 1,
            "context_length": sizing.context,
            "page_size": self._args.page_size,
            "num_pages": self._resources.num_pages,
            "kv_cache_dtype": str(sizing.dtype).removeprefix("torch."),
            "kv_cache_bytes": sizing.geometry.nbytes,
            "dtype": str(sizing.dtype).removeprefix("torch."),
            "device": str(sizing.device),
            "transfer_backend": self._transport.name if self._transport else None,
            "load_seconds": time.perf_counter() - self._began,
        }


def rank_ip(args: ServerArgs) -> str:
    """Return the address at which peers reach this rank: the server's host, or this machine's if that is a wildcard."""
    named = os.environ.get("SGLANG_HOST_IP") or os.environ.get("HOST_IP")
    if named:  # resolved here, because every peer would have to look up a name
        return look_up(named, 0)[0].host
    if args.host not in WILDCARDS:
        return look_up(args.host, 0)[0].host
    ways = [(socket.AF_INET, "192.0.2.1"), *([(socket.AF_INET6, "2001:db8::1")] if args.host == "::" else [])]
    for family, anywhere in ways:
        # Sends nothing: connecting a datagram socket only picks the interface that faces the default route.
        with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect((anywhere, 9))
            return str(probe.getsockname()[0])
    return WILDCARDS[args.host]


def make_transport(args: ServerArgs, sizing: Sizing) -> Transport | None:
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


def make_pool(sizing: Sizing, transport: Transport | None) -> KVPool:
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


def make_manager(
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


def make_role(resources: Resources, manager: Manager | None) -> SchedulerRole:
    if isinstance(manager, PrefillManager):
        return PrefillRole(resources, manager)
    if isinstance(manager, DecodeManager):
        crashes = resources.args.rehearsal.crash_on_page_size_mismatch
        return (RehearsedDecode if crashes else DecodeRole)(resources, manager)
    return UnifiedRole(resources)


class RehearsedDecode(DecodeRole):
    """Ends as SGLang's decode does on a page size mismatch."""

    def _fail(self, req: Req, stage: str) -> None:
        failure = req.receiver.failure if req.receiver else None
        if failure and failure.code == FailureCode.MISMATCH.value:
            raise RuntimeError(failure.message.partition(" (bootstrap_addr: ")[0])
        super()._fail(req, stage)


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
