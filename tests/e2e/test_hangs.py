"""A peer that hangs (SIGSTOP) or is cut off (a partition, either way), under load: trace-room names it and nobody else.

Every engine has a network namespace of its own on one bridge, made here. Needs root and iproute2:

    pytest -m heavy tests/e2e/test_hangs.py -s
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.trace.room import RoomOutcome
from pdctl.trace.summaries import room_summaries
from pdctl.trace.tracer import Tracer
from tests.e2e.conftest import TINY, wait_for
from tests.e2e.namespaces import ENGINES, LEAST, MATRIX, Fleet, Net, start

GAP = 0.4  # seconds between two requests
HELD = 22.0  # seconds a fault lasts: longer than both time-outs and two heartbeats

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="makes network namespaces"),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("hangs")
    net = Net()
    made = Fleet(net, folder, {})
    try:
        net.make([*ENGINES, "router"])
        for name, role in ENGINES.items():
            made.started[name] = start(
                net, folder, name, "pdctl.engine", "--model-path", str(TINY), "--host", net.address(name), "--port",
                "30000", "--disaggregation-mode", role,
            )  # fmt: skip
        url = {name: f"http://{net.address(name)}:30000" for name in ENGINES}
        prefills = [word for name in ENGINES if name[0] == "p" for word in ("--prefill", url[name], "8998")]
        made.started["router"] = start(
            net, folder, "router", "pdctl.router", "--host", net.address("router"), "--port", "8000", *prefills,
            "--decode", url["decode-0"], "--retries", "0", "--cb-failure-threshold", "100000",
        )  # fmt: skip
        wait_for("fleet", lambda: ask(made, 0.0) == {"200": 1}, 120)
        yield made
    finally:
        for process in made.started.values():
            for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                each.kill()
            process.wait()
        net.remove()


# A request every `gap` seconds, whatever becomes of those before: a closed loop would stand still with the peer.
CLIENT = """
import asyncio, collections, json, sys, httpx
async def main(url, gap, seconds):
    counted, tasks = collections.Counter(), []
    async with httpx.AsyncClient(timeout=90, limits=httpx.Limits(max_connections=500)) as client:
        async def one(n):
            body = {"input_ids": [5 + n % 90] * (20 + 90 * (n % 16)), "sampling_params": {"ignore_eos": True,
                    "max_new_tokens": 8 + 16 * (n % 8)}}
            try:
                counted[str((await client.post(url + "/generate", json=body)).status_code)] += 1
            except httpx.HTTPError as error:
                counted[type(error).__name__] += 1
        for n in range(1 + int(seconds / gap)):
            tasks.append(asyncio.create_task(one(n)))
            await asyncio.sleep(gap if seconds else 0)
        await asyncio.gather(*tasks)
    print(json.dumps(counted))
asyncio.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
"""


def asking(fleet: Fleet, gap: float, seconds: float) -> subprocess.Popen[str]:
    where = f"http://{fleet.net.address('router')}:8000"
    return subprocess.Popen(
        ["ip", "netns", "exec", fleet.net.space("router"), sys.executable, "-c", CLIENT, where, str(gap),
         str(seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def ask(fleet: Fleet, seconds: float) -> dict[str, int]:
    said, _ = asking(fleet, 0.2, seconds).communicate(timeout=120)
    found: dict[str, int] = json.loads(said or "{}")
    return found


@pytest.mark.parametrize("fault", MATRIX)
def test_the_peer_that_hangs_is_named(fleet: Fleet, fault: str) -> None:
    source, target = MATRIX[fault]
    wait_for("answers of all before the fault", lambda: set(ask(fleet, 1.0)) == {"200"}, 120)
    began = time.time()
    load = asking(fleet, GAP, HELD)
    time.sleep(2.0)  # the load's own time: rooms in every state
    try:
        fleet.net.cut(source, target) if target else fleet.stop(source, signal.SIGSTOP)
        time.sleep(HELD)
    finally:
        fleet.net.heal(source, target) if target else fleet.stop(source, signal.SIGCONT)
    said, _ = load.communicate(timeout=150)
    wait_for("answers of all after the fault", lambda: set(ask(fleet, 1.0)) == {"200"}, 120)
    broken = verdicts(fleet, began)
    named: Counter[str] = Counter()
    for (_, who), count in broken.items():
        named[who] += count
    print(f"\n{fault}: clients {said.strip()}; {broken.total()} failed rooms")
    for (state, who), count in sorted(broken.items()):
        print(f"  {count:4} {state:12} named: {who or 'nobody'}")
    right = {source, target} - {""}
    assert broken.total() > 0
    assert set(named) <= {*right, ""}, named
    assert sum(named[name] for name in right) >= LEAST * broken.total(), named


def verdicts(fleet: Fleet, since: float) -> Counter[tuple[str, str]]:
    """(phase reached, instance the verdict names) of every room that failed or hung from `since` on."""
    paths = sorted(str(path) for path in fleet.folder.glob("*.log"))
    library = Library(open_logs(paths), tz=dt.datetime.now().astimezone().tzinfo, since=since - 60, index=False)
    tracer = Tracer(library)
    found: Counter[tuple[str, str]] = Counter()
    for one in room_summaries(Tracer(library)):
        if one.outcome in (RoomOutcome.FAILED, RoomOutcome.HUNG) and (one.first_seen or 0.0) >= since - 1:
            room = tracer.trace(one.room)
            state = room.phase_reached.value if room.phase_reached else "-"
            found[state, room.cause.instance if room.cause else ""] += 1
    return found
