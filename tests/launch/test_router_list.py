"""A router that is told of a server that moved: pdctl's own router, with real servers behind it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from pdctl.fleet import router_probe as asking
from pdctl.launch import router_list
from pdctl.launch.deployment import ServerRole, Spec
from pdctl.launch.runtime import Told
from tests.launch.conftest import eventually, standin
from tests.ports import free_ports


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        process.kill()
        process.wait()


def run(specs: list[Spec], started: list[subprocess.Popen[bytes]]) -> None:
    started += [subprocess.Popen(spec.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for spec in specs]


def test_a_server_that_moved_is_taken_and_its_old_address_forgotten(started: list[subprocess.Popen[bytes]]) -> None:
    prefill_port, bootstrap, old_port, new_port, router_port = free_ports(5)
    prefill = standin(ServerRole.PREFILL, 0, prefill_port, bootstrap=bootstrap)
    old, new = standin(ServerRole.DECODE, 0, old_port), standin(ServerRole.DECODE, 0, new_port)
    argv = (
        sys.executable, "-m", "pdctl.router", "--port", str(router_port),
        "--prefill", prefill.url, str(bootstrap), "--decode", old.url,
    )  # fmt: skip
    router = dataclasses.replace(standin(ServerRole.ROUTER, 0, router_port), argv=argv)
    run([prefill, old, new, router], started)
    eventually(lambda: asking.fetch(router.url).ready, "the router is ready")

    told: SimpleQueue[Told] = SimpleQueue()
    router_list.announce(router.url, new, 2, (old.url,), told.put)
    assert told.get(timeout=30) == Told("decode-0", 2, "")
    state = asking.fetch(router.url)
    assert {worker.url for worker in state.workers} == {prefill.url, new.url}

    router_list.forget(router.url, new)
    eventually(lambda: not asking.fetch(router.url).lists(new.url), "the address is forgotten")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("PDCTL_TEST_SGLANG_ROUTER", ("-m", "sglang_router.launch_router", "--pd-disaggregation")),
        ("PDCTL_TEST_SMG", ("launch", "--pd-disaggregation")),
    ],
)
def test_the_published_routers_take_a_server_that_moved(
    variable: str, words: tuple[str, ...], started: list[subprocess.Popen[bytes]]
) -> None:
    program = os.environ.get(variable)
    if not program:
        pytest.skip(f"set {variable}")
    prefill_port, bootstrap, old_port, new_port, router_port = free_ports(5)
    prefill = standin(ServerRole.PREFILL, 0, prefill_port, bootstrap=bootstrap)
    old, new = standin(ServerRole.DECODE, 0, old_port), standin(ServerRole.DECODE, 0, new_port)
    argv = (
        program, *words, "--host", "127.0.0.1", "--port", str(router_port),
        "--prefill", prefill.url, str(bootstrap), "--decode", old.url,
    )  # fmt: skip
    router = dataclasses.replace(standin(ServerRole.ROUTER, 0, router_port), argv=argv)
    run([prefill, old, new, router], started)
    eventually(lambda: asking.fetch(router.url).lists(old.url), "the router knows its servers", 60)
    told: SimpleQueue[Told] = SimpleQueue()
    router_list.announce(router.url, new, 2, (old.url,), told.put)
    assert told.get(timeout=70) == Told("decode-0", 2, "")
    eventually(lambda: not asking.fetch(router.url).lists(old.url), "the old address is forgotten")


def test_a_router_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_list, "PATIENCE", 0.5)
    (port,) = free_ports(1)
    told: SimpleQueue[Told] = SimpleQueue()
    began = time.monotonic()
    router_list.announce(f"http://127.0.0.1:{port}", standin(ServerRole.DECODE, 0, 1), 2, (), told.put)
    problem = told.get(timeout=30).problem
    assert problem.startswith(f"the router at http://127.0.0.1:{port} does not take http://127.0.0.1:1: ")
    assert time.monotonic() - began < 30


def test_a_router_that_starts_again_is_given_the_addresses_of_now() -> None:
    router = dataclasses.replace(
        standin(ServerRole.ROUTER, 0, 1),
        argv=("router", "--prefill", "http://a:1", "8998", "--prefill", "http://b:1", "8998", "--decode", "http://c:2"),
    )
    prefill = dataclasses.replace(standin(ServerRole.PREFILL, 0, 33, bootstrap=9030), host="a")
    decode = dataclasses.replace(standin(ServerRole.DECODE, 0, 34), host="c")
    assert router_list.readdressed(router, {"http://a:1": prefill, "http://c:2": decode}) == (
        "router", "--prefill", "http://a:33", "9030", "--prefill", "http://b:1", "8998", "--decode", "http://c:34",
    )  # fmt: skip
