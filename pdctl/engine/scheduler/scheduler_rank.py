"""Builds one rank, step by step as SGLang does (group, weights, pool, KV manager), and runs its event loop."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from pdctl import thread_death
from pdctl.engine.cluster import rank_processes
from pdctl.engine.config.checkpoint_config import CheckpointError, ModelConfig
from pdctl.engine.config.instance_args import Whereabouts
from pdctl.engine.config.process_log import hit_an_exception
from pdctl.engine.ipc.channels import Channels, keys_of, local_line
from pdctl.engine.ipc.messages import Died, Ready, StartupStage
from pdctl.engine.kvcache.allocator import PageAllocator, PageTable
from pdctl.engine.model.model_runner import ModelRunner
from pdctl.engine.model.parallel import Groups
from pdctl.engine.prefill.prefill_manager import PrefillManager
from pdctl.engine.prefill.registration import advice
from pdctl.engine.scheduler import rank_parts
from pdctl.engine.scheduler.loop import Scheduler
from pdctl.engine.scheduler.rank_mailbox import Mailbox
from pdctl.engine.scheduler.rank_parts import Sizing, use_threads
from pdctl.engine.scheduler.resources import MetadataSlots, Resources
from pdctl.engine.scheduler.role import RoleSwitch
from pdctl.errors import NotReadyError, PdctlError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.scheduler.rank_parts import Manager
    from pdctl.engine.scheduler.role import SchedulerRole

log = logging.getLogger("pdctl.engine")

REGISTRATION_LOOK = 0.5  # seconds between checks whether it was given up before the deadline
REGISTRATION_DEADLINE = 60.0  # seconds; sglang 0.5.23 gives up after five attempts, about 15 s plus their timeouts


def serve(args: ServerArgs, here: Whereabouts, ipc_dir: Path, dist_init: str) -> int:
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
            kin = [other for other in Whereabouts.all(args.shape) if other.replica == here.replica]
            mailbox.join({other.rank.world_rank: local_line(ipc_dir, *other) for other in kin})
        with Rank(args, here, mailbox, dist_init) as rank:
            rank.run()
        return 0
    except (CheckpointError, NotReadyError, UsageError) as error:
        log.error("Start-up failed: %s. %s", error.message, error.fix)
        _last_words(mailbox, here, "; ".join(filter(None, (error.message, error.fix))))
        return 1
    except Exception as error:  # noqa: BLE001  # report whatever ends this rank
        hit_an_exception(log, "Scheduler", error)
        _last_words(mailbox, here, f"{type(error).__name__}: {error}")
        return 1
    finally:
        mailbox.close()


def _last_words(mailbox: Mailbox, here: Whereabouts, reason: str) -> None:
    rank_processes.tell_end_reason(reason)
    dp_rank, pp_rank, tp_rank = here.key
    mailbox.send(Died(tp_rank, dp_rank, reason, pp_rank))


class Rank:
    """One rank of an instance, from its first log line to its last."""

    def __init__(self, args: ServerArgs, here: Whereabouts, mailbox: Mailbox, dist_init: str) -> None:
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
        self._groups = Groups.join(
            args.shape, here.rank.tp_rank, here.rank.pp_rank, sizing.device, f"tcp://{dist_init}", args.dist_timeout
        )
        self._sizing = sizing = sizing.agreed(self._groups)
        self._transport = rank_parts.transport(args, sizing)
        self._pool = rank_parts.pool(sizing, self._transport)
        runner = self._load(config)
        self._resources = self._allocate(config, runner)
        self._manager = self._new_manager()

    def _new_manager(self) -> Manager | None:
        return rank_parts.manager(
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
        return rank_parts.role(self._resources, self._manager)

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
