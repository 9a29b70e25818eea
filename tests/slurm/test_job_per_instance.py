"""A job for each instance: a host that is lost takes nothing but its own instance."""

from __future__ import annotations

import os
import signal

import pytest

from tests.slurm.conftest import Cluster, Login, eventually

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
APART = (
    "targets.slurm.layout=job-per-instance", "roles.decode.instances=2", "roles.decode.tp=1",
    "readiness.restart.backoff=200ms", "engine.args.max-total-tokens=4096",
)  # fmt: skip


def test_the_others_go_on_when_a_host_is_lost(cluster: Cluster, login: Login) -> None:
    run = login.launch("slurm-2p1d", "apart", *APART)
    allocation = run.state["allocation"]
    assert len(allocation["others"]) == 3
    assert sorted(seat["node"] for seat in allocation["seats"]) == list(cluster.nodes)
    text = run.answer("Hello there")["text"]

    run.kill("decode-0")
    eventually(lambda: run.events("routed"), "decode-0 is back")
    host = run.process("decode-1")["place"]
    cluster.lose_node(host)
    try:
        eventually(lambda: run.process("decode-1")["exit"], "the loss is noticed")
        eventually(lambda: any("stays down" in each["detail"] for each in run.events("died")), "it is given up")
        died = [each["detail"] for each in run.events("died") if each["subject"] == "decode-1"]
        assert died[0].startswith(f"was lost with its node {host} (")
        assert died[1].endswith("; decode-0 goes on")
        assert run.state["state"] == "serving"
        assert [run.answer("Hello there")["text"] for _ in range(4)] == [text] * 4
        status = login.pdctl("status", "apart")
        assert status.returncode == 8
        assert f"was lost with its node {host}" in status.stdout
        down = login.pdctl("down", "apart")
        assert down.returncode == 0, down.stderr
        eventually(lambda: not cluster.call("squeue", "-h").stdout, "every job is gone")
    finally:
        for pid in cluster.left():  # of a host without a daemon
            os.kill(pid, signal.SIGKILL)
        cluster.start_node(host)
        eventually(lambda: cluster.call("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D").stdout == "4\n", "idle")


def test_cancelling_the_supervisors_job_ends_all_of_them(cluster: Cluster, login: Login) -> None:
    run = login.launch("slurm-2p1d", "ended", *APART)
    cluster.call("scancel", run.job)
    eventually(lambda: not cluster.call("squeue", "-h").stdout, "every job is gone")
    eventually(lambda: not cluster.left(), "no process is left", 20)
