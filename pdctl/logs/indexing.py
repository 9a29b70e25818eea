"""Building the index of rooms for many parts: several processes where there is enough to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.logs import scan
from pdctl.logs.rooms import PARALLEL
from pdctl.logs.table import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdctl.logs.part import Part


def build(
    parts: Sequence[Part], environ: Mapping[str, str], progress: Callable[[int, int], None] | None = None
) -> tuple[Part, ...]:
    """Brings the table of every part up to date; returns the parts that have one now."""
    kept = [part for part in parts if part.spool is None]
    total = sum(part.size for part in kept)
    workers = min(scan.threads(total), len(kept))
    if total < PARALLEL or workers < 2:
        return _here(kept, environ, total, progress)
    from concurrent.futures import ProcessPoolExecutor, as_completed  # late: it takes a while to load
    from multiprocessing import get_context

    plain = dict(environ)
    done, built = 0, set()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        largest = sorted(kept, key=lambda part: -part.size)
        waiting = {pool.submit(_one, part, plain): part for part in largest}
        for future in as_completed(waiting):
            part = waiting[future]
            done += part.size
            if future.result():
                built.add(part)
            if progress:
                progress(done, total)
    return tuple(part for part in kept if part in built)


def _one(part: Part, environ: Mapping[str, str]) -> bool:
    return Tables(environ, True).build(part)


def _here(
    parts: Sequence[Part], environ: Mapping[str, str], total: int, progress: Callable[[int, int], None] | None
) -> tuple[Part, ...]:
    done = 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        if progress:
            progress(min(done, total), total)

    tables = Tables(environ, True)
    return tuple(part for part in parts if tables.build(part, step))
