"""Choose the transport for `--disaggregation-transfer-backend`, and its network interface."""

from __future__ import annotations

import array
import ipaddress
import logging
import os
import socket
import struct
import sys
from pathlib import Path

from pdctl.engine.transfer import nixl
from pdctl.engine.transfer.fake import FakeTransport
from pdctl.engine.transfer.mooncake import MooncakeTransport
from pdctl.engine.transfer.shm import ShmTransport
from pdctl.engine.transfer.transport import TransferError, Transport
from pdctl.loopback import is_loopback

SPELLINGS = {"mooncake_tcp": "mooncake"}  # SGLang's

log = logging.getLogger("pdctl.engine")
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
NET_DEVICES = "UCX_NET_DEVICES"
TRANSPORTS = "UCX_TLS"
ADAPTIVE = "UCX_ADAPTIVE_PROGRESS"  # n: also poll interfaces that no endpoint uses
PID_NAMESPACE = Path("/proc/self/ns/pid")
FIRST_PID_NAMESPACE = "pid:[4026531836]"  # linux/proc_ns.h, PROC_PID_INIT_INO
SIOCGIFCONF = 0x8912  # linux/sockios.h
IFREQ = 40  # bytes, sizeof(struct ifreq) with 64-bit pointers; the name takes 16, the IPv4 address is at offset 20
ROOM = 1024 * IFREQ
INET6 = Path("/proc/net/if_inet6")
INFINIBAND = Path("/sys/class/infiniband")


def choose(backend: str, same_host: bool, gpu: bool = False) -> str:
    """Return the name of a transport. `auto` is nixl if it imports (Linux wheels only), else shm, and is logged."""
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
    """Return the transport for a rank that peers reach at `rank_ip`; loopback means that all peers are on this host.

    `lanes` is the number of threads that will post.
    """
    same_host = is_loopback(rank_ip)
    bind_ucx(rank_ip)
    if same_host and not gpu and sees_all_processes():
        os.environ.setdefault(TRANSPORTS, "^tcp")  # shared memory carries what cma does not, so nothing has to listen
    if same_host:  # if it listens anyway, it closes connections that strangers left there at only 24 a second
        os.environ.setdefault(ADAPTIVE, "n")
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


def interface_of(ip: str) -> str:
    """Return the interface that holds `ip`, as the kernel names it; empty if none does or this is not Linux."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    try:
        return _inet6(address.packed.hex()) if address.version == 6 else _inet(address.packed)
    except OSError:
        return ""


def _inet(packed: bytes) -> str:
    import fcntl

    found = array.array("B", bytes(ROOM))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        asked = struct.pack("iL", ROOM, found.buffer_info()[0])
        length = struct.unpack("iL", fcntl.ioctl(probe, SIOCGIFCONF, asked))[0]
    table = found.tobytes()[:length]
    for at in range(0, length, IFREQ):
        if table[at + 20 : at + 24] == packed:
            return table[at : at + 16].partition(b"\0")[0].decode().partition(":")[0]  # for an alias, its interface
    return ""


def _inet6(packed: str) -> str:
    for line in INET6.read_text(encoding="ascii").splitlines():
        words = line.split()
        if words[0] == packed:
            return words[-1]
    return ""


def bind_ucx(ip: str) -> None:
    """Make UCX listen only where peers reach this rank. A UCX_NET_DEVICES that is already set is kept.

    UCX 1.20: its TCP transport listens on the address of each device it may use, all of them by default. RDMA devices
    do not listen; they stay in the list, or UCX would not use them. Call this before UCX creates its first context.
    """
    name = interface_of(ip)
    if name and not os.environ.get(NET_DEVICES):
        os.environ[NET_DEVICES] = ",".join([name, *([] if is_loopback(ip) else rdma_ports())])


def bind_gloo(ip: str) -> None:
    """Make gloo connect the ranks of an instance over the interface of `ip`, an IPv6 address; else it is left alone.

    Gloo looks up the host's name and, where that fails, takes 127.0.0.1, which a host without IPv4 does not have.
    """
    name = interface_of(ip) if ":" in ip else ""
    if name:
        os.environ.setdefault(GLOO_INTERFACE, name)


def sees_all_processes() -> bool:
    """Return whether process ids of all peers on this host are valid in this process.

    Containers of one pod share loopback but not process ids; over loopback, only TCP connects them.
    """
    try:
        return str(PID_NAMESPACE.readlink()) == FIRST_PID_NAMESPACE
    except OSError:
        return False


def rdma_ports() -> list[str]:
    """Return the RDMA ports as UCX names them: `mlx5_0:1`."""
    return sorted(f"{port.parent.parent.name}:{port.name}" for port in INFINIBAND.glob("*/ports/*"))
