"""What an engine reports about itself over HTTP, translated into SGLang's keys, which doctor compares.

SGLang's own comes first; modules named in $PDCTL_ENGINES may bring one as SURFACE (docs/new-engine.md).
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pdctl.engines import base
from pdctl.engines.sglang.endpoints import paths
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Object = Mapping[str, Any]  # an object of a JSON document


class Surface(NamedTuple):
    """An engine's HTTP paths, "" or () if it has none.

    info: what it is and was started with; the first path that does not answer 404 counts. read: that answer in the
    keys of SGLang's /server_info, {} if it is not this engine's; without `version`, which is SGLang's release.
    """

    info: tuple[str, ...]
    read: Callable[[Object], Object]
    model: tuple[str, ...] = ()
    loads: str = ""
    metrics: str = ""
    health: str = "/health"
    health_generate: str = ""


SAYS = frozenset({"disaggregation_mode", "model_path", "tp_size", "version"})  # every release reports one of these


def _sglang(said: Object) -> Object:
    """The object itself, or {} if it is another program's (mini_lb's, which lists its workers; a dashboard's)."""
    return {} if SAYS.isdisjoint(said) else said


(_LOADS, *_), (_METRICS,), (_HEALTH,), (_GENERATE,) = map(paths, ("loads", "metrics", "health", "health_generate"))
SGLANG = Surface(
    paths("server_info"), _sglang, paths("model_info"), _LOADS, _METRICS, _HEALTH, _GENERATE,
)  # fmt: skip


def surfaces() -> tuple[Surface, ...]:
    """The surfaces, in the order in which they are tried. Raise UsageError if a module cannot be imported."""
    return _all(os.environ.get(base.VARIABLE, ""))


@lru_cache(maxsize=4)
def _all(modules: str) -> tuple[Surface, ...]:
    return (SGLANG, *base.brought(modules, "SURFACE", Surface))
