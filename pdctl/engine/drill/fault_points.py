"""Faults on request: PDCTL_FAULTS names steps of the engine at which something goes wrong.

    PDCTL_FAULTS="drop:transfer_info@room%3==0; delay:status=200ms; corrupt:page@p=0.1; kill:prefill.after_chunk=2"

One fault is ACTION:STEP[=VALUE][@SELECTOR,…]. The text is parsed once, into values; without the variable none of this
runs. Every fault that fires leaves one marked line in the log.
"""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from pdctl.engine.drill import modelled_link
from pdctl.engine.drill.rehearsed_mistakes import MARK
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.prefill.rank_table import BootstrapResponse

log = logging.getLogger("pdctl.engine")

ENV = "PDCTL_FAULTS"
FRAMES = ("register", "registered", "transfer_info", "status", "abort", "abort_ack", "unregister")


class Action(NamedTuple):
    """`value` is what follows `=`: a duration, a number, or nothing."""

    name: str
    value: str
    doc: str


ACTIONS = (
    Action("drop", "", "it never happens, and nobody is told"),
    Action("delay", "duration", "it happens that much later; what comes behind it does not wait"),
    Action("stall", "duration", "the thread that does it stands still for that long"),
    Action("duplicate", "", "it happens twice"),
    Action("corrupt", "", "it happens with other bytes"),
    Action("fail", "", "it is reported as failed"),
    Action("kill", "number", "SIGKILL of this process when it happens; =N: the Nth time"),
    Action("end", "", "SIGKILL of the whole instance: its server and this rank"),
    Action("raise", "", "the thread or task that does it ends on an error nobody foresaw"),
)


class FaultStep(NamedTuple):
    """`rooms`: whether the room is known at this step."""

    name: str
    actions: tuple[str, ...]
    rooms: bool
    doc: str

    @property
    def of_role(self) -> bool:
        """Whether the step is reached in a prefill or decode role, where clients' requests are known."""
        return self.name.startswith(("prefill.", "decode."))


ON_FRAMES = ("drop", "delay", "stall", "duplicate", "corrupt", "kill")
IN_PLACE = ("stall", "kill", "end")
STEPS = (
    *(FaultStep(kind, ON_FRAMES, True, f"a `{kind}` frame leaves this rank") for kind in FRAMES),
    *(FaultStep(f"in.{kind}", ON_FRAMES, True, f"a `{kind}` frame has reached this rank") for kind in FRAMES),
    FaultStep(
        "post", ("drop", "stall", "duplicate", "fail", "kill"), False,
        "a prefill hands a chunk to the transport",
    ),
    FaultStep("page", ("corrupt",), False, "the same: the pages arrive, with the bytes of other ones"),
    FaultStep("bootstrap", ("drop", "delay", "corrupt", "kill"), False, "the bootstrap server answers a question"),
    FaultStep("prefill.after_chunk", IN_PLACE, True, "a prefill has handed over a chunk that is not the last"),
    FaultStep(
        "prefill.before_metadata", IN_PLACE, True,
        "a prefill is about to send the last chunk, with the first token",
    ),
    FaultStep("prefill.write", ("end",), True, "half of the pages of a prefill's write are on their way"),
    FaultStep("decode.after_announce", IN_PLACE, True, "a decode has told the prefill its pages"),
    FaultStep("decode.transfer", ("end",), True, "a room's KV cache moves, or has just arrived"),
    FaultStep(
        "decode.after_arrival", IN_PLACE, True,
        "a room's KV cache has arrived; its first token was not sent on yet",
    ),
    FaultStep("thread.kv-manager", ("raise",), False, "the KV manager's thread takes a turn"),
    FaultStep("thread.kv-transfer", ("raise",), False, "a thread of the KV transfer takes a turn"),
    FaultStep("thread.forward", ("raise",), False, "the thread of the forward pass begins one"),
    FaultStep("thread.scheduler", ("raise",), False, "the scheduler takes a turn"),
    FaultStep("thread.dp-controller", ("raise",), False, "the DP controller has a request"),
    FaultStep("thread.tokenizer-manager", ("raise",), False, "the tokenizer manager reads what the schedulers say"),
    FaultStep("thread.silence-watch", ("raise",), False, "the tokenizer manager looks whether a scheduler went silent"),
    FaultStep("thread.detokenizer", ("raise",), False, "tokens of one request become text: that request fails alone"),
    FaultStep("thread.bootstrap-server", ("raise",), False, "the bootstrap server looks whether it still listens"),
    FaultStep("thread.http-server", ("raise",), False, "the HTTP server looks whether it shall end"),
    FaultStep("thread.node-link", ("raise",), False, "a node reads its connection to another one of its instance"),
    FaultStep("thread.rank-watch", ("raise",), False, "the server looks after a rank's process"),
)  # fmt: skip
SELECTORS = {
    "room%M==R": "rooms whose number leaves R when divided by M",
    "after=N": "rooms of the requests after the first N; warm-up and health checks are not counted",
    "every=N": "every Nth time",
    "first=N": "the first N times only",
    "when=PATH": "once there is such a file",
    "p=P": "with probability P, drawn from the seed",
    "seed=S": "of p, default 0",
    "rank=R": "on attention TP rank R only",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """`value`: seconds, or for `kill` which time. A selector not given is 0, or -1 if 0 is a valid value for it."""

    word: str
    action: str
    step: str
    value: float = 0.0
    modulus: int = 0
    remainder: int = 0
    every: int = 1
    first: int = 0
    chance: float = 1.0
    seed: int = 0
    rank: int = -1
    after: int = -1
    when: str = ""


@lru_cache
def read(text: str) -> tuple[Fault, ...]:
    """Return the faults in `text`. Raise ValueError, naming the wrong word and what is valid there."""
    return tuple(_fault(word.strip()) for word in text.split(";") if word.strip())


def asked_for() -> list[str]:
    """Return what PDCTL_FAULTS asks this process for, one text per fault, as /server_info shows it."""
    return [fault.word for fault in read(os.environ.get(ENV, ""))]


def start_lines() -> tuple[str, ...]:
    """Return the log lines for the start, one per fault."""
    docs = {step.name: step.doc for step in STEPS}
    return tuple(f"{MARK}: {one.word}: where {docs[one.step]}" for one in read(os.environ.get(ENV, "")))


def _fault(word: str) -> Fault:
    head, _, tail = word.partition("@")
    action_name, colon, place = head.partition(":")
    name, equals, value = place.partition("=")
    action = next((one for one in ACTIONS if one.name == action_name), None)
    if action is None:
        raise ValueError(f"{word}: no such action {action_name!r}; there are {', '.join(one.name for one in ACTIONS)}")
    step = next((one for one in STEPS if one.name == name), None)
    if step is None or not colon:
        raise ValueError(f"{word}: no such step {name!r}; there are {', '.join(one.name for one in STEPS)}")
    if action.name not in step.actions:
        raise ValueError(f"{word}: {step.name} knows {', '.join(step.actions)}, not {action.name}")
    return _selected(Fault(word, action.name, step.name, _value(word, action, value if equals else None)), step, tail)


def _value(word: str, action: Action, text: str | None) -> float:
    if action.value == "duration":
        try:
            return modelled_link.duration(text or "")
        except ValueError:
            raise ValueError(f"{word}: {action.name} takes a duration, such as {action.name}:STEP=200ms") from None
    if text is None:
        return 0.0
    if action.value != "number":
        raise ValueError(f"{word}: {action.name} takes no value")
    return float(_number(word, text, least=1))


def _selected(fault: Fault, step: FaultStep, tail: str) -> Fault:
    """Return `fault` with the selectors that follow its `@`."""
    given: dict[str, float] = {}
    when = ""
    for text in (part.strip() for part in tail.split(",") if part.strip()):
        match = re.fullmatch(r"room%([0-9]+)==([0-9]+)", text)
        key, _, value = text.partition("=")
        if match is not None:
            if not step.rooms:
                raise ValueError(f"{fault.word}: {step.name} does not know its room; leave {text} out")
            modulus = _number(fault.word, match[1], least=1)
            given |= {"modulus": modulus, "remainder": int(match[2])}
        elif key == "p" and re.fullmatch(r"0?\.[0-9]+|[01]", value):
            given["chance"] = float(value)
        elif key == "when" and value:
            when = value
        elif key in ("every", "first"):
            given[key] = _number(fault.word, value, least=1)
        elif key == "after" and not step.of_role:
            raise ValueError(f"{fault.word}: {step.name} does not count requests; leave {text} out")
        elif key in ("seed", "rank", "after"):
            given[key] = _number(fault.word, value, least=0)
        else:
            raise ValueError(f"{fault.word}: no such selector {text!r}; there are {', '.join(SELECTORS)}")
    fields = {name: getattr(fault, name) for name in ("word", "action", "step", "value")}
    return Fault(**fields, **given, when=when)  # type: ignore[arg-type]


def _number(word: str, text: str, least: int) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < least:
        raise ValueError(f"{word}: {text!r} is no whole number from {least} on")
    return int(text)


class Armed:
    """The faults of one component, and how often each of its steps was reached. Used by one thread at a time."""

    def __init__(self, faults: tuple[Fault, ...], rank: int) -> None:
        self._faults = tuple(fault for fault in faults if fault.rank in (-1, rank))
        self._reached = dict.fromkeys(self._faults, 0)
        self._fired = dict.fromkeys(self._faults, 0)
        self._dice = {fault: random.Random(fault.seed) for fault in self._faults}
        self._server = os.getppid()
        self._requests = 0
        self._numbers: dict[int, int] = {}  # room → number of its request among those that clients sent

    def admitted(self, room: int) -> None:
        """Count a client's request that was accepted."""
        self._requests += 1
        if any(0 <= fault.after < self._requests for fault in self._faults):
            self._numbers[room] = self._requests

    def at(self, step: str, room: int | None = None) -> Fault | None:
        """Apply and return the fault that fires here, if any. A `kill` never returns, a `stall` returns at its end."""
        fault = self.hit(step, room)
        if fault is not None:
            self.happen(fault)
        return fault

    def hit(self, step: str, room: int | None = None) -> Fault | None:
        """Return the fault that fires here, logged but not yet applied; None if there is none."""
        for fault in self._faults:
            if fault.step == step and self._hits(fault, room):
                where = "" if room is None else f" room={room}"
                log.warning("%s: fault %s fires at %s%s", MARK, fault.word, step, where)
                return fault
        return None

    def happen(self, fault: Fault) -> None:
        """Do the part of a fault that is the same at every step; the step does the rest."""
        if fault.action == "stall":
            time.sleep(fault.value)
        if fault.action == "end":
            log.warning("%s: this instance ends itself by SIGKILL now, in the middle of a transfer", MARK)
            if os.getppid() == self._server:  # otherwise it is gone already, and its pid may belong to any process
                os.kill(self._server, signal.SIGKILL)
        if fault.action in ("end", "kill"):
            kill()

    def _hits(self, fault: Fault, room: int | None) -> bool:
        if fault.when and not os.path.exists(fault.when):  # noqa: PTH110
            return False
        if fault.modulus and (room is None or room % fault.modulus != fault.remainder):
            return False
        if fault.after >= 0 and (room is None or room not in self._numbers or self._numbers[room] <= fault.after):
            return False
        self._reached[fault] += 1
        nth = self._reached[fault]
        if (fault.action == "kill" and fault.value and nth != fault.value) or nth % fault.every:
            return False
        if (fault.first and self._fired[fault] >= fault.first) or self._dice[fault].random() >= fault.chance:
            return False
        self._fired[fault] += 1
        return True


class AnswerFaults:
    """Applies PDCTL_FAULTS to a bootstrap server's answers."""

    def __init__(self, armed: Armed) -> None:
        self._armed = armed

    async def answer(self, given: BootstrapResponse) -> BootstrapResponse | None:
        """Return the answer to give; None: give none."""
        fault = self._armed.at("bootstrap")
        if fault is None:
            return given
        if fault.action == "delay":
            import asyncio  # not at the top: only the bootstrap server needs it

            await asyncio.sleep(fault.value)
        elif fault.action == "corrupt":
            return replace(given, body=given.body[::-1])
        return None if fault.action == "drop" else given


def raiser(step: str, rank: int = 0) -> Callable[[], None] | None:
    """Return a function that raises at `step` if PDCTL_FAULTS asks for it; None (the usual case) if it does not."""
    asked = tuple(fault for fault in read(os.environ.get(ENV, "")) if fault.step == step)
    if not asked:
        return None
    armed = Armed(asked, rank)

    def reach() -> None:
        fault = armed.hit(step)
        if fault is not None:
            raise RuntimeError(f"{MARK}: fault {fault.word}")

    return reach


def arm(rank: int = 0, more: str = "") -> Armed | None:
    """Return the faults that PDCTL_FAULTS and `more` ask of a component of `rank`; None (the usual case) if none."""
    text = "; ".join(filter(None, (os.environ.get(ENV, ""), more)))
    return Armed(read(text), rank) if text else None


def kill() -> None:
    """Send this process SIGKILL: nothing is cleaned up, no peer is told."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal is on its way
