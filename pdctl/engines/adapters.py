"""All adapters: the shipped ones, and those of the modules that $PDCTL_ENGINES names."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from pdctl.engines import base
from pdctl.engines.base import Adapter
from pdctl.engines.pdctl import adapter as own
from pdctl.engines.routers import adapters as routers
from pdctl.engines.row import Speaker
from pdctl.engines.sglang import adapter as sglang

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.engines.base import Hint
    from pdctl.engines.row import Row

# In the order in which their rows are tried: among rows that begin alike, the narrower first.
SHIPPED: tuple[Adapter, ...] = (
    own.ROUTER, own.ENGINE, own.LAUNCHER, sglang.ENGINE, routers.SMG, routers.SGLANG_ROUTER, routers.MINI_LB,
)  # fmt: skip
ROWS: tuple[Row, ...] = tuple(row for one in SHIPPED for row in one.rows)


def adapters() -> tuple[Adapter, ...]:
    """Those of $PDCTL_ENGINES in front of the shipped ones. Raises UsageError for a module that is none."""
    return _all(os.environ.get(base.VARIABLE, ""))


def rows() -> tuple[Row, ...]:
    return tuple(row for one in adapters() for row in one.rows)


def adapter(speaker: Speaker | None) -> Adapter | None:
    return _by_speaker(os.environ.get(base.VARIABLE, "")).get(speaker)


def hints(speaker: Speaker, row: str) -> tuple[Hint, ...]:
    """The details of this row of a speaker's that tell its releases apart."""
    return _hints(os.environ.get(base.VARIABLE, "")).get((speaker, row), ())


def speaks(speaker: Speaker, other: Speaker) -> bool:
    """Whether a log of `speaker` has lines of `other`: its own, its launcher's, and those whose words it shares."""
    known = adapter(speaker)
    return other in (speaker, Speaker.LAUNCHER) or (known is not None and known.shares is other)


@lru_cache(maxsize=4)
def _all(modules: str) -> tuple[Adapter, ...]:
    return (*(one for one in base.brought(modules, "ADAPTER") if isinstance(one, Adapter)), *SHIPPED)


@lru_cache(maxsize=4)
def _by_speaker(modules: str) -> Mapping[Speaker | None, Adapter]:
    return {one.speaker: one for one in _all(modules)}


@lru_cache(maxsize=4)
def _hints(modules: str) -> Mapping[tuple[Speaker, str], tuple[Hint, ...]]:
    found: dict[tuple[Speaker, str], tuple[Hint, ...]] = {}
    for one in _all(modules):
        for hint in one.hints:
            found[one.speaker, hint.row] = (*found.get((one.speaker, hint.row), ()), hint)
    return found
