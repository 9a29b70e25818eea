"""Addresses of this host's network interfaces, asked of the kernel itself (rtnetlink, linux/rtnetlink.h)."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

RTM_NEWADDR, RTM_GETADDR = 20, 22
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 1, 0x300
IFA_ADDRESS, IFA_LOCAL = 1, 2
HEAD = struct.Struct("=IHHII")  # length, type, flags, sequence, port
IFADDR = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
ATTRIBUTE = struct.Struct("=HH")  # length, type
READ = 64 * 1024
PATIENCE = 1.0  # seconds


def addresses() -> tuple[str, ...]:
    """IPv4 and IPv6, in the kernel's order, loopback included; () where there is no rtnetlink."""
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        return ()
    try:
        with socket.socket(family, socket.SOCK_RAW, 0) as kernel:
            kernel.settimeout(PATIENCE)
            size = HEAD.size + IFADDR.size
            kernel.send(HEAD.pack(size, RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, 1, 0) + IFADDR.pack(0, 0, 0, 0, 0))
            return tuple(dict.fromkeys(_answers(kernel)))
    except OSError:
        return ()


def _answers(kernel: socket.socket) -> Iterator[str]:
    while True:
        data = kernel.recv(READ)
        while len(data) >= HEAD.size:
            length, kind, *_ = HEAD.unpack_from(data)
            if kind in (NLMSG_DONE, NLMSG_ERROR) or length < HEAD.size:
                return
            if kind == RTM_NEWADDR:
                yield from _address(data[HEAD.size : length])
            data = data[_aligned(length) :]


def _address(body: bytes) -> Iterator[str]:
    """Of a point-to-point interface IFA_ADDRESS is the other end's, IFA_LOCAL ours."""
    family = body[0]
    found: dict[int, bytes] = {}
    rest = body[IFADDR.size :]
    while len(rest) >= ATTRIBUTE.size:
        length, kind = ATTRIBUTE.unpack_from(rest)
        if length < ATTRIBUTE.size:
            break
        found[kind] = rest[ATTRIBUTE.size : length]
        rest = rest[_aligned(length) :]
    raw = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS)
    if raw and family in (socket.AF_INET, socket.AF_INET6):
        yield socket.inet_ntop(family, raw)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
