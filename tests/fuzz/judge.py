"""One case, judged: the target may raise what it declares, must end in time, and everything else is a finding.

Two clocks. The CPU time a case may take grows with its length, so that work which grows faster shows; it does not
depend on who else uses the machine. The other is a clock on the wall, for what waits instead of working.
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pdctl.errors import TopologyError
from pdctl.topology.diagnostic import Diagnostic
from tests.fuzz import edits

ROOT = Path(__file__).resolve().parents[2]
WALL = 60.0  # seconds; nothing a target does waits for anything
Body = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Target:
    """`seeds` gives real inputs. A case may take base + per_byte × its length seconds of CPU, and raise `errors`.

    cheap: fast enough for a million cases in minutes.
    """

    name: str
    body: Body
    seeds: Callable[[], tuple[bytes, ...]]
    base: float = 1.0
    per_byte: float = 20e-6
    errors: tuple[type[Exception], ...] = ()
    cheap: bool = True


class TooLong(BaseException):
    """Raised by the timer wherever the target is: no handler for Exception may swallow it."""


class Broken(AssertionError):
    """`where`: what it raised and in which line, which tells one finding from another. `data`: the case."""

    def __init__(self, target: str, where: str, data: bytes) -> None:
        shown = repr(data) if len(data) <= 4000 else f"{data[:2000]!r} … {data[-2000:]!r}"
        super().__init__(f"{target}: {where}\ncase ({len(data)} bytes): {shown}")
        self.where = where
        self.data = data


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of many cases. `slowest`: CPU seconds and the case."""

    cases: int
    seconds: float
    slowest: tuple[float, bytes]
    broken: tuple[Broken, ...] = ()


def judge(target: Target, data: bytes) -> float:
    """The CPU seconds it took; raises Broken."""
    with watching():
        return _judged(target, data)


def _explained(target: Target, error: Exception, data: bytes) -> None:
    """A refusal is for people: it says what is wrong and what to do, and can be printed."""
    message, fix = getattr(error, "message", ""), getattr(error, "fix", "")
    if isinstance(error, TopologyError):  # what to do stands with each problem it found
        fix = fix or "\n".join(f"{one.message} {one.help}" for one in error.diagnostics if isinstance(one, Diagnostic))
    if not (message and fix and _plain(message + fix)):
        raise Broken(
            target.name, f"refused with {message!r:.300} and the fix {fix!r:.100} in {_innermost(error)}", data
        )


def _plain(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


@contextmanager
def watching() -> Iterator[None]:
    """Makes the timers' signals raise TooLong, and warnings errors: a user would see them. A timer that ran before
    (pytest's) runs on afterwards.
    """
    before = {number: signal.signal(number, _expired) for number in (signal.SIGPROF, signal.SIGALRM)}
    began = time.monotonic()
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - began)))


def _judged(target: Target, data: bytes) -> float:
    began = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_REAL, WALL)
        signal.setitimer(signal.ITIMER_PROF, target.base + target.per_byte * len(data))
        try:
            target.body(data)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
    except target.errors as error:
        _explained(target, error, data)
    except TooLong as error:
        raise Broken(target.name, f"{error} in {_innermost(error)}", data) from None
    except Exception as error:
        raise Broken(target.name, f"{type(error).__name__}: {error!s:.200} in {_innermost(error)}", data) from error
    return time.process_time() - began


def _expired(number: int, _: object) -> None:
    what = "its CPU time for a case of this length" if number == signal.SIGPROF else f"{WALL:.0f} s"
    raise TooLong(f"took more than {what}")


def _innermost(error: BaseException) -> str:
    """The last line of ours, `pdctl/x.py:7 (name)`. A timer strikes anywhere: then the function is all that counts."""
    inside = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(ROOT)]
    last = [frame for frame in inside if frame.filename != __file__][-1]
    line = "" if isinstance(error, TooLong) else f":{last.lineno}"
    return f"{Path(last.filename).relative_to(ROOT)}{line} ({last.name})"


def case(seeds: tuple[bytes, ...], seed: int, number: int) -> bytes:
    """Case `number` of a seed: the same bytes each time."""
    chance = random.Random(seed << 40 | number)
    return edits.apply(chance.choice(seeds), edits.chosen(chance), seeds)


def survive(
    target: Target, cases: int, seed: int, *, most: int = 1, told: Callable[[int], None] = lambda _: None
) -> Tally:
    """Ends at the `most`-th finding; findings in the same line are one, of which the shortest case is kept."""
    began, slowest, done = time.monotonic(), (0.0, b""), 0
    found: dict[str, Broken] = {}
    with watching():
        seeds = target.seeds()
        for done in range(1, cases + 1):
            data = case(seeds, seed, done)
            try:
                slowest = max(slowest, (_judged(target, data), data))
            except Broken as broken:
                place = _place(broken)
                if place not in found or len(data) < len(found[place].data):
                    found[place] = broken
                if len(found) >= most:
                    break
            if not done % 1000:
                told(done)
    shortened = tuple(Broken(target.name, one.where, shorter(target, one)) for one in found.values())
    return Tally(done, time.monotonic() - began, slowest, shortened)


def shorter(target: Target, broken: Broken) -> bytes:
    """A case with the same finding from which no run of bytes can be left out (of those tried, within a minute)."""
    until = time.monotonic() + WALL
    data = broken.data
    size = len(data) // 2
    while size and time.monotonic() < until:
        at = 0
        while at < len(data) and time.monotonic() < until:
            fewer = data[:at] + data[at + size :]
            if _breaks(target, fewer) == _place(broken):
                data = fewer
            else:
                at += size
        size //= 2
    return data


def _breaks(target: Target, data: bytes) -> str:
    try:
        judge(target, data)
    except Broken as broken:
        return _place(broken)
    return ""


def _place(broken: Broken) -> str:
    return broken.where.rpartition(" in ")[2]


def kept(broken: Broken) -> Path:
    """A file for --file: what is printed may be cut."""
    with tempfile.NamedTemporaryFile(prefix="fuzz-", suffix=".case", delete=False) as file:
        file.write(broken.data)
    return Path(file.name)
