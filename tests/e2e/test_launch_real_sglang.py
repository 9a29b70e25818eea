"""`pdctl launch` of real SGLang behind each router: ready, verified, answering, healthy, traceable, gone (heavy).

PDCTL_TEST_SGLANG_HOME holds `VERSION/bin/sglang-python`, a Python in which that release runs on a CPU and which has
sglang-router 0.3.2 too, and a `model` directory; PDCTL_TEST_SMG names the smg 1.13.0 executable. See docs/testing.md.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import plain_http
from tests.e2e.conftest import ROOT, wait_for

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

TO_SERVE = 900.0  # seconds: two busy cores start three servers in one to three minutes
REQUESTS = 50
LAUNCH_ROUTER = "sglang_router.launch_router"


@dataclass(frozen=True)
class Walk:
    """One launched deployment, in the foreground as a user has it."""

    name: str
    home: Path
    url: str
    ports: tuple[int, ...]
    process: subprocess.Popen[str]
    said: Path

    def pdctl(self, *argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pdctl", *argv]
        return subprocess.run(
            command, env=environment(self.home), capture_output=True, text=True, timeout=300, cwd=ROOT
        )

    def asked(self, *argv: str) -> Any:
        done = self.pdctl(*argv, "-o", "json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + TO_SERVE
        while "serving at" not in self.said.read_text():
            assert self.process.poll() is None, self.said.read_text()[-4000:]
            assert time.monotonic() < deadline, f"not serving: {self.said.read_text()[-4000:]}"
            time.sleep(0.5)


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PDCTL_HOME": str(home), "OMP_NUM_THREADS": "1"}


def python(version: str) -> Path:
    found = Path(os.environ.get("PDCTL_TEST_SGLANG_HOME", "")) / version / "bin" / "sglang-python"
    if not found.is_file():
        pytest.skip(f"PDCTL_TEST_SGLANG_HOME has no {version}/bin/sglang-python")
    return found


def router_settings(kind: str, metrics: int, launcher: Path) -> list[str]:
    settings = [f"router.kind={kind}"]
    if kind in ("sglang-router", "smg"):
        settings += [f"router.args.prometheus-port={metrics}", "router.args.prometheus-host=127.0.0.1"]
    if kind == "smg":
        smg = os.environ.get("PDCTL_TEST_SMG")
        if not smg:
            pytest.skip("PDCTL_TEST_SMG names no smg executable")
        return [*settings, f"router.command=[{smg}, launch]"]
    return [*settings, "router.command=[]" if kind == "pdctl" else f"router.command=[{launcher}, -m, {LAUNCH_ROUTER}]"]


@pytest.fixture(params=["0.5.8", "0.5.23"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sglang-router", "smg", "pdctl", "mini-lb"])
def walk(request: pytest.FixtureRequest, version: str, tmp_path: Path) -> Iterator[Walk]:
    launcher, http = python(version), lasting_block(110)
    bootstrap, own, dist = http + 3, http + 5, http + 10
    model = Path(os.environ["PDCTL_TEST_SGLANG_HOME"]) / "model"
    name = f"walk-{request.param}"
    settings = ["model.config=null", f"ports.http={http}", f"ports.bootstrap={bootstrap}"]
    settings += [f"ports.dist-init={dist}", f"router.port={own}"]
    settings += router_settings(str(request.param), own + 1, launcher)
    command = [sys.executable, "-m", "pdctl", "launch", "topologies/sglang-2p1d-cpu.yaml", "--name", name]
    command += [
        "--progress",
        "plain",
        "--timeout",
        f"{TO_SERVE:g}s",
        *(word for one in settings for word in ("--set", one)),
    ]
    env = environment(tmp_path)
    env |= {"SGLANG_PYTHON": str(launcher), "SGLANG_MODEL": str(model), "SGLANG_VERSION": version}
    said = tmp_path / "launch.out"
    with said.open("w") as file:
        process = subprocess.Popen(command, env=env, stdout=file, stderr=file, text=True, cwd=ROOT)
    ports = (http, http + 1, http + 2, bootstrap, bootstrap + 1, own, own + 1)
    found = Walk(name, tmp_path, f"http://127.0.0.1:{own}", ports, process, said)
    try:
        found.wait_until_it_serves()
        yield found
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def lasting_block(count: int) -> int:
    """Consecutive ports that are free, and that no outgoing connection gets while a server starts for minutes."""
    for base in random.sample(range(15000, 30000, 120), 100):
        if all(map(closed, range(base, base + count))):
            return base
    raise RuntimeError("no free block of ports")


def ask(url: str, number: int) -> int:
    """A third each of generate, chat and streamed chat."""
    message = {"model": "small", "messages": [{"role": "user", "content": f"number {number}"}], "max_tokens": 6}
    generate = {"text": f"number {number}", "sampling_params": {"temperature": 0, "max_new_tokens": 6}}
    path, body = [
        ("/generate", generate),
        ("/v1/chat/completions", message),
        ("/v1/chat/completions", {**message, "stream": True}),
    ][number % 3]
    return plain_http.post(url + path, json=body, timeout=120).status_code


def closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_real_sglang_from_launch_to_nothing_left(walk: Walk) -> None:
    said = walk.said.read_text()
    for pair in ("prefill-0 → decode-0 answered", "prefill-1 → decode-0 answered"):
        assert pair in said

    with ThreadPoolExecutor(4) as crowd:
        assert Counter(crowd.map(lambda number: ask(walk.url, number), range(REQUESTS))) == {200: REQUESTS}

    # SGLang's /health makes a token, which takes its time on busy cores: more than status waits.
    wait_for("a run with nothing missing", lambda: walk.asked("status", walk.name)["ready"] is True, 120)

    rooms = walk.asked("rooms", "--run", walk.name)["rooms"]
    assert Counter(room["outcome"] for room in rooms)["ok"] >= REQUESTS + 2  # and one of each pair's verification
    first = {room["prefill"]: room["room"] for room in reversed(rooms) if room["outcome"] == "ok"}
    assert set(first) == {"prefill-0", "prefill-1"}, "every prefill took requests"
    for prefill, room in first.items():
        story = walk.asked("trace-room", str(room), "--run", walk.name)
        assert (story["outcome"], story["prefill_contacted"], story["decode"]) == ("ok", prefill, "decode-0")
        told = {(event["role"], event["phase"]) for event in story["events"]}
        assert {
            ("prefill", "received"),
            ("decode", "received"),
            ("prefill", "finished"),
            ("decode", "finished"),
        } <= told

    report = walk.asked("doctor", "--run", walk.name, "--canary", "--timeout", "60s", "--canary-timeout", "90s")
    assert [found for found in report["findings"] if found["severity"] == "error"] == []
    assert [cell["ok"] for cell in report["matrix"]] == [True, True]
    assert walk.process.poll() is None, "no canary harmed it"

    walk.process.send_signal(signal.SIGINT)
    assert walk.process.wait(120) == -signal.SIGINT
    assert "nothing left: 4 processes gone" in walk.said.read_text()
    assert all(map(closed, walk.ports))


@pytest.mark.parametrize("version", ["0.5.23"], indirect=True)
@pytest.mark.parametrize("walk", ["sglang-router"], indirect=True)
def test_advice_under_a_burst_and_again_from_its_record(walk: Walk, tmp_path: Path) -> None:
    record, hung = tmp_path / "fleet.jsonl", tmp_path / "hung.jsonl"
    watch = ("autoscale", "advise", "-o", "jsonl", "--router", walk.url)
    with ThreadPoolExecutor(8) as crowd:
        sent = [crowd.submit(ask, walk.url, number) for number in range(2 * REQUESTS)]
        live = walk.pdctl(*watch, "--count", "8", "--interval", "3s", "--timeout", "20s", "--record", str(record))
        assert Counter(one.result() for one in sent) == {200: 2 * REQUESTS}
    assert (live.returncode, live.stderr) == (0, "")
    told = [json.loads(line) for line in live.stdout.splitlines()]
    assert [one["notes"] for one in told] == [[]] * 8
    seen = [json.loads(line)["observation"] for line in record.read_text().splitlines()[1:]]
    assert {(one["prefills"], one["decodes"], one["block_tokens"], one["kv_blocks_per_replica"]) for one in seen} == {
        (2, 1, 1, 4096)
    }
    assert any(one["kv_blocks_used"] for one in seen)
    assert max(one.get("measured", {}).get("requests_per_s", 0) for one in seen) > 0
    assert 1 < seen[-1]["measured"]["output_tokens"] <= 6, "some answers end before their six tokens"
    assert min(seen[-1]["prefill_tokens_per_s"], seen[-1]["kv_ingress_tokens_per_s"]) > 0
    steps = [next(each for each in one["replicas"] if each["state"] == "decode")["decode_steps"] for one in seen]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]
    assert len(told[-1]["decisions"]) == 8, told[-1]["undecided"]
    again = walk.pdctl("autoscale", "advise", "-o", "jsonl", "--replay", str(record))
    assert again.stdout == live.stdout

    run = json.loads((walk.home / "runs" / walk.name / "run.json").read_text())
    decode = next(one["pid"] for one in run["processes"] if one["name"] == "decode-0")
    os.killpg(decode, signal.SIGSTOP)
    try:
        silent = walk.pdctl(*watch, "--count", "1", "--timeout", "5s", "--record", str(hung))
    finally:
        os.killpg(decode, signal.SIGCONT)
    (one,) = map(json.loads, silent.stdout.splitlines())
    assert any(note.startswith("decode-0 (") and "no answer within" in note for note in one["notes"]), one["notes"]
    assert one["decisions"]
    listed = json.loads(hung.read_text().splitlines()[1])["observation"]["replicas"]
    assert {each["name"]: each.get("ready", True) for each in listed} == {
        "prefill-0": True, "prefill-1": True, "decode-0": False,
    }  # fmt: skip
