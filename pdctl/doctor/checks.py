"""All checks there are. Loaded when a run begins, not before."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.doctor.check import Check


@lru_cache(maxsize=1)
def every() -> tuple[Check, ...]:
    from pdctl.doctor.live import checks as running
    from pdctl.doctor.static import checks as written

    return (*written.CHECKS, *running.CHECKS)
