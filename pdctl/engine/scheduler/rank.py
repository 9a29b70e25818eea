"""Builds one rank, step by step as SGLang does (group, weights, pool, KV manager), and runs its event loop."""

from __future__ import annotations

import logging
import time
import traceback
from typing import TYPE_CHECKING

import numpy as np

from pdctl.engine.cache.allocator import PageAllocator
from pdctl.engine.cache.metadata import MetadataBuffers
from pdctl.engine.cache.table import PageTable
from pdctl.engine.disaggregation.prefill import PrefillManager
from pdctl.engine.messages import Died, Ready, Stage
from pdctl.engine.model.config import ModelConfig
from pdctl.engine.model.parallel import Groups
from pdctl.engine.model.runner import ModelRunner
from pdctl.engine.scheduler import parts
from pdctl.engine.scheduler.loop import Scheduler
from pdctl.engine.scheduler.mailbox import Mailbox
from pdctl.engine.scheduler.resources import Resources
from pdctl.engine.scheduler.sizing import Sizing, use_threads

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.engine.args import ServerArgs

log = logging.getLogger("pdctl.engine")

REGISTRATION_DEADLINE = 60.0  # seconds; sglang 0.5.23 gives up after five attempts, about 15 s plus their timeouts


def serve(args: ServerArgs, tp_rank: int, dp_rank: int, ipc_dir: Path, dist_port: int) -> int:
    """Serve until told to stop; returns the exit code. The reason of a death goes to the tokenizer manager first."""
    mailbox = Mailbox(ipc_dir, dp_rank, tp_rank, args.tp_size, log)
    try:
        with Rank(args, tp_rank, dp_rank, mailbox, dist_port) as rank:
            rank.run()
        return 0
    except Exception as error:  # noqa: BLE001  # a rank's last words, whatever ends it
        log.error("Scheduler hit an exception: %s", traceback.format_exc())  # sglang's line
        mailbox.send(Died(tp_rank, dp_rank, f"{type(error).__name__}: {error}"))
        return 1
    finally:
        mailbox.close()


class Rank:
    """One rank of an instance, from its first log line to its last."""

    def __init__(self, args: ServerArgs, tp_rank: int, dp_rank: int, mailbox: Mailbox, dist_port: int) -> None:
        self._args = args
        self._mailbox = mailbox
        self._tp_rank = tp_rank
        self._dp_rank = dp_rank
        self._began = time.perf_counter()
        use_threads(args)
        config = ModelConfig.from_dir(args.model_path)
        config.check_tp(args.tp_size)
        self._sizing = sizing = Sizing.resolve(args, config)
        self._groups = Groups.join(args.shape, tp_rank, 0, sizing.device, f"tcp://127.0.0.1:{dist_port}")
        self._transport = parts.transport(args, sizing)
        self._pool = parts.pool(sizing, self._transport)
        runner = self._load(config)
        self._resources = self._allocate(config, runner)
        self._manager = parts.manager(args, sizing, tp_rank, dp_rank, self._transport, mailbox.wake)

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
            metadata=MetadataBuffers(rows),
            eos=frozenset(config.eos_token_ids),
            limit=sizing.context,
            capacity=sizing.tokens,
            dp_rank=self._dp_rank if args.dp_size > 1 else None,
            random=np.random.default_rng(args.random_seed),
        )

    def __enter__(self) -> Rank:
        return self

    def run(self) -> None:
        """Announce readiness, then serve."""
        if self._manager is not None:
            self._manager.start()
        if isinstance(self._manager, PrefillManager):
            self._register(self._manager)
        role = parts.role(self._resources, self._manager)
        self._mailbox.send(Ready(self._tp_rank, self._dp_rank, self._facts()))
        Scheduler(self._resources, role, self._mailbox).run()

    def _register(self, manager: PrefillManager) -> None:
        """Wait until the instance's bootstrap server knows this rank: without that no decode can find it."""
        began = time.perf_counter()
        if not manager.registered.wait(REGISTRATION_DEADLINE):
            address = f"{self._args.host}:{self._args.disaggregation_bootstrap_port}"
            reason = manager.registration_failure or "no answer"
            raise TimeoutError(f"not registered at bootstrap server {address} in {REGISTRATION_DEADLINE:g} s: {reason}")
        self._stage("bootstrap_registered", time.perf_counter() - began)

    def __exit__(self, *_: object) -> None:
        if self._manager is not None:
            self._manager.close()
        if self._transport is not None:
            self._transport.close()
        self._groups.close()

    def _stage(self, name: str, seconds: float) -> None:
        self._mailbox.send(Stage(self._tp_rank, self._dp_rank, name, seconds))

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
