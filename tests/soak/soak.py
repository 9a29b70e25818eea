"""One soak from the first launch to the last count, and its report."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.soak import census
from tests.soak.deployment import Deployed, launch
from tests.soak.load import Load, Tally
from tests.soak.plan import Plan, questions

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK = 2.0  # seconds between looks at memory and processes
BACK = 60.0  # seconds for killed instances to be back after the last kill
QUIET = 45.0  # seconds until nothing may be held any more: settle grace of a room, and idle connections
FLAT = 1.0  # MiB a minute


@dataclass
class Outcome:
    plan: Plan
    tally: Tally = field(default_factory=Tally)
    kills: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    slopes: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> str:
        tally = self.tally
        facts: dict[str, Any] = {
            "plan": dataclasses.asdict(self.plan),
            "seconds": round(self.seconds, 1),
            "ends": dict(tally.ends),
            "errors": dict(tally.errors),
            "slowest": round(tally.slowest, 2),
            "kills": self.kills,
            "memory_mib_per_minute": self.slopes,
            "memory_peak_mib": self.peaks,
            "problems": self.problems,
            "examples": tally.trouble,
        }
        return json.dumps(facts, indent=1) + "\n"

    @property
    def summary(self) -> str:
        ends, total = self.tally.ends, sum(self.tally.ends.values())
        lines = [
            f"{total} requests in {self.seconds:.0f} s: " + ", ".join(f"{name} {ends[name]}" for name in sorted(ends)),
            f"slowest end {self.tally.slowest:.1f} s; errors: {dict(self.tally.errors) or 'none'}",
            f"{len(self.kills)} kills; memory MiB/min: {self.slopes or 'too short a run'}",
            *(f"PROBLEM {problem}" for problem in self.problems),
            *(f"  {text}" for text in self.tally.trouble),
        ]
        return "\n".join(lines if self.problems else [*lines, "nothing leaked, nothing wrong"])


class Watch(threading.Thread):
    """Looks at the processes now and then, and kills one when it is time."""

    def __init__(self, deployed: Deployed, say: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self.memory = census.Memory()
        self._deployed, self._say = deployed, say
        self._dice = random.Random(deployed.plan.seed + 2)
        self._over = threading.Event()

    def run(self) -> None:
        every = self._deployed.plan.kill_every
        next_kill = time.monotonic() + every / 2
        while not self._over.wait(LOOK):
            self.memory.look(self._deployed.launcher)
            self._deployed.seen.update(process.pid for process in census.family(self._deployed.launcher))
            if every and time.monotonic() > next_kill:
                next_kill += every
                self._deployed.kill(self._dice)
                self._say(f"killed {self._deployed.kills[-1]}")

    def end(self) -> None:
        self._over.set()
        self.join()


def run(plan: Plan, home: Path | None = None, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """A fresh deployment, asked for `plan.seconds`; its logs are kept when `home` is given."""
    if home is not None:
        home.mkdir(parents=True, exist_ok=True)
        return _run(plan, home.absolute(), say)
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        return _run(plan, Path(directory), say)


def _run(plan: Plan, home: Path, say: Callable[[str], None]) -> Outcome:
    outcome = Outcome(plan)
    asked = questions(plan, home)
    say(f"{len(asked)} reference answers")
    deployed = launch(plan, home)
    outcome.kills = deployed.kills
    say(f"serving on {deployed.router}")
    try:
        _measure(deployed, outcome, Load(plan, deployed.router, asked, outcome.tally), say)
    finally:
        deployed.pdctl("down", "soak")
    left = census.survivors(deployed.seen, home, deployed.ports) + census.leftovers(deployed.seen)
    outcome.problems += [f"after `pdctl down`: {text}" for text in left]
    return outcome


def _measure(deployed: Deployed, outcome: Outcome, load: Load, say: Callable[[str], None]) -> None:
    plan = deployed.plan
    calm = dataclasses.replace(plan, seconds=5.0)
    asyncio.run(Load(calm, deployed.router, load._asked, Tally()).run(time.monotonic() + calm.seconds))
    outcome.problems += _quiet(deployed, {}, say)
    before = census.holdings(deployed.launcher)
    watch = Watch(deployed, say)
    watch.start()
    began = time.monotonic()
    try:
        asyncio.run(load.run(began + plan.seconds))
    finally:
        watch.end()
    outcome.seconds = time.monotonic() - began
    outcome.problems += _back(deployed)
    outcome.problems += _quiet(deployed, before, say)
    outcome.slopes, outcome.peaks = watch.memory.slopes(), watch.memory.peaks()
    outcome.problems += [f"memory of {who} grows {rate} MiB/min" for who, rate in outcome.slopes.items() if rate > FLAT]
    ends = outcome.tally.ends
    outcome.problems += [f"{ends[bad]} requests ended {bad}" for bad in ("wrong", "late", "unclear") if ends[bad]]
    if not ends["ok"]:
        outcome.problems.append("no request was answered")


def _back(deployed: Deployed) -> list[str]:
    deadline = time.monotonic() + BACK
    while time.monotonic() < deadline:
        if deployed.ready():
            return []
        time.sleep(0.5)
    return [f"not every instance was back {BACK:.0f} s after the last kill"]


def _quiet(deployed: Deployed, before: dict[tuple[str, int], census.Held], say: Callable[[str], None]) -> list[str]:
    """What is still held when QUIET seconds have passed without a request; looks until it is nothing."""
    deadline, leaks = time.monotonic() + QUIET, ["never looked"]
    while leaks and time.monotonic() < deadline:
        time.sleep(1.0)
        leaks = [text for url in deployed.urls for text in census.engine_leaks(url)]
        leaks += census.socket_leaks(before, census.holdings(deployed.launcher)) if before else []
    if leaks:
        say("still held: " + "; ".join(leaks))
    else:
        say(f"{len(psutil.Process(deployed.launcher).children(recursive=True))} processes hold nothing")
    return leaks
