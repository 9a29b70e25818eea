"""What a running 2P1D tells of its load, while clients send: `pdctl status` and `pdctl autoscale advise`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import plain_http
from tests.e2e.conftest import Deployment, wait_for

WORDS = " ".join(f"word{number}" for number in range(60))


@contextlib.contextmanager
def burst(deployment: Deployment, clients: int, tokens: int = 150) -> Iterator[None]:
    """Clients that each send one request after the other, until the block is left."""
    over = threading.Event()
    failed: list[str] = []

    def send(number: int) -> None:
        count = 0
        while not over.is_set():
            count += 1
            text = f"client {number} asks {count}: {WORDS}"
            body = {"text": text, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
            answer = plain_http.post(f"{deployment.router}/generate", json=body, timeout=120)
            if answer.status_code != 200:
                failed.append(answer.text[:300])

    threads = [threading.Thread(target=send, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed, failed[:3]


@pytest.fixture(scope="module")
def deployment(two_prefills: Deployment) -> Deployment:
    wait_for("free pages", two_prefills.all_pages_free)
    return two_prefills


def instances(deployment: Deployment) -> dict[str, dict[str, Any]]:
    document = json.loads(deployment.pdctl("status", deployment.name, "-o", "json").stdout)
    return {one["name"]: one for one in document["instances"]}


def test_status_shows_pages_and_queues(deployment: Deployment) -> None:
    idle = instances(deployment)
    pages = plain_http.get(f"{deployment.decodes[0]}/server_info", timeout=10).json()["num_pages"]
    for name in ("prefill-0", "prefill-1", "decode-0"):
        assert (idle[name]["used_pages"], idle[name]["pages"]) == (0, pages)
        assert set(idle[name]["queues"]) == {
            "running", "waiting", "bootstrap", "inflight", "prealloc", "transfer", "retracted",
        }  # fmt: skip
        assert not any(idle[name]["queues"].values())
    assert (idle["router"]["used_pages"], idle["router"]["pages"], idle["router"]["queues"]) == (None, None, None)
    table = [line.split("\t") for line in deployment.pdctl("status", deployment.name).stdout.splitlines()]
    head = next(row for row in table if row[0] == "NAME")
    cells = {row[0]: dict(zip(head, row, strict=False)) for row in table[1:]}
    assert (cells["decode-0"]["PAGES"], cells["decode-0"]["QUEUES"]) == (f"0/{pages}", "empty")
    assert (cells["router"]["PAGES"], cells["router"]["QUEUES"]) == ("-", "-")
    with burst(deployment, clients=6):
        busy = wait_for(
            "a decode with running rooms",
            lambda: one if (one := instances(deployment)["decode-0"])["queues"]["running"] else None,
        )
        assert 0 < busy["used_pages"] <= pages
        wait_for("the same in the table", lambda: "\trunning " in deployment.pdctl("status", deployment.name).stdout)
    wait_for("free pages", deployment.all_pages_free)


def advise(deployment: Deployment, *words: str) -> list[dict[str, Any]]:
    done = deployment.pdctl("autoscale", "advise", *words, "-o", "jsonl")
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def observations(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["observation"] for line in file.read_text(encoding="utf-8").splitlines()[1:]]


@pytest.mark.parametrize("by", ["run", "router", "servers"])
def test_advice_under_a_burst_and_again_from_its_record(deployment: Deployment, tmp_path: Path, by: str) -> None:
    fleet = {
        "run": ["--run", deployment.name],
        "router": ["--router", deployment.router],
        "servers": [*(w for url in deployment.prefills for w in ("--prefill", url)), "--decode", deployment.decodes[0]],
    }[by]
    record = tmp_path / "fleet.jsonl"
    words = ("--count", "5", "--interval", "1s", "--timeout", "20s", "--record", str(record))
    with burst(deployment, clients=4, tokens=12):  # short ones: some must end between two looks
        live = deployment.pdctl("autoscale", "advise", *fleet, *words, "-o", "jsonl").stdout
    told = [json.loads(line) for line in live.splitlines()]
    assert [one["notes"] for one in told] == [[]] * 5
    seen = observations(record)
    assert all((one["prefills"], one["decodes"], one["block_tokens"]) == (2, 1, 16) for one in seen)
    assert any(one["kv_blocks_used"] for one in seen)
    assert max(one.get("measured", {}).get("requests_per_s", 0) for one in seen) > 0
    assert seen[-1]["prefill_tokens_per_s"] > 0
    assert seen[-1]["kv_ingress_tokens_per_s"] > 0
    assert seen[-1]["measured"]["output_tokens"] == 12
    names = [one["policy"] for one in told[-1]["decisions"]] + [one["policy"] for one in told[-1]["undecided"]]
    assert set(names) == {"blitz", "thresholds", "ratio", "static", "dynamo-load", "dynamo-throughput", "wva", "kpa"}
    assert len(told[-1]["decisions"]) == 8, told[-1]["undecided"]
    again = deployment.pdctl("autoscale", "advise", "--replay", str(record), "-o", "jsonl").stdout
    assert again == live
    text = deployment.pdctl("autoscale", "advise", "--replay", str(record)).stdout
    assert "2 prefills, 1 decode; backlog " in text
    wait_for("free pages", deployment.all_pages_free)


def test_advice_goes_on_while_an_instance_hangs(deployment: Deployment, tmp_path: Path) -> None:
    """The decode is stopped: nobody learns of it but by its silence, for which a look has a time."""
    pid = deployment.processes()["decode-0"]
    record = tmp_path / "fleet.jsonl"
    whole = ("--run", deployment.name, "--policy", "wva", "--count", "1", "--timeout", "20s")
    assert advise(deployment, *whole)[0]["notes"] == []
    os.killpg(pid, signal.SIGSTOP)
    try:
        brief = ("--router", deployment.router, "--policy", "wva", "--count", "2", "--timeout", "1s")
        told = advise(deployment, *brief, "--interval", "0.1s", "--record", str(record))
    finally:
        os.killpg(pid, signal.SIGCONT)
    for one in told:
        assert any("decode-0 (" in note and "no answer within" in note for note in one["notes"]), one
        assert [made["policy"] for made in one["decisions"]] == ["wva"]
    assert [one["decodes"] for one in observations(record)] == [1, 1]
    assert not observations(record)[0]["replicas"][-1]["ready"]
    wait_for("the decode", lambda: advise(deployment, *whole)[0]["notes"] == [])
