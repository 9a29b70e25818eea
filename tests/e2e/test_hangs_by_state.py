"""A peer that hangs (SIGSTOP) or is cut off (a partition, either way) while rooms stand in a known state.

test_hangs.py leaves to the load which state a room is in. Here a fault at a named step holds the rooms there,
/debug/rooms of both sides shows that they are there, before and after the peer hangs, and every room that fails is
traced. Needs root and iproute2; the second form also keeps the logs, for tests/trace/test_hangs.py:

    pytest -m heavy tests/e2e/test_hangs_by_state.py -s
    PDCTL_TEST_RECORD=tests/data/hangs pytest -m heavy tests/e2e/test_hangs_by_state.py -s
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.trace.room import RoomOutcome
from pdctl.trace.summaries import room_summaries
from pdctl.trace.tracer import Tracer
from tests.e2e.conftest import ROOT, TINY, wait_for
from tests.e2e.namespaces import ENGINES, LEAST, MATRIX, Fleet, Net, start

PATIENCE = 6  # seconds both sides wait for each other
HELD = 12.0  # seconds a fault lasts: longer than time-out and heartbeats
DEADLINE = 40.0  # seconds in which a request must end: the fault, the time-outs, and what a long answer takes
REQUESTS = 16
SLOW = "PD719"  # the router's limit was over while the decode wrote
ENOUGH = 4  # rooms that stand in the state at prefill-0 when the fault begins

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="makes network namespaces"),
]

Rooms = dict[int, dict[str, Any]]  # room → its row in /debug/rooms


class State(NamedTuple):
    """`prefill`, `decode`: whether a row of that side's /debug/rooms is in the state; None where it tells nothing."""

    faults: dict[str, str]  # role → PDCTL_FAULTS, {here} is the file that begins them
    tokens: int  # of an answer
    prefill: Callable[[dict[str, Any]], bool] | None
    decode: Callable[[dict[str, Any]], bool] | None
    left: str  # what the decode's log says of a room that has left the state
    waits: bool = False  # whether the decode's row names the prefill it waits for, and only prefill-0's count
    finish: frozenset[str] = frozenset()  # faults under which its rooms may finish: they need nothing that is lost
    timeout: int = 30  # seconds the router waits for an answer


STATES = {
    "bootstrapping": State(
        {"prefill": "delay:registered=4s@when={here}"}, 8,
        None, lambda row: row["queue"] == "prealloc" and row["state"] == "KVPoll.Bootstrapping", " done rid=",
        waits=True,
    ),
    "waiting for input": State(
        {"decode": "delay:transfer_info=4s@when={here}"}, 8,
        lambda row: row["queue"] == "bootstrap", lambda row: row["queue"] == "transfer", " KV cache arrived ",
    ),
    "transferring": State(  # a decode that goes on again may find its cache there: the router must have given up before
        {"prefill": "stall:post=4s@when={here}"}, 8,
        lambda row: row["queue"] == "inflight", lambda row: row["queue"] == "transfer", " KV cache arrived ",
        finish=frozenset({"decode's frames to prefill lost"}), timeout=10,
    ),
    "streaming": State(  # only the decode has to do with it, and only the router waits for that
        {}, 400, None, lambda row: row["queue"] == "running" and row["output_tokens"] > 1, "Finish: ",
        finish=frozenset(MATRIX) - {"SIGSTOP decode"}, timeout=10,
    ),
}  # fmt: skip
PLACES = {
    state: (state,) for state in STATES
}  # one object for each: pytest compares parameters of a fixture by identity
CASES = [
    # a handshake is made once for a pair of ranks: that state needs a fleet that has not met yet
    pytest.param((state,) if state == "bootstrapping" else PLACES[state], fault, id=f"{state}-{fault}")
    for state in STATES
    for fault in MATRIX
]


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Fleet]]:
    name = request.param[0]
    state = STATES[name]
    folder = tmp_path_factory.mktemp("hangs")
    net = Net()
    made = Fleet(net, folder, {})
    try:
        net.make([*ENGINES, "router"])
        for engine, role in ENGINES.items():
            asked = state.faults.get(role, "").format(here=folder / "begin")
            made.started[engine] = start(
                net, folder, engine, "pdctl.engine", "--model-path", str(TINY), "--host", net.address(engine),
                "--port", "30000", "--disaggregation-mode", role, "--bootstrap-timeout", str(PATIENCE),
                "--waiting-timeout", str(PATIENCE), "--heartbeat-interval", "1", more={"PDCTL_FAULTS": asked},
            )  # fmt: skip
        url = {engine: f"http://{net.address(engine)}:30000" for engine in ENGINES}
        prefills = [word for engine in ENGINES if engine[0] == "p" for word in ("--prefill", url[engine], "8998")]
        made.started["router"] = start(
            net, folder, "router", "pdctl.router", "--host", net.address("router"), "--port", "8000", *prefills,
            "--decode", url["decode-0"], "--retries", "0", "--cb-failure-threshold", "100000",
            "--policy", "round_robin", "--request-timeout", str(state.timeout),
        )  # fmt: skip
        wait_for("engines", lambda: len(look(made, "/health")) == len(ENGINES), 120)
        router = f"http://{net.address('router')}:8000/readiness"
        wait_for("router", lambda: get(made, {"router": router}), 60)
        yield name, made
    finally:
        for process in made.started.values():
            for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                each.kill()
            process.wait()
        net.remove()


def inside(fleet: Fleet, program: str, *words: str) -> subprocess.Popen[str]:
    """A Python program beside the router."""
    return subprocess.Popen(
        ["ip", "netns", "exec", fleet.net.space("router"), sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


GET = """
import json, sys, urllib.request
found = {}
for name, url in json.loads(sys.argv[1]).items():
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            found[name] = (answer.read() or b"").decode()
    except OSError:
        pass
print(json.dumps(found))
"""


def get(fleet: Fleet, urls: dict[str, str]) -> dict[str, str]:
    """Name → body, of those that answer 200 within a second."""
    said, _ = inside(fleet, GET, json.dumps(urls)).communicate(timeout=60)
    found: dict[str, str] = json.loads(said)
    return found


def look(fleet: Fleet, path: str) -> dict[str, str]:
    return get(fleet, {name: f"http://{fleet.net.address(name)}:30000{path}" for name in ENGINES})


def rooms(fleet: Fleet) -> dict[str, Rooms]:
    """Instance → room → row, of the instances that answer."""
    return {
        name: {row["room"]: row for row in json.loads(body)["rooms"]}
        for name, body in look(fleet, "/debug/rooms").items()
    }


def standing(fleet: Fleet, state: State) -> set[int]:
    """The rooms of prefill-0 and decode-0 that both show in the state, of the sides that answer."""
    seen = rooms(fleet)
    sides: list[set[int]] = []
    for name, fits in (("prefill-0", state.prefill), ("decode-0", state.decode)):
        if fits is not None and name in seen:
            sides.append({number for number, row in seen[name].items() if fits(row)})
    if state.waits and "decode-0" in seen:
        address = f"{fleet.net.address('prefill-0')}:"
        sides.append({number for number, row in seen["decode-0"].items() if address in row["waiting_for"]})
    return set.intersection(*sides) if sides else set()


def still(fleet: Fleet, state: State, before: set[int], stopped: str) -> set[int]:
    """Those of `before` that stand in the state when the fault has begun. A stopped decode is asked by its log."""
    if stopped != "decode-0":
        return before & standing(fleet, state)
    lines = [line for line in (fleet.folder / "decode-0.log").read_text().splitlines() if state.left in line]
    return {number for number in before if not any(f"room={number}" in line for line in lines)}


CLIENT = """
import asyncio, json, sys, time, httpx
async def main(url, number, tokens):
    async with httpx.AsyncClient(timeout=120) as client:
        async def one(n):
            began = time.monotonic()
            body = {"input_ids": [5 + n] * 40, "sampling_params": {"ignore_eos": True, "max_new_tokens": tokens}}
            try:
                said = str((await client.post(url + "/generate", json=body)).status_code)
            except httpx.HTTPError as error:
                said = type(error).__name__
            return said, time.monotonic() - began
        print(json.dumps(await asyncio.gather(*map(one, range(number)))))
asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


def asking(fleet: Fleet, number: int, tokens: int) -> subprocess.Popen[str]:
    return inside(fleet, CLIENT, f"http://{fleet.net.address('router')}:8000", str(number), str(tokens))


def answers(fleet: Fleet, number: int) -> set[str]:
    said, _ = asking(fleet, number, 4).communicate(timeout=150)
    return {code for code, _ in json.loads(said or "[]")}


def free(fleet: Fleet) -> bool:
    found = look(fleet, "/server_info")
    states = [state for body in found.values() for state in json.loads(body)["internal_states"]]
    return len(found) == len(ENGINES) and all(state["free_pages"] == state["num_pages"] for state in states)


@pytest.mark.parametrize(("fleet", "fault"), CASES, indirect=["fleet"])
def test_the_peer_that_hangs_is_named_in_every_state(fleet: tuple[str, Fleet], fault: str) -> None:
    name, fleet_ = fleet
    state, (source, target) = STATES[name], MATRIX[fault]
    begin = fleet_.folder / "begin"
    if name != "bootstrapping":
        wait_for("answers of all before the fault", lambda: answers(fleet_, 4) == {"200"}, 120)
    asked = time.time()
    begin.touch()
    load = asking(fleet_, REQUESTS, state.tokens)
    before = wait_for(f"rooms {name}", lambda: len(held := standing(fleet_, state)) >= ENOUGH and held, 30)
    began = time.time()
    try:
        fleet_.net.cut(source, target) if target else fleet_.stop(source, signal.SIGSTOP)
        held = still(fleet_, state, before, "" if target else source)
        begin.unlink()  # what it held back goes its way
        assert len(held) >= ENOUGH, (
            f"{len(before)} rooms were {name} before the fault, {len(held)} still after it began"
        )
        time.sleep(max(0.0, began + HELD - time.time()))
    finally:
        begin.unlink(missing_ok=True)
        fleet_.net.heal(source, target) if target else fleet_.stop(source, signal.SIGCONT)
    said = json.loads(load.communicate(timeout=150)[0])
    codes, late = Counter(code for code, _ in said), sum(seconds > DEADLINE for _, seconds in said)
    wait_for("answers of all after the fault", lambda: answers(fleet_, 4) == {"200"}, 120)
    wait_for("free pages on all", lambda: free(fleet_), 60)
    if os.environ.get("PDCTL_TEST_RECORD"):
        record(
            fleet_, Path(os.environ["PDCTL_TEST_RECORD"]) / f"{name} {fault}".replace("'s", "").replace(" ", "-"), asked
        )
    named = verdicts(fleet_, asked)
    if fault in state.finish:
        named.pop(SLOW, None)  # a room that needs nothing that is lost, on a machine too slow for the router's limit
    right = {source, target} - {""}
    rightly = sum(count for who, count in named.items() if who in right)
    others = sum(count for who, count in named.items() if who and who not in right)
    print(
        f"\n| {name} | {fault} | held {len(held)} | failed {named.total()} | named {rightly} | others {others} | "
        f"late {late} | longest {max(seconds for _, seconds in said):.1f} s | {dict(codes)} | pages free |"
    )
    assert late == 0, said
    assert set(codes) <= {"200", "500", "502", "503", "504"}, said
    assert named.total() >= ENOUGH or fault in state.finish
    assert others == 0, named
    assert rightly >= LEAST * named.total(), named


def verdicts(fleet: Fleet, since: float) -> Counter[str]:
    """How many rooms asked for since `since` failed or hung, by the instance, else the code, that is named."""
    paths = sorted(str(path) for path in fleet.folder.glob("*.log"))
    library = Library(open_logs(paths), tz=dt.datetime.now().astimezone().tzinfo, index=False)
    tracer = Tracer(library)
    failed = [
        one.room for one in room_summaries(Tracer(library))
        if one.outcome in (RoomOutcome.FAILED, RoomOutcome.HUNG) and (one.first_seen or 0.0) >= since
    ]  # fmt: skip
    traced = [tracer.trace(room) for room in failed]
    return Counter(one.cause.instance or one.cause.code if one.cause else "" for one in traced)


START = re.compile(r"ready to roll|Router listening")  # the last line of a start
STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+)")


def record(fleet: Fleet, folder: Path, since: float) -> None:
    """The logs' start lines and all lines since a second before `since`; no path of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = dt.datetime.fromtimestamp(since - 1).strftime("%Y-%m-%d %H:%M:%S")
    for path in sorted(fleet.folder.glob("*.log")):
        kept, started, new = [], False, False
        for line in path.read_text().splitlines():
            stamp = STAMP.match(line)
            new = stamp[1] >= begin if stamp else new
            if new or not started:
                kept.append(line)
            started = started or START.search(line) is not None
        text = "\n".join([*kept, ""]).replace(str(ROOT), "/opt/pdctl").replace(str(fleet.folder), "/tmp/hangs")
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
