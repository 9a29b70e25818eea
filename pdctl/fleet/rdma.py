"""RDMA devices of this host, from sysfs alone: /sys/class/infiniband as Linux 5.x and 6.x lay it out."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pdctl.fleet.facts import RdmaDevice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLASS = "class/infiniband"
MAX_GIDS = 256  # entries of a port's table
NO_GID = frozenset("0:")


def devices(sysfs: Path) -> tuple[RdmaDevice, ...]:
    try:
        folders = sorted((sysfs / CLASS).iterdir())
    except OSError:
        return ()
    return tuple(map(_device, folders))


def visible(sysfs: Path) -> bool:
    return (sysfs / CLASS).is_dir()


def _device(folder: Path) -> RdmaDevice:
    port = folder / "ports" / "1"
    return RdmaDevice(
        name=folder.name,
        state=_line(port / "state").rpartition(": ")[2],  # "4: ACTIVE"
        link_layer=_line(port / "link_layer"),
        rate=_line(port / "rate"),
        gids=tuple(_gids(port)),
        mtu=_mtu(folder),
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


def _mtu(folder: Path) -> int | None:
    """Of the network interface on the same card, bytes; None without one."""
    with contextlib.suppress(OSError, ValueError):
        for interface in sorted((folder / "device" / "net").iterdir()):
            return int(_line(interface / "mtu"))
    return None


def _line(file: Path) -> str:
    """Empty where the kernel has no such attribute or refuses to read it (types of unused GIDs give EINVAL)."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
