"""Which network interface an address belongs to, and the devices that UCX may use for peers that come to it."""

from __future__ import annotations

import array
import ipaddress
import os
import socket
import struct
from pathlib import Path

NET_DEVICES = "UCX_NET_DEVICES"
SIOCGIFCONF = 0x8912  # linux/sockios.h
IFREQ = 40  # bytes, sizeof(struct ifreq) with pointers of 64 bits; the name takes 16, the IPv4 address stands at 20
ROOM = 1024 * IFREQ
INET6 = Path("/proc/net/if_inet6")
INFINIBAND = Path("/sys/class/infiniband")


def interface_of(ip: str) -> str:
    """The interface that holds `ip`, as the kernel names it; empty where none does or this is not Linux."""
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
            return table[at : at + 16].partition(b"\0")[0].decode().partition(":")[0]  # of an alias, its interface
    return ""


def _inet6(packed: str) -> str:
    for line in INET6.read_text(encoding="ascii").splitlines():
        words = line.split()
        if words[0] == packed:
            return words[-1]
    return ""


def bind_ucx(ip: str) -> None:
    """Let UCX listen where peers reach this rank, and nowhere else. Whoever set UCX_NET_DEVICES knows better.

    UCX 1.20: its TCP transport listens on the address of each device it may use, all of them by default. RDMA devices
    are no listeners; they stay, or UCX would not use them. To be called before UCX makes its first context.
    """
    name = interface_of(ip)
    if name and not os.environ.get(NET_DEVICES):
        loopback = ipaddress.ip_address(ip.partition("%")[0]).is_loopback
        os.environ[NET_DEVICES] = ",".join([name, *([] if loopback else rdma_ports())])


def rdma_ports() -> list[str]:
    """As UCX names them: `mlx5_0:1`."""
    return sorted(f"{port.parent.parent.name}:{port.name}" for port in INFINIBAND.glob("*/ports/*"))
