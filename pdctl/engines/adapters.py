"""All adapters and their rows: the shipped ones, and those of the modules named in $PDCTL_ENGINES."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from pdctl.engines import base
from pdctl.engines.base import Adapter, Speaker
from pdctl.engines.pdctl import own_adapters
from pdctl.engines.routers import router_adapters
from pdctl.engines.sglang import sglang_adapter
from pdctl.engines.sglang.logs import life

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.engines.base import Hint, Row
    from pdctl.engines.sign import Sign

# In the order in which their rows are tried: of rows that begin alike, the narrower comes first.
SHIPPED: tuple[Adapter, ...] = (
    own_adapters.ROUTER, own_adapters.ENGINE, own_adapters.LAUNCHER, sglang_adapter.ENGINE,
    router_adapters.SMG, router_adapters.SGLANG_ROUTER, router_adapters.MINI_LB,
)  # fmt: skip
ROWS: tuple[Row, ...] = tuple(row for one in SHIPPED for row in one.rows)


def adapters() -> tuple[Adapter, ...]:
    """The adapters of $PDCTL_ENGINES, then the shipped ones. Raise UsageError if a module brings no adapter."""
    return _all(os.environ.get(base.VARIABLE, ""))


def rows() -> tuple[Row, ...]:
    return tuple(row for one in adapters() for row in one.rows)


def adapter(speaker: Speaker | None) -> Adapter | None:
    return _by_speaker(os.environ.get(base.VARIABLE, "")).get(speaker)


def hints(speaker: Speaker, row: str) -> tuple[Hint, ...]:
    """The details of a speaker's row that distinguish its releases."""
    return _hints(os.environ.get(base.VARIABLE, "")).get((speaker, row), ())


def speaks(speaker: Speaker, other: Speaker) -> bool:
    """Whether a log of `speaker` may have lines of `other`: itself, the launcher, or one whose lines it shares."""
    known = adapter(speaker)
    return other in (speaker, Speaker.LAUNCHER) or (known is not None and known.shares is other)


def speaks_any(speakers: frozenset[Speaker], other: Speaker) -> bool:
    """Whether a log of one of `speakers` may have lines of `other`."""
    return other in speakers or any(speaks(speaker, other) for speaker in speakers)


def literal(sign: Sign) -> str:
    """The constant part of SGLang's line that proves `sign`."""
    return next(row.literal.decode() for row in life.ROWS if sign in row.proves)


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
