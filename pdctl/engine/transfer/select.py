"""Which transport `--disaggregation-transfer-backend` means on this machine."""

from __future__ import annotations

import ipaddress
import logging
import sys

from pdctl.engine.transfer import nixl
from pdctl.engine.transfer.fake import FakeTransport
from pdctl.engine.transfer.interface import bind_ucx
from pdctl.engine.transfer.mooncake import MooncakeTransport
from pdctl.engine.transfer.shm import ShmTransport
from pdctl.engine.transfer.transport import TransferError, Transport

SPELLINGS = {"mooncake_tcp": "mooncake"}  # SGLang's

log = logging.getLogger("pdctl.engine")


def choose(backend: str, same_host: bool, gpu: bool = False) -> str:
    """The name of a transport. `auto` is nixl where it imports (Linux wheels only), else shm, and says so."""
    if backend != "auto":
        return SPELLINGS.get(backend, backend)
    try:
        nixl.load(cma_only=same_host and not gpu)
    except ImportError as error:
        if gpu:
            raise TransferError(f"a KV pool in GPU memory needs nixl: {error}") from None
        log.warning("KV transfer backend: shm (%s: %s); prefill and decode must share this host", sys.platform, error)
        return "shm"
    log.info("KV transfer backend: nixl")
    return "nixl"


def create(backend: str, rank_ip: str, gpu: bool = False, lanes: int = 1) -> Transport:
    """The transport for a rank that its peers reach at `rank_ip`; on a loopback address all peers are on this host.

    `lanes`: how many threads will post.
    """
    same_host = ipaddress.ip_address(rank_ip).is_loopback
    bind_ucx(rank_ip)
    name = choose(backend, same_host, gpu)
    if name == "nixl":
        return nixl.NixlTransport(same_host, lanes)
    if name == "shm":
        return ShmTransport()
    if name == "mooncake":
        return MooncakeTransport(rank_ip)
    if name == "fake":
        return FakeTransport()
    raise TransferError(f"unknown KV transfer backend {name!r}: nixl, shm, mooncake or fake")
