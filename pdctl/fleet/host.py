"""The host doctor runs on: what a PD deployment needs of it, read from /proc, /sys and /dev; nothing is changed."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.fleet import listeners, nics, rdma
from pdctl.fleet.facts import Host, Package

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pdctl.fleet.facts import Engine

# Variables that decide how SGLang's PD, NIXL/UCX, Mooncake and the collectives behave.
PREFIXES = ("UCX_", "NIXL_", "MC_", "MOONCAKE_", "SGLANG_", "NCCL_", "GLOO_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE")
SECRET = ("KEY", "TOKEN", "PASSWORD", "SECRET", "CREDENTIAL")
PACKAGES = (
    "pdctl",
    "sglang",
    "sglang-router",
    "smg",
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
UNLIMITED_FILES = 1 << 30  # what an unlimited RLIMIT_NOFILE counts as


def look(
    ports: Collection[int],
    environ: Mapping[str, str],
    *,
    engines: Iterable[Engine] = (),
    packages: bool = False,
    own: Mapping[int, str] = listeners.NOBODY,
    root: Path = ROOT,
) -> Host:
    """`ports`: to be tried. `engines`: whose clocks are compared with ours. `packages`: 0.1 s more, versions installed.

    `own`: pid → instance, for processes of the run looked at. `root`: where sys/, dev/ and proc/driver/ are found.
    """
    return Host(
        name=socket.gethostname(),
        addresses=nics.addresses(),
        busy=MappingProxyType(dict(listeners.holders(ports, own))),
        checked_ports=tuple(sorted(set(ports))),
        memlock=_limit("RLIMIT_MEMLOCK"),
        nofile=_limit("RLIMIT_NOFILE") or UNLIMITED_FILES,
        shm_free=_free(root / "dev/shm"),
        rdma=rdma.devices(root / "sys"),
        rdma_visible=rdma.visible(root / "sys"),
        rdma_nodes=(root / "dev/infiniband").is_dir(),
        peermem=any((root / "sys/module" / name).is_dir() for name in PEERMEM),
        gpus=_gpus(root),
        packages=_packages() if packages else (),
        environ=MappingProxyType(_known(environ)),
        clock_offset=_clock_offset(engines),
        free_ports=listeners.free_ephemeral(),
        dma_buf=_dma_buf(root),
        stopped=listeners.stopped(own),
    )


def _limit(name: str) -> int | None:
    """The soft limit; None: unlimited."""
    import resource

    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def _free(folder: Path) -> int | None:
    try:
        stats = os.statvfs(folder)
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize


def _gpus(root: Path) -> tuple[str, ...]:
    """Models, in PCI order, as the NVIDIA driver names them; () without that driver."""
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


def _known(environ: Mapping[str, str]) -> dict[str, str]:
    """Values of secrets stay out: facts end up in reports."""
    names = sorted(name for name in environ if name.startswith(PREFIXES))
    return {name: "(hidden)" if any(word in name for word in SECRET) else environ[name] for name in names}


def _clock_offset(engines: Iterable[Engine]) -> float | None:
    """The engine whose clock differs most."""
    return max((engine.clock_offset for engine in engines if engine.clock_offset is not None), key=abs, default=None)
