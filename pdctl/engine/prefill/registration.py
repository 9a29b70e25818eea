"""A prefill rank announces itself to its instance's bootstrap server, with SGLang's retry rules (0.5.23)."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import threading
from typing import TYPE_CHECKING

from pdctl.engine.kv_link.bootstrap_client import FOLLOW_ROOM, BootstrapError, RankKey, RankRow
from pdctl.engine.kv_link.kv_frames import join_host_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.kv_link.kv_loop import KvLoop
    from pdctl.engine.kv_link.kv_manager import DisaggConfig

log = logging.getLogger("pdctl.engine")

ATTEMPTS = 5
LONGEST_DELAY = 30.0
# A server bound to all interfaces is reached on the loopback address of the same family (sglang 0.5.18+).
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}

NO_NETWORK = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EADDRNOTAVAIL, errno.EACCES}
)


def delay(first: float, attempts: int, jitter: float) -> float:
    """Return the seconds to wait after `attempts` attempts; `jitter` in [0, 1) varies the last quarter of them."""
    return min(first * float(2 ** (attempts - 1)), LONGEST_DELAY) * (0.75 + 0.25 * jitter)


def server_address(config: DisaggConfig) -> str:
    return join_host_port(WILDCARDS.get(config.bootstrap_host, config.bootstrap_host), config.bootstrap_port)


def advice(error: BootstrapError | None) -> str:
    """What helps a rank whose registration failed with `error`; None: no attempt has ended."""
    number = error.errno if error is not None else 0
    if number in NO_NETWORK:
        return "bring up the network of this host (ip address; ip route), or give --host an address that it reaches"
    if number < 0:
        return "give --host an address, or a name that can be looked up here"
    if number == errno.ECONNREFUSED:
        return "look in the lines before this one for why the bootstrap server of this instance does not listen"
    return "look for what else listens on --disaggregation-bootstrap-port"


def rank_row(config: DisaggConfig, rank_port: int, instance: str | None = None) -> RankRow:
    return RankRow(
        attn_tp_size=config.attn_tp_size,
        attn_tp_rank=config.attn_tp_rank,
        attn_cp_size=1,
        attn_cp_rank=0,
        attn_dp_size=config.attn_dp_size,
        attn_dp_rank=config.attn_dp_rank,
        pp_size=config.pp_size,
        pp_rank=config.pp_rank,
        system_dp_size=config.dp_size,
        system_dp_rank=config.dp_rank,
        rank_ip=config.rank_ip,
        rank_port=rank_port,
        page_size=config.page_size,
        kv_cache_dtype=config.kv_dtype,
        load_balance_method=FOLLOW_ROOM if config.follows_room else config.load_balance_method,
        prefill_http_port=config.http_port or None,
        instance_id=instance,
    )


class Registration:
    """`done` is set when the server has taken the row; `failure` says why it never will. Runs on the manager's loop.

    error: of the latest attempt, if that failed.

    Afterwards it checks regularly that the row is still there: a restarted server has lost all rows.
    """

    def __init__(self, loop: KvLoop, config: DisaggConfig, instance: str, changed: Callable[[], None]) -> None:
        self.done = threading.Event()
        self.failure = ""
        self.error: BootstrapError | None = None
        self._loop = loop
        self._address = server_address(config)
        self._row = rank_row(config, loop.port, instance)
        self._key = RankKey(config.dp_group, 0, config.attn_tp_rank, config.pp_rank)
        self._first_delay = config.registration_delay
        self._interval = config.heartbeat_interval
        self._changed = changed

    def begin(self) -> None:
        self._loop.spawn(self._run(), self._give_up)

    async def _run(self) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._loop.bootstrap.register_rank(self._address, self._row)
                break
            except BootstrapError as error:
                self.error = error
                log.warning("Prefill register attempt %d/%d failed: %s", attempt, ATTEMPTS, error.logged)
                if attempt == ATTEMPTS:
                    self._give_up(error.logged)
                    return
            await asyncio.sleep(delay(self._first_delay, attempt, random.random()))
        log.info("Prefill successfully registered to bootstrap server.")
        self.done.set()
        self._changed()
        await self._keep()

    def _give_up(self, why: str) -> None:
        self.failure = f"Prefill instance failed to register to bootstrap server after {ATTEMPTS} retries"
        log.error("%s: %s", self.failure, why)
        self._changed()

    async def _keep(self) -> None:
        """Put the row back whenever the server has lost it."""
        seen = False  # the server has answered with our row since we last put it there
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self._loop.bootstrap.rank_endpoint(self._address, self._key)
                seen = True
            except BootstrapError as error:
                # 503 may mean that other rows are missing; registering twice does no harm.
                if error.status in (404, 503) and await self._put_back() and seen:
                    log.info("Prefill successfully registered to bootstrap server.")
                    seen = False

    async def _put_back(self) -> bool:
        try:
            await self._loop.bootstrap.register_rank(self._address, self._row)
        except BootstrapError:
            return False
        return True
