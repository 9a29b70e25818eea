"""All rooms of all logs, in bounded memory: parts are scanned in parallel, then their records are merged."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.logs import room_scan, scan
from pdctl.logs.scan import words_before_room
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pdctl.engines.base import Row
    from pdctl.engines.identify import Identity
    from pdctl.logs.part import LogPart
    from pdctl.logs.room_scan import RoomScanResult, RoomScanTask

_DEBUG = "--log-level debug"


class RowsOfInstance(NamedTuple):
    """What one log says about a room: the rows that name it, in the dialect's order."""

    instance: str
    role: str
    rows: tuple[Row, ...]


class LineKinds:
    """Shared by all rooms about which the same logs say the same, so that conclusions are drawn only once."""

    __slots__ = ("seen",)

    def __init__(self, seen: tuple[RowsOfInstance, ...]) -> None:
        self.seen = seen


class RoomSeen(NamedTuple):
    """first, last: epoch seconds of its lines; inf and -inf if none has a time. lines: how many name it."""

    room: int
    first: float
    last: float
    lines: int
    line_kinds: LineKinds


class ScannedPart(NamedTuple):
    """One task and the instance whose log it scans."""

    task: RoomScanTask
    instance: str


def anchors(rows: Iterable[Row], identity: Identity) -> tuple[bytes, ...]:
    """The words other than "room" that precede a room's number in rows that the log may contain."""
    found: dict[bytes, None] = {}
    for row in rows:
        text = words_before_room(row.pattern)
        usual = text.rstrip(b" =:\"'(").endswith(b"room")
        if text and row.phase is not None and not usual and possible(row, identity):
            found[text] = None
    return tuple(found)


def possible(row: Row, identity: Identity) -> bool:
    """Whether the row is compatible with what is known about the log."""
    if identity.role and row.role not in ("", identity.role):
        return False
    if identity.backend and row.backend not in ("", identity.backend):
        return False
    if (
        identity.level is not None
        and identity.level.value != "debug"
        and _DEBUG in (row.needs, f"--log-level {row.level.value}")
    ):
        return False
    since, until = row.span
    old = until is not None and identity.since is not None and until <= identity.since
    new = identity.until is not None and since >= identity.until
    return not old and not new


IN_MEMORY = 1 << 26  # bytes of logs whose records need no temporary file: a fraction of that, even of compressed ones


def merged_rooms(
    sources: Sequence[ScannedPart],
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
    without: Callable[[LogPart], None] | None = None,
) -> Iterator[RoomSeen]:
    """Every room, unordered. One pass over all parts; the records of large ones are kept in temporary files meanwhile.

    without: called, before the first room, with each part of which all was read and which has none of the task's
    `others`.
    """
    with contextlib.ExitStack() as stack:
        spilt = list(sources)
        if sum(_size(source.task) for source in sources) > IN_MEMORY:
            space = tempfile.TemporaryDirectory(prefix="pdctl-rooms-", dir=user_files.temporary_directory())
            directory = Path(stack.enter_context(space))
            spilt = [
                source._replace(task=source.task._replace(spill=str(directory / str(at))))
                for at, source in enumerate(sources)
            ]
        counted = _count([source.task for source in spilt], progress)
        for source, each in zip(spilt, counted, strict=True):
            for text in each.notes:
                if note:
                    note(text)
            whole = not each.notes and source.task.bounds == (0, source.task.part.size)
            if without and whole and not each.others:
                without(source.task.part)
        yield from _Merge(spilt, counted).rooms()


def _count(tasks: Sequence[RoomScanTask], progress: Callable[[int, int], None] | None) -> list[RoomScanResult]:
    total = sum(_size(task) for task in tasks)
    movable = [at for at, task in enumerate(tasks) if task.part.spool is None]
    workers = min(scan.thread_count(total), len(movable))
    if total < scan.PARALLEL or workers < 2:
        return _count_here(tasks, total, progress)
    from concurrent.futures import ProcessPoolExecutor, as_completed  # late: it takes a while to load
    from multiprocessing import get_context

    found: dict[int, RoomScanResult] = {}
    done = 0
    # spawn: a fork of a process with threads may inherit a lock that is never released.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        largest = sorted(movable, key=lambda at: -_size(tasks[at]))
        waiting = {pool.submit(room_scan.scan_rooms, tasks[at]): at for at in largest}
        for at, task in enumerate(tasks):
            if task.part.spool is not None:
                found[at] = room_scan.scan_rooms(task)
        for future in as_completed(waiting):
            at = waiting[future]
            found[at] = future.result()
            done += _size(tasks[at])
            if progress:
                progress(done, total)
    return [found[at] for at in range(len(tasks))]


def _count_here(
    tasks: Sequence[RoomScanTask], total: int, progress: Callable[[int, int], None] | None
) -> list[RoomScanResult]:
    done = 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        if progress:
            progress(min(done, total), total)

    return [room_scan.scan_rooms(task, step) for task in tasks]


def _size(task: RoomScanTask) -> int:
    return task.bounds[1] - task.bounds[0] if task.part.plain else task.part.size


class _Merge:
    """Merge bucket by bucket: a room's records are in the same bucket of every spill file."""

    def __init__(self, sources: Sequence[ScannedPart], counted: Sequence[RoomScanResult]) -> None:
        self._sources = sources
        self._counted = counted
        self._rows = {row.id: row for source in sources for row in source.task.rows}
        self._order = {name: at for at, name in enumerate(self._rows)}
        self._roles = {source.instance: source.task.role for source in sources}
        self._nothing = LineKinds(())
        # (kinds so far, source, kinds of lines that source adds) → the resulting kinds.
        self._steps: dict[tuple[LineKinds, int, int], LineKinds] = {}
        self._known: dict[tuple[tuple[str, frozenset[str]], ...], LineKinds] = {}

    def rooms(self) -> Iterator[RoomSeen]:
        for bucket in range(room_scan.BUCKETS):
            merged: dict[int, tuple[int, float, float, int, LineKinds]] = {}
            with room_scan.uncollected():
                for at, source in enumerate(self._sources):
                    for data in self._records(source, self._counted[at], bucket):
                        self._add(merged, at, data)
            yield from map(RoomSeen._make, merged.values())

    def _records(self, source: ScannedPart, counted: RoomScanResult, bucket: int) -> Iterator[bytes]:
        with Path(source.task.spill).open("rb") if source.task.spill else io.BytesIO(counted.records) as spill:
            for owner, offset, size in counted.segments:
                if owner == bucket:
                    spill.seek(offset)
                    yield spill.read(size)

    def _add(self, merged: dict[int, tuple[int, float, float, int, LineKinds]], at: int, data: bytes) -> None:
        alone = {kinds: self._step(self._nothing, at, kinds) for kinds in self._kinds(data)}
        for room, first, last, kinds, lines in room_scan.RECORD.iter_unpack(data):
            if room not in merged:
                merged[room] = (room, first, last, lines, alone[kinds])
            else:
                _, begun, ended, before, line_kinds = merged[room]
                whole = self._step(line_kinds, at, kinds)
                merged[room] = (room, min(first, begun), max(last, ended), lines + before, whole)

    def _kinds(self, data: bytes) -> set[int]:
        return {kinds for _, _, _, kinds, _ in room_scan.RECORD.iter_unpack(data)}

    def _step(self, line_kinds: LineKinds, at: int, kinds: int) -> LineKinds:
        key = (line_kinds, at, kinds)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._with(line_kinds, at, kinds)
        return found

    def _with(self, line_kinds: LineKinds, at: int, kinds: int) -> LineKinds:
        """`line_kinds` plus these rows of this log; equal results are the same object."""
        names = self._counted[at].kinds
        known = {seen.instance: frozenset(row.id for row in seen.rows) for seen in line_kinds.seen}
        instance = self._sources[at].instance
        added = {name for bit, name in enumerate(names) if kinds >> min(bit, room_scan.KINDS) & 1}
        known[instance] = known.get(instance, frozenset()) | added
        key = tuple(sorted(known.items()))
        if key not in self._known:
            self._known[key] = LineKinds(tuple(self._seen(*each) for each in key))
        return self._known[key]

    def _seen(self, instance: str, names: frozenset[str]) -> RowsOfInstance:
        rows = tuple(self._rows[name] for name in sorted(names, key=self._order.__getitem__))
        return RowsOfInstance(instance, self._roles[instance] or next((row.role for row in rows if row.role), ""), rows)
