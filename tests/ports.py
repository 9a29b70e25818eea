"""Ports for what tests start: never one that another test, another worker or an outgoing connection may get meanwhile.

A port found by binding to 0 is anybody's again once it is closed. These come in turn from below the range that the
kernel gives out by itself, and one counter serves all test processes of a user.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from pathlib import Path

HOST = "127.0.0.1"
# below what Linux gives out (32768), the engines’ defaults (30000) and what the Slurm tests take (20000)
FIRST, LAST = 10_000, 19_900
COUNTER = Path(tempfile.gettempdir()) / f"pdctl-test-ports-{os.getuid()}"


def free_block(count: int) -> int:
    """The first of `count` consecutive loopback ports that nobody listens on."""
    with open(os.open(COUNTER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        written = counter.read()
        port = int(written) if written.isdecimal() else FIRST
        for _ in range(LAST - FIRST):
            if not FIRST <= port <= LAST - count:
                port = FIRST
            if all(_free(port + offset) for offset in range(count)):
                break
            port += 1
        else:
            raise RuntimeError(f"no {count} free ports between {FIRST} and {LAST}")
        counter.seek(0)
        counter.truncate()
        counter.write(str(port + count))
    return port


def free_port() -> int:
    return free_block(1)


def free_ports(count: int) -> list[int]:
    first = free_block(count)
    return list(range(first, first + count))


def _free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        probe.bind((HOST, port))
        return True
    return False
