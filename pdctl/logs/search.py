"""Put one query to all parts: use cached answers, scan the rest, and cache the answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pdctl.logs import log_cache, scan
from pdctl.logs.scan import LineHit, ScanJob
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdctl.logs.blocks import LineNumbers
    from pdctl.logs.log_cache import CachedAnswer, Fingerprint
    from pdctl.logs.part import LogPart
    from pdctl.logs.room_index import IndexedPlaces, RoomIndex
    from pdctl.logs.scan import SearchTerm

    Key = tuple[int, int]

MOST_LINES = 100_000  # lines per part in an answer: a room has a few dozen
# Bytes of all whole parts together for which rg is tried: below, not worth a process; above, no progress is shown.
LEAST_FOR_RG, MOST_FOR_RG = 1 << 28, 1 << 32
_GROWN = 1 << 22  # bytes by which a part may grow before its answer is cached again


class SearchStats:
    """What reading has cost so far. scanned: bytes on disk.

    remembered: parts answered from the cache; looked_up: parts for which the index of rooms gave the places.
    """

    def __init__(self) -> None:
        self.scanned = self.hits = self.remembered = self.looked_up = 0
        self.seconds = 0.0


class LogQuery(NamedTuple):
    """name: identifies it among cached answers. spellings: ways to search for it, the widest last.

    choose: returns the spelling for one part; called only if its answer is not cached. room: set if the index of rooms
    can help; it knows decimal numbers only. bounds: the bytes of a part to search, None for all that count; an answer
    with bounds is not cached.
    """

    name: str
    spellings: tuple[Sequence[SearchTerm], ...]
    choose: Callable[[LogPart], Sequence[SearchTerm]]
    room: int | None = None
    bounds: Callable[[LogPart], tuple[int, int]] | None = None


class _Plan(NamedTuple):
    """known: hits that need no scan. jobs: what has to be scanned; whole: the jobs cover all of a plain part.

    before: the part as it was when the scan began, None if the answer is not to be cached.
    """

    part: LogPart
    terms: Sequence[SearchTerm]
    known: tuple[LineHit, ...]
    jobs: tuple[ScanJob, ...]
    before: Fingerprint | None
    whole: bool = False


class LogSearch:
    """bounds: the bytes of a part that count (`--since`, `--until`); answers are cached only if it is None."""

    def __init__(
        self,
        numbers: Callable[[LogPart], LineNumbers],
        tables: RoomIndex,
        environ: Mapping[str, str],
        remembering: bool,
        bounds: Callable[[LogPart], tuple[int, int]] | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.tally = SearchStats()
        self.notes: dict[str, None] = {}
        self._numbers, self._tables, self._environ = numbers, tables, environ
        self._remembering = remembering and bounds is None
        self._bounds = bounds
        self._progress = progress

    def ask(self, query: LogQuery, parts: Iterable[LogPart]) -> Iterator[tuple[LogPart, LineHit]]:
        """The matching lines, part by part, in file order, numbered."""
        began = time.perf_counter()
        wanted = tuple(parts)
        remembered = self._recall(query, wanted) if query.bounds is None else {}
        plans = [self._plan(query, part, remembered.get(_key(part))) for part in wanted]
        found: dict[Key, list[LineHit]] = {_key(plan.part): list(plan.known) for plan in plans}
        broken = self._scan(plans, found)
        for plan in plans:
            found[_key(plan.part)] = self._numbered(plan.part, found[_key(plan.part)])
        self.tally.seconds += time.perf_counter() - began
        self._remember(query, remembered, [plan for plan in plans if _key(plan.part) not in broken], found)
        for plan in plans:
            for hit in found[_key(plan.part)]:
                self.tally.hits += 1
                yield plan.part, hit

    def _plan(self, query: LogQuery, part: LogPart, answer: CachedAnswer | None) -> _Plan:
        bounds = query.bounds or self._bounds
        start, end = bounds(part) if bounds else (0, part.size)
        if answer is not None and log_cache.still_matches(answer.of, part):
            terms = next((each for each in query.spellings if log_cache.terms_digest(each) == answer.terms), None)
            if terms is not None:
                return self._from(answer, part, terms, end)
        terms = query.choose(part)
        remembering = self._remembering and query.bounds is None
        before = log_cache.take_fingerprint(part, log_cache.whole_lines(part)) if remembering else None
        looked = self._looked_up(query, part, terms) if start == 0 else None
        whole = looked is None and part.plain and part.spool is None and (start, end) == (0, part.size)
        if looked is None:
            spans = tuple(scan.spans(part, start, end))
        else:
            self.tally.looked_up += 1
            for offset, line in looked.lines:
                self._numbers(part).learn(offset, line)
            spans = (*looked.spans, *(scan.spans(part, looked.covered, end) if part.plain else ()))
        return _Plan(part, terms, (), tuple(ScanJob(span, terms) for span in spans), before, whole)

    def _from(self, answer: CachedAnswer, part: LogPart, terms: Sequence[SearchTerm], end: int) -> _Plan:
        """The plan for a cached answer: only what the part has grown by since is scanned."""
        self.tally.remembered += 1
        rest = scan.spans(part, answer.of.covered, end) if part.plain else ()
        grown = part.plain and end - answer.of.covered > _GROWN
        before = log_cache.take_fingerprint(part, log_cache.whole_lines(part)) if grown else None
        return _Plan(part, terms, answer.hits, tuple(ScanJob(span, terms) for span in rest), before)

    def _looked_up(self, query: LogQuery, part: LogPart, terms: Sequence[SearchTerm]) -> IndexedPlaces | None:
        """Places from the index. It knows decimal rooms only, so None for a part that may write them in hex."""
        if query.room is None or terms != query.spellings[0]:
            return None
        return self._tables.where(part, query.room)

    def _scan(self, plans: Sequence[_Plan], found: dict[Key, list[LineHit]]) -> set[Key]:
        """Add hits to `found`; return the parts that were not read completely."""
        done = self._seen_by_rg(plans, found)
        jobs = [job for plan in plans for job in plan.jobs if not done or not plan.whole]
        rest = sum(_size(job) for job in jobs)
        total = done + rest
        if done and self._progress:
            self._progress(done, total)
        broken: set[Key] = set()
        for each in scan.scan(jobs, scan.thread_count(rest)):
            key = _key(each.span.part)
            if len(found[key]) + len(each.hits) > MOST_LINES:
                self.notes[f"more than {MOST_LINES} lines of {each.span.part.path} match: the first are taken"] = None
                broken.add(key)
            found[key] += each.hits[: max(0, MOST_LINES - len(found[key]))]
            if each.notes:
                self.notes.update(dict.fromkeys(each.notes))
                broken.add(key)
            done += _size(ScanJob(each.span, ()))
            if self._progress:
                self._progress(done, total)
        self.tally.scanned += done
        return broken

    def _seen_by_rg(self, plans: Sequence[_Plan], found: dict[Key, list[LineHit]]) -> int:
        """Bytes of the whole parts that rg searched; 0 if it did not."""
        whole = [plan for plan in plans if plan.whole]
        total = sum(plan.part.size for plan in whole)
        if not LEAST_FOR_RG <= total <= MOST_FOR_RG:
            return 0
        from pdctl.logs import ripgrep  # imported late: most logs are too small for it

        if not ripgrep.able([plan.part for plan in whole]):
            return 0
        seen = ripgrep.hits([ripgrep.Wanted(plan.part, plan.terms) for plan in whole])
        if seen is None:
            return 0
        for plan in whole:
            found[_key(plan.part)] += seen[plan.part]
        return total

    def _numbered(self, part: LogPart, hits: list[LineHit]) -> list[LineHit]:
        lines = self._numbers(part)
        for hit in hits:
            if hit.line:
                lines.learn(hit.offset, hit.line)
        return [hit if hit.line else hit._replace(line=lines.at(hit.offset)) for hit in hits]

    def _recall(self, query: LogQuery, parts: Iterable[LogPart]) -> dict[Key, CachedAnswer]:
        if not self._remembering:
            return {}
        files = dict.fromkeys(self._file(query, part) for part in parts)
        return {key: answer for file in files for key, answer in log_cache.load_answers(file).items()}

    def _remember(
        self,
        query: LogQuery,
        old: Mapping[Key, CachedAnswer],
        plans: Sequence[_Plan],
        found: Mapping[Key, list[LineHit]],
    ) -> None:
        """Cache what was scanned now, without bytes that changed meanwhile or are not whole lines."""
        fresh: dict[Path, list[CachedAnswer]] = {}
        for plan in plans:
            if plan.before is None:
                continue
            after = log_cache.take_fingerprint(plan.part, plan.before.covered)
            if after is not None and after.digest == plan.before.digest:
                hits = tuple(hit for hit in found[_key(plan.part)] if _settled(plan, hit))
                answer = log_cache.CachedAnswer(after, log_cache.terms_digest(plan.terms), hits)
                fresh.setdefault(self._file(query, plan.part), []).append(answer)
        for file, answers in fresh.items():
            new = {(answer.of.device, answer.of.inode) for answer in answers}
            log_cache.save_answers(file, [*(answer for key, answer in old.items() if key not in new), *answers])

    def _file(self, query: LogQuery, part: LogPart) -> Path:
        return log_cache.answer_file(log_cache.cache_directory(part, self._environ), query.name)


def _key(part: LogPart) -> Key:
    return part.device, part.inode


def _settled(plan: _Plan, hit: LineHit) -> bool:
    return plan.before is not None and (not plan.part.plain or hit.offset < plan.before.covered)


def _size(job: ScanJob) -> int:
    span = job.span
    return span.end - span.start if span.part.plain else span.part.size
