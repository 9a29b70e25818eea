"""Hosts with addresses of their own, in network namespaces: equal ports everywhere, as on real hosts. Needs root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.slurm.cluster import Cluster, missing, missing_namespaces
from tests.slurm.conftest import Login, eventually

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    why = missing() or missing_namespaces()
    if why:
        pytest.skip(why)
    with Cluster(4, namespaces=True) as started:
        yield started


@pytest.fixture
def login(cluster: Cluster, tmp_path: Path) -> Iterator[Login]:
    side = Login(cluster, tmp_path / "login")
    yield side
    side.close()


@pytest.mark.parametrize("interface", ["", "eth0"])
def test_every_host_has_the_same_ports(cluster: Cluster, login: Login, interface: str) -> None:
    given = [f"targets.slurm.interface={interface}"] if interface else []
    run = login.launch("slurm-2p1d", "apart", "readiness.restart.backoff=200ms", *given)
    specs = {spec["name"]: spec for spec in run.state["deployment"]["roles"]}
    assert [specs[f"prefill-{at}"]["host"] for at in (0, 1)] == [cluster.address("n0"), cluster.address("n1")]
    assert len({specs[name]["port"] for name in ("prefill-0", "prefill-1", "decode-0")}) == 1
    assert len({specs[name]["bootstrap_port"] for name in ("prefill-0", "prefill-1")}) == 1
    assert run.answer("Hello there")["text"]
    doctor = login.pdctl("doctor", "--run", "apart")
    assert doctor.returncode == 0, doctor.stdout
    if interface:
        return
    run.kill("decode-0-node1")
    eventually(lambda: run.events("routed"), "the router knows the new address")
    assert run.spec("decode-0")["port"] == specs["decode-0"]["port"] + 32
    assert run.answer("Hello there")["text"]


def test_a_host_that_cannot_be_reached_any_more_is_told_with_its_instance(cluster: Cluster, login: Login) -> None:
    run = login.launch("slurm-2p1d", "cut")
    cluster.lose_node("n3")
    eventually(lambda: run.state["state"] == "failed", "the run is over")
    told = run.state["outcome"]["message"]
    assert told.startswith(("decode-0 ", "decode-0-node1 ")), told
    lost = run.process("decode-0-node1")["exit"]["lost"]
    assert lost.startswith("was lost with its node n3 (")
    with pytest.raises(httpx.HTTPError):
        run.answer("Hello there")
