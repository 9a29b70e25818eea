"""The faults that a release is recorded with: the router's arguments, the action, and its effect on a room."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.record_release.deployment import Answer, Running
    from tools.record_release.wire import Seen

Answers = dict[int, "Answer"]
NAMES = ("healthy", "missing-ports", "swapped-ports", "prefill-killed", "decode-killed")
LONG = 400  # tokens of an answer that is still being generated when its decode is killed
LOST_AT_ONCE = 8  # requests of a router with wrong ports: before 0.5.18 a prefill with NIXL gives none up, and all hang
VICTIM = {"prefill-killed": "prefill0", "decode-killed": "decode0"}
CAUSES = {"missing-ports": "PD201", "swapped-ports": "PD203", "prefill-killed": "PD705", "decode-killed": "PD704"}


def prefills(scenario: str, planned: dict[str, Any]) -> list[str]:
    """The router's words for the prefills, some with wrong or missing bootstrap ports."""
    servers = [one for one in planned["instances"] if one["role"] == "prefill"]
    ports = [str(one["bootstrap_port"]) for one in servers]
    if scenario == "swapped-ports":
        ports.reverse()
    told = ports if scenario != "missing-ports" else None
    return [
        word
        for at, one in enumerate(servers)
        for word in ("--prefill", one["url"], *((told[at],) if told else ()))
    ]  # fmt: skip


def play(scenario: str, running: Running, rooms: dict[str, Seen]) -> Answers:
    """Send the requests and cause the fault; `rooms` grows meanwhile. Return the answers by request number."""
    if scenario != "healthy" and scenario not in VICTIM:
        return running.ask(range(1, 9), at_once=LOST_AT_ONCE)
    answers = running.ask(range(1, 7))
    if scenario == "healthy":
        return answers | running.ask(range(7, 15), at_once=4)
    victim = VICTIM[scenario]
    caught: Answers = {}
    crowd = threading.Thread(target=lambda: caught.update(running.ask(range(7, 11), at_once=4, tokens=LONG)))
    if victim.startswith("prefill"):
        running.signal(victim, signal.SIGSTOP)  # its rooms are in progress, and stay so until it is killed
    crowd.start()
    wait(lambda: len({seen.number for seen in rooms.values()} & set(range(7, 11))) == 4)
    time.sleep(2)  # a fixed time for which the rooms run before the kill
    running.signal(victim, signal.SIGKILL)
    crowd.join()
    return answers | caught | running.ask(range(11, 15), at_once=4)


def wait(done: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"the four requests that the kill is to meet were not on the wire within {seconds:g} s")
        time.sleep(0.1)


def truth(scenario: str, rooms: dict[str, Seen], answers: Answers) -> dict[str, dict[str, Any]]:
    """Room → what happened to it. A request that the router retried got its answer from its last room."""
    last = {seen.number: room for room, seen in rooms.items()}
    return {
        room: happened(scenario, seen, answers[seen.number] if last[seen.number] == room else None)
        for room, seen in rooms.items()
        if seen.number in answers
    }


def happened(scenario: str, seen: Seen, answer: Answer | None) -> dict[str, Any]:
    prefill, decode = (next((one for one in seen.http if one.startswith(role)), None) for role in ("prefill", "decode"))
    contacted = next(iter(seen.contacted), None)
    ended = answer.outcome if answer else "failed"
    began = answer is not None and answer.began
    phase = "decode" if began else "handshake" if contacted else "prealloc" if decode else "bootstrap"
    return {
        "prefill_requested": prefill, "prefill_contacted": contacted, "decode": decode, "outcome": ended,
        "phase_reached": "finished" if ended == "ok" else phase,
        "cause": None if ended == "ok" else CAUSES.get(scenario),
    }  # fmt: skip
