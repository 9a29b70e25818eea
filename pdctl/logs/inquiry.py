"""One question put to all parts: what is remembered is taken, the rest is scanned, and the answer is remembered."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pdctl.logs import asked, fingerprint, ripgrep, scan, store
from pdctl.logs.scan import Hit, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdctl.logs.asked import Answer
    from pdctl.logs.fingerprint import Fingerprint
    from pdctl.logs.needle import Needle
    from pdctl.logs.numbering import Lines
    from pdctl.logs.part import Part
    from pdctl.logs.table import Looked, Tables

    Key = tuple[int, int]

MOST = 100_000  # lines one question is answered with: a room has a few dozen
_GROWN = 1 << 22  # bytes a part may have grown by before its answer is remembered anew


@dataclass(slots=True)
class Tally:
    """What reading has cost so far. scanned: bytes on disk.

    remembered: parts answered from what was asked before; looked_up: parts where the index of rooms said where to look.
    """

    scanned: int = 0
    seconds: float = 0.0
    hits: int = 0
    remembered: int = 0
    looked_up: int = 0


class Question(NamedTuple):
    """`name` stands for it among remembered answers. spellings: ways to search for it, the widest last.

    choose: the spelling for one part, asked only when its answer is not remembered. room: when the index of rooms can
    help; it knows decimal numbers only.
    """

    name: str
    spellings: tuple[Sequence[Needle], ...]
    choose: Callable[[Part], Sequence[Needle]]
    room: int | None = None


class _Plan(NamedTuple):
    """known: hits that need no scan. jobs: what does; whole: all of a plain part.

    before: the part as it was when the scan began, None when the answer is not to be remembered.
    """

    part: Part
    needles: Sequence[Needle]
    known: tuple[Hit, ...]
    jobs: tuple[Job, ...]
    before: Fingerprint | None
    whole: bool = False


class Inquiry:
    """`bounds`: the bytes of a part that count (`--since`, `--until`); answers are remembered when None."""

    def __init__(
        self,
        numbers: Callable[[Part], Lines],
        tables: Tables,
        environ: Mapping[str, str],
        remembering: bool,
        bounds: Callable[[Part], tuple[int, int]] | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.tally = Tally()
        self.notes: dict[str, None] = {}
        self._numbers, self._tables, self._environ = numbers, tables, environ
        self._remembering = remembering and bounds is None
        self._bounds = bounds
        self._progress = progress

    def ask(self, question: Question, parts: Iterable[Part]) -> Iterator[tuple[Part, Hit]]:
        """The lines it is answered with, part by part, in file order, numbered."""
        began = time.perf_counter()
        wanted = tuple(parts)
        remembered = self._recall(question, wanted)
        plans = [self._plan(question, part, remembered.get(_key(part))) for part in wanted]
        found: dict[Key, list[Hit]] = {_key(plan.part): list(plan.known) for plan in plans}
        broken = self._scan(plans, found)
        for plan in plans:
            found[_key(plan.part)] = self._numbered(plan.part, found[_key(plan.part)])
        self.tally.seconds += time.perf_counter() - began
        self._remember(question, remembered, [plan for plan in plans if _key(plan.part) not in broken], found)
        for plan in plans:
            for hit in found[_key(plan.part)]:
                self.tally.hits += 1
                yield plan.part, hit

    def _plan(self, question: Question, part: Part, answer: Answer | None) -> _Plan:
        start, end = self._bounds(part) if self._bounds else (0, part.size)
        if answer is not None and fingerprint.holds(answer.of, part):
            needles = next((each for each in question.spellings if asked.digest(each) == answer.needles), None)
            if needles is not None:
                return self._from(answer, part, needles, end)
        needles = question.choose(part)
        before = fingerprint.take(part, fingerprint.whole_lines(part)) if self._remembering else None
        looked = self._looked_up(question, part, needles) if start == 0 else None
        whole = looked is None and part.plain and part.spool is None and (start, end) == (0, part.size)
        if looked is None:
            spans = tuple(scan.spans(part, start, end))
        else:
            self.tally.looked_up += 1
            for offset, line in looked.lines:
                self._numbers(part).learn(offset, line)
            spans = (*looked.spans, *(scan.spans(part, looked.covered, end) if part.plain else ()))
        return _Plan(part, needles, (), tuple(Job(span, needles) for span in spans), before, whole)

    def _from(self, answer: Answer, part: Part, needles: Sequence[Needle], end: int) -> _Plan:
        """What was remembered, and what the part has grown by since."""
        self.tally.remembered += 1
        rest = scan.spans(part, answer.of.covered, end) if part.plain else ()
        grown = part.plain and end - answer.of.covered > _GROWN
        before = fingerprint.take(part, fingerprint.whole_lines(part)) if grown else None
        return _Plan(part, needles, answer.hits, tuple(Job(span, needles) for span in rest), before)

    def _looked_up(self, question: Question, part: Part, needles: Sequence[Needle]) -> Looked | None:
        """The index knows decimal rooms only: a part that may write them in hex is scanned."""
        if question.room is None or needles != question.spellings[0]:
            return None
        return self._tables.where(part, question.room)

    def _scan(self, plans: Sequence[_Plan], found: dict[Key, list[Hit]]) -> set[Key]:
        """Adds hits to `found`; the parts of which not everything could be read."""
        done = self._seen_by_rg(plans, found)
        jobs = [job for plan in plans for job in plan.jobs if not done or not plan.whole]
        total = done + sum(_size(job) for job in jobs)
        if done and self._progress:
            self._progress(done, total)
        broken: set[Key] = set()
        for each in scan.scan(jobs, scan.threads(total)):
            key = _key(each.span.part)
            if len(found[key]) + len(each.hits) > MOST:
                self.notes[f"more than {MOST} lines of {each.span.part.path} match: the first are taken"] = None
                broken.add(key)
            found[key] += each.hits[: max(0, MOST - len(found[key]))]
            if each.notes:
                self.notes.update(dict.fromkeys(each.notes))
                broken.add(key)
            done += _size(Job(each.span, ()))
            if self._progress:
                self._progress(done, total)
        self.tally.scanned += done
        return broken

    def _seen_by_rg(self, plans: Sequence[_Plan], found: dict[Key, list[Hit]]) -> int:
        """Bytes of the whole parts rg has looked through; 0 when it has not."""
        whole = [plan for plan in plans if plan.whole]
        if not ripgrep.able([plan.part for plan in whole]):
            return 0
        seen = ripgrep.hits([ripgrep.Wanted(plan.part, plan.needles) for plan in whole])
        if seen is None:
            return 0
        for plan in whole:
            found[_key(plan.part)] += seen[plan.part]
        return sum(plan.part.size for plan in whole)

    def _numbered(self, part: Part, hits: list[Hit]) -> list[Hit]:
        lines = self._numbers(part)
        for hit in hits:
            if hit.line:
                lines.learn(hit.offset, hit.line)
        return [hit if hit.line else hit._replace(line=lines.at(hit.offset)) for hit in hits]

    def _recall(self, question: Question, parts: Iterable[Part]) -> dict[Key, Answer]:
        if not self._remembering:
            return {}
        files = dict.fromkeys(self._file(question, part) for part in parts)
        return {key: answer for file in files for key, answer in asked.load(file).items()}

    def _remember(
        self, question: Question, old: Mapping[Key, Answer], plans: Sequence[_Plan], found: Mapping[Key, list[Hit]]
    ) -> None:
        """Only what was scanned now; bytes that changed meanwhile, or are not whole lines, are not vouched for."""
        fresh: dict[Path, list[Answer]] = {}
        for plan in plans:
            if plan.before is None:
                continue
            after = fingerprint.take(plan.part, plan.before.covered)
            if after is not None and after.digest == plan.before.digest:
                hits = tuple(hit for hit in found[_key(plan.part)] if _settled(plan, hit))
                answer = asked.Answer(after, asked.digest(plan.needles), hits)
                fresh.setdefault(self._file(question, plan.part), []).append(answer)
        for file, answers in fresh.items():
            new = {(answer.of.device, answer.of.inode) for answer in answers}
            asked.save(file, [*(answer for key, answer in old.items() if key not in new), *answers])

    def _file(self, question: Question, part: Part) -> Path:
        return asked.file_of(store.directory(part, self._environ), question.name)


def _key(part: Part) -> Key:
    return part.device, part.inode


def _settled(plan: _Plan, hit: Hit) -> bool:
    return plan.before is not None and (not plan.part.plain or hit.offset < plan.before.covered)


def _size(job: Job) -> int:
    span = job.span
    return span.end - span.start if span.part.plain else span.part.size
