"""The shipped topology on sixteen hosts, and all of them taken: six prefills, five decodes over two hosts each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, missing
from tests.slurm.conftest import Login, eventually

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    why = missing()
    if why:
        pytest.skip(why)
    with Cluster(16) as started:
        yield started


def test_eleven_instances_on_sixteen_hosts(cluster: Cluster, login: Login) -> None:
    run = login.launch(
        "slurm-2p1d", "wide", "roles.prefill.instances=6", "roles.decode.instances=5",
        "engine.args.max-total-tokens=2048", "readiness.restart.backoff=200ms",
    )  # fmt: skip
    hosts = {each["place"] for each in run.state["processes"]}
    assert hosts == set(cluster.nodes)
    assert len(run.events("pair")) == 30
    texts = {run.answer("Hello there")["text"] for _ in range(30)}
    assert len(texts) == 1

    run.kill("decode-3-node1")
    run.kill("prefill-2")
    eventually(lambda: len(run.events("routed")) == 2, "the router knows both new addresses")
    assert {run.process(name)["generation"] for name in ("decode-3", "decode-3-node1", "prefill-2")} == {2}
    assert {run.answer("Hello there")["text"] for _ in range(30)} == texts
    status = login.pdctl("status", "wide")
    assert status.returncode == 0, status.stdout
    down = login.pdctl("down", "wide")
    assert "nothing left: 17 processes gone" in down.stderr
    assert cluster.left() == ()
