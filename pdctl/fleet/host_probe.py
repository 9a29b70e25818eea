"""Probe the host doctor runs on, through /proc, /sys and rtnetlink; nothing is changed."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines.kinds import PACKAGES as PACKAGES_SERVED
from pdctl.fleet import listeners
from pdctl.fleet.observations import DiskSpace, Host, Package, ProcessLimits, RdmaDevice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pdctl.fleet.observations import ObservedEngine

# Variables that determine how SGLang's PD, NIXL/UCX, Mooncake and the collectives behave.
PREFIXES = ("UCX_", "NIXL_", "MC_", "MOONCAKE_", "SGLANG_", "NCCL_", "GLOO_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE")
SECRET = ("KEY", "TOKEN", "PASSWORD", "SECRET", "CREDENTIAL")
PACKAGES = (
    "pdctl",
    *PACKAGES_SERVED,
    "sgl-kernel",
    "nixl",
    "nixl-cu12",
    "nixl-cu13",
    "mooncake-transfer-engine",
    "torch",
)
PEERMEM = ("nvidia_peermem", "nv_peer_mem")
OPEN_DRIVER = "Open Kernel Module"
ROOT = Path("/")
PROC = Path("/proc")
NOTHING: Mapping[str, str] = MappingProxyType({})
UNLIMITED_FILES = 1 << 30  # stands for an unlimited RLIMIT_NOFILE
CLASS = "class/infiniband"
MAX_GIDS = 256  # entries in a port's table
NO_GID = frozenset("0:")
RTM_NEWADDR, RTM_GETADDR = 20, 22
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 1, 0x300
IFA_ADDRESS, IFA_LOCAL = 1, 2
HEAD = struct.Struct("=IHHII")  # length, type, flags, sequence, port
IFADDR = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
ATTRIBUTE = struct.Struct("=HH")  # length, type
READ = 64 * 1024
PATIENCE = 1.0  # seconds


def probe_host(
    ports: Collection[int],
    environ: Mapping[str, str],
    *,
    engines: Iterable[ObservedEngine] = (),
    packages: bool = False,
    own: Mapping[int, str] = listeners.NOBODY,
    folders: Mapping[str, str] = NOTHING,
    root: Path = ROOT,
) -> Host:
    """Facts about this host. `ports`: those to check. `engines`: whose clocks to compare with ours.

    `packages`: also read installed versions, which takes 0.1 s. `own`: pid → instance, for processes of the run under
    examination. `folders`: where that run writes, each with its supervisor's message if that fails. `root`: where
    sys/ and proc/driver/ are found.
    """
    return Host(
        name=socket.gethostname(),
        addresses=addresses(),
        busy=MappingProxyType(dict(listeners.holders(ports, own))),
        rdma=devices(root / "sys"),
        peermem=any((root / "sys/module" / name).is_dir() for name in PEERMEM),
        gpus=_gpus(root),
        packages=_packages() if packages else (),
        environ=MappingProxyType(_without_secrets(environ)),
        clock_offset=_clock_offset(engines),
        dma_buf=_dma_buf(root),
        stopped=listeners.stopped(own),
        processes=tuple(processes(own)),
        disks=tuple(disks(folders)),
    )


def processes(own: Mapping[int, str]) -> Iterator[ProcessLimits]:
    """The limits and open files of each process that still exists."""
    closing = listeners.closing_sockets() if own else frozenset()
    for pid, instance in own.items():
        with contextlib.suppress(OSError):
            limits = (PROC / str(pid) / "limits").read_text(encoding="ascii", errors="replace")
            files, memlock = (_soft(limits, name) for name in ("Max open files", "Max locked memory"))
            sockets = listeners.open_files(pid)
            yield ProcessLimits(
                instance,
                pid,
                files=UNLIMITED_FILES if files is None else files,
                memlock=memlock,
                open=None if sockets is None else len(sockets),
                closing=0 if sockets is None else sum(inode in closing for inode in sockets),
            )


def _soft(limits: str, name: str) -> int | None:
    """The soft limit from a line of /proc/PID/limits (name, soft limit, hard limit, unit); None: unlimited."""
    found = re.search(rf"^{name} +(\d+) ", limits, re.MULTILINE)
    return int(found[1]) if found else None


def disks(folders: Mapping[str, str]) -> Iterator[DiskSpace]:
    """The space on the filesystems under `folders`, each once."""
    seen: set[int] = set()
    for folder, lost in sorted(folders.items(), key=lambda one: not one[1]):
        with contextlib.suppress(OSError):
            device, space = Path(folder).stat().st_dev, os.statvfs(folder)
            if device not in seen:
                seen.add(device)
                unit = space.f_frsize
                free = space.f_bavail * unit
                yield DiskSpace(folder, free, space.f_blocks * unit, space.f_favail, space.f_files, lost)


def _gpus(root: Path) -> tuple[str, ...]:
    """The GPUs' models in PCI order, as the NVIDIA driver names them; () without that driver."""
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted((root / "proc/driver/nvidia/gpus").iterdir()):
            text = (folder / "information").read_text(encoding="utf-8", errors="replace")
            fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            found.append(fields.get("Model", "").strip())
    return tuple(found)


def _dma_buf(root: Path) -> bool | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return OPEN_DRIVER in text


def _packages() -> tuple[Package, ...]:
    from importlib import metadata

    found = []
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(Package(name, metadata.version(name)))
    return tuple(found)


def _without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The relevant variables, with secret values hidden because facts end up in reports."""
    names = sorted(name for name in environ if name.startswith(PREFIXES))
    return {name: "(hidden)" if any(word in name for word in SECRET) else environ[name] for name in names}


def _clock_offset(engines: Iterable[ObservedEngine]) -> float | None:
    """The largest clock offset of any engine, in seconds; None if none is known."""
    return max((engine.clock_offset for engine in engines if engine.clock_offset is not None), key=abs, default=None)


def devices(sysfs: Path) -> tuple[RdmaDevice, ...]:
    try:
        folders = sorted((sysfs / CLASS).iterdir())
    except OSError:
        return ()
    return tuple(map(_device, folders))


def _device(folder: Path) -> RdmaDevice:
    port = folder / "ports" / "1"
    return RdmaDevice(
        name=folder.name,
        state=_line(port / "state").rpartition(": ")[2],  # "4: ACTIVE"
        link_layer=_line(port / "link_layer"),
        rate=_line(port / "rate"),
        gids=tuple(_gids(port)),
    )


def _gids(port: Path) -> Iterator[tuple[int, str, str]]:
    """Index, value and type ("RoCE v2", "IB/RoCE v1") of the entries in use; the unused ones are all zero."""
    for index in range(MAX_GIDS):
        file = port / "gids" / str(index)
        value = _line(file)
        if not value and not file.exists():
            return
        if value and not NO_GID.issuperset(value):
            yield index, value, _line(port / "gid_attrs" / "types" / str(index))


def _line(file: Path) -> str:
    """The file's text, "" if the kernel lacks the attribute or refuses to read it (types of unused GIDs: EINVAL)."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def addresses() -> tuple[str, ...]:
    """This host's IPv4 and IPv6 addresses in the kernel's order, including loopback; () without rtnetlink."""
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
    """Our address: on a point-to-point interface, IFA_ADDRESS is the other end's and IFA_LOCAL is ours."""
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
