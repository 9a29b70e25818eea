"""What a running 2P1D tells of its load, while clients send: `pdctl status`."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
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
