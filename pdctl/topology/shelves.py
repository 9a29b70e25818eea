"""Topologies that go by a bare name: the site's own, then those that ship with pdctl."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import package_data, program

if TYPE_CHECKING:
    from collections.abc import Mapping

SITE = "PDCTL_TOPOLOGIES"  # a directory of the site's own topologies, looked at before the shipped ones


def known(environ: Mapping[str, str]) -> dict[str, Path]:
    """Every name with its file; `incidents/NAME` for one a directory down. Shipped ones lie in the wheel, or beside the
    package in a checkout."""
    package = package_data.PACKAGE.resolve()
    shipped = (package / "topologies", package.parent / "topologies")
    if program.FILE:
        shipped = (package_data.unpack(package_data.location("topologies")),) * 2
    site = [Path(environ[SITE])] if environ.get(SITE) else []
    found: dict[str, Path] = {}
    for shelf in (*site, *shipped):
        for file in sorted((*shelf.glob("*.yaml"), *shelf.glob("incidents/*.yaml"))):
            found.setdefault(file.relative_to(shelf).with_suffix("").as_posix(), file)
    return found
