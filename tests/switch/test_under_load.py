"""Roles change while a fleet serves: nobody loses a request, no page is lost, every router knows (heavy).

The published router beside ours takes part where PDCTL_TEST_SMG names the smg 1.13.0 executable.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import plain_http
from tests.e2e.conftest import Deployment, wait_for
from tests.ports import free_block
from tests.switch.load import PROMPTS, Load

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

FLAG = "enable-pd-role-switch=true"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    home = tmp_path_factory.mktemp("state")
    router, http, bootstrap = free_block(1), free_block(4), free_block(4)
    urls = [f"http://127.0.0.1:{http + index}" for index in range(4)]
    made = Deployment("switch", home, f"http://127.0.0.1:{router}", tuple(urls[:2]), tuple(urls[2:]))
    sets = [
        f"router.port={router}", f"ports.http={http}", f"ports.bootstrap={bootstrap}", "roles.decode.instances=2",
        f"roles.prefill.args.{FLAG}", f"roles.decode.args.{FLAG}",
    ]  # fmt: skip
    words = [word for one in sets for word in ("--set", one)]
    made.pdctl("launch", "topologies/2p1d.yaml", "-d", "--name", "switch", "--on-death", "instance", *words)
    yield made
    made.pdctl("down", "switch")


def bootstrap_ports(fleet: Deployment) -> dict[str, int]:
    """By URL; every instance has one."""
    urls = (*fleet.prefills, *fleet.decodes)
    return {url: plain_http.get(f"{url}/server_info").json()["disaggregation_bootstrap_port"] for url in urls}


@contextlib.contextmanager
def smg(fleet: Deployment, logs: Path) -> Iterator[str]:
    """The published router over the same fleet."""
    program = os.environ.get("PDCTL_TEST_SMG")
    if not program:
        pytest.skip("PDCTL_TEST_SMG names no smg executable")
    port, metrics = free_block(1), free_block(1)
    command = [program, "launch", "--pd-disaggregation", "--policy", "round_robin", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-port", str(metrics)]
    ports = bootstrap_ports(fleet)
    for url in fleet.prefills:
        command += ["--prefill", url, str(ports[url])]
    for url in fleet.decodes:
        command += ["--decode", url]
    with (logs / "smg.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for("smg ready", lambda: plain_http.get(f"{url}/readiness", timeout=5).status_code == 200, 120)
        wait_for("smg with four workers", lambda: plain_http.get(f"{url}/workers").json()["total"] == 4, 60)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def listed(router: str) -> dict[str, tuple[str, int | None]]:
    """URL → role and bootstrap port, as a router has them."""
    entries = plain_http.get(f"{router}/workers").json()["workers"]
    return {entry["url"]: (entry["worker_type"], entry.get("bootstrap_port")) for entry in entries}


def modes(fleet: Deployment) -> dict[str, str]:
    urls = (*fleet.prefills, *fleet.decodes)
    return {url: plain_http.get(f"{url}/model_info").json()["disaggregation_mode"] for url in urls}


def switch(fleet: Deployment, instance: str, to: str, *more: str) -> dict:
    done = fleet.pdctl("role-switch", instance, "--to", to, "--run", "switch", "-o", "json", *more)
    found = json.loads(done.stdout)
    assert found["standing"] == "switched", found
    return found


def round_trip(fleet: Deployment, routers: list[str], *more: str) -> Load:
    """Prefill to decode and back, decode to prefill and back, under load."""
    ports = bootstrap_ports(fleet)
    second_prefill, second_decode = fleet.prefills[1], fleet.decodes[1]
    with Load(routers) as load:
        wait_for("answers through every router", lambda: len(load.served) == len(routers), 60)
        for instance, url, to in (
            ("prefill-1", second_prefill, "decode"),
            ("prefill-1", second_prefill, "prefill"),
            ("decode-1", second_decode, "prefill"),
            ("decode-1", second_decode, "decode"),
        ):
            switch(fleet, instance, to, *more)
            assert modes(fleet)[url] == to
            for router in routers:
                assert listed(router)[url] == (to, ports[url] if to == "prefill" else None)
    return load


def check(fleet: Deployment, load: Load) -> None:
    assert load.lost == []
    assert set(load.texts) == set(PROMPTS)
    assert all(len(texts) == 1 for texts in load.texts.values()), load.texts
    wait_for("every page free", fleet.all_pages_free, 30)


def test_nobody_loses_a_request(fleet: Deployment) -> None:
    load = round_trip(fleet, [fleet.router])
    check(fleet, load)


def test_two_routers_are_told(fleet: Deployment, tmp_path: Path) -> None:
    with smg(fleet, tmp_path) as other:
        load = round_trip(fleet, [fleet.router, other], "--router", fleet.router, "--router", other)
    assert min(load.served.values()) > 0
    check(fleet, load)


def test_who_died_comes_back_in_the_role_it_had(fleet: Deployment) -> None:
    """The supervisor starts it as what it was, and the router, which never heard of the death, takes it back."""
    switch(fleet, "decode-1", "prefill")
    os.kill(fleet.processes()["decode-1"], 9)
    url = fleet.decodes[1]

    def back() -> bool:
        entries = plain_http.get(f"{fleet.router}/workers").json()["workers"]
        entry = next(one for one in entries if one["url"] == url)
        return modes(fleet)[url] == "prefill" and entry["is_healthy"] and entry["worker_type"] == "prefill"

    wait_for("decode-1 is a prefill again", back, 90)
    wait_for("a run that serves", lambda: fleet.pdctl("status", "switch", check=False).returncode == 0, 60)
    assert "3P1D" in fleet.pdctl("status", "switch").stdout
    switch(fleet, "decode-1", "decode")
