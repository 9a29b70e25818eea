"""pdctl on a real Slurm: four hosts, two prefills, a decode over two hosts; what dies, what is told, what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pdctl.launch import procfs
from tests.ports import free_block
from tests.slurm.conftest import Cluster, Login, Run, eventually

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
PDCTL = (sys.executable, "-m", "pdctl")
QUICK = ("readiness.restart.backoff=200ms", "engine.args.max-total-tokens=4096")


def test_serves_with_a_decode_over_two_hosts_and_a_dead_rank_comes_back(cluster: Cluster, login: Login) -> None:
    run = login.launch("slurm-2p1d", "twice", *QUICK)
    places = {each["name"]: each["place"] for each in run.state["processes"]}
    assert places == {"prefill-0": "n0", "prefill-1": "n1", "decode-0": "n2", "decode-0-node1": "n3", "router": "n0"}
    first = run.answer("Hello there")

    status = login.pdctl("status", "twice")
    assert status.returncode == 0, status.stdout
    assert f"job {run.job}, ends in " in status.stdout
    assert "@n3\t" in status.stdout

    before = run.spec("decode-0")["port"]
    run.kill("decode-0-node1")
    eventually(lambda: run.events("routed"), "the router knows the new address")
    assert run.events("died")[0]["subject"].startswith("decode-0")
    assert {run.process(name)["generation"] for name in ("decode-0", "decode-0-node1")} == {2}
    assert run.process("prefill-0")["generation"] == 1
    port = run.spec("decode-0")["port"]
    assert port == before + 4 * 32  # four nodes at one address, 32 ports each
    assert run.events("routed")[0]["detail"] == f"the router knows it at http://127.0.0.1:{port}"
    assert run.answer("Hello there")["text"] == first["text"]

    os.kill(procfs.descendants(run.process("router")["pid"])[0], signal.SIGKILL)
    eventually(lambda: run.process("router")["generation"] == 2, "the router is started again")
    waited = login.pdctl("status", "twice", "--wait", "--timeout", "60s")
    assert waited.returncode == 0, waited.stdout + waited.stderr
    assert run.answer("Hello there")["text"] == first["text"]

    logs = login.pdctl("logs", "twice", "decode-0")
    for generation in (1, 2):
        assert f"pdctl: decode-0 generation {generation}: " in logs.stdout
    rooms = login.pdctl("rooms", "--run", "twice")
    assert rooms.returncode == 0, rooms.stderr
    room = next(line.split()[0] for line in reversed(rooms.stdout.splitlines()) if line[:1].isdigit())
    traced = login.pdctl("trace-room", room, "--run", "twice")
    assert "decode-0" in traced.stdout, traced.stderr
    assert "several decodes" not in traced.stdout, "the nodes of an instance are one decode"

    down = login.pdctl("down", "twice")
    assert down.returncode == 0, down.stderr
    assert "nothing left: 5 processes gone" in down.stderr
    assert cluster.left() == ()
    assert cluster.call("squeue", "-h").stdout == ""


def test_scancel_leaves_nothing_and_is_told(cluster: Cluster, login: Login) -> None:
    run = login.launch("slurm-2p1d", "cancelled", *QUICK)
    subprocess.run(["scancel", run.job], env=login.environ, check=True)
    eventually(lambda: not cluster.call("squeue", "-h").stdout.strip(), "the job is gone")
    eventually(lambda: not cluster.left(), "no process is left", 20)
    status = login.pdctl("status", "cancelled")
    assert status.returncode == 8
    assert "SIGTERM" in status.stdout or "CANCELLED" in status.stdout, status.stdout


def test_a_supervisor_that_is_killed_takes_everything_along(cluster: Cluster, login: Login) -> None:
    run = login.launch("slurm-2p1d", "orphan", *QUICK)
    os.kill(run.state["supervisor"], signal.SIGKILL)
    eventually(lambda: not cluster.call("squeue", "-h").stdout.strip(), "the job is gone")
    eventually(lambda: not cluster.left(), "no process is left", 20)
    status = login.pdctl("status", "orphan")
    assert status.returncode == 8
    assert f"job {run.job} is FAILED" in status.stdout, status.stdout
    down = login.pdctl("down", "orphan")
    assert down.returncode == 0, down.stderr
    assert "orphan is stopped; its supervisor had died" in down.stdout
    assert run.state["state"] == "stopped"


def test_a_lost_host_is_told_with_the_instance(cluster: Cluster, login: Login) -> None:
    run = login.launch("slurm-2p1d", "lost", *QUICK)
    try:
        cluster.lose_node("n3")
        eventually(lambda: run.state["state"] == "failed", "the run is over")
        died = run.events("died")
        assert died[0]["subject"] == "decode-0-node1"
        assert died[0]["detail"].startswith("was lost with its node n3 (")
        outcome = run.state["outcome"]["message"]
        assert outcome.startswith("decode-0-node1 was lost with its node n3 (")
        assert "decode-0-node1 on n3, out of reach, cannot be ended" in run.state["events"][-1]["detail"]
    finally:
        for pid in cluster.left():  # of a host without a daemon
            os.kill(pid, signal.SIGKILL)
        cluster.start_node("n3")
        eventually(lambda: cluster.call("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D").stdout == "4\n", "idle")


def test_a_job_that_cannot_start_tells_why_until_its_patience_ends(cluster: Cluster, login: Login) -> None:
    blocker = cluster.call("sbatch", "--parsable", "--nodes=4", "--exclusive", "--wrap", "sleep 300").stdout.strip()
    try:
        eventually(lambda: "RUNNING" in cluster.call("squeue", "-h", "-o", "%T").stdout, "the cluster is full")
        done = login.pdctl(
            "launch", "slurm-2p1d", "-t", "slurm", "-d", "--name", "late", "--no-doctor", "--queue-timeout", "3s",
            "--set", f"targets.slurm.shared-dir={login.shared}",
        )  # fmt: skip
        assert done.returncode == 8, done.stderr
        assert "did not start within 3.0 s: Resources" in done.stderr
        assert "waits: Resources" in done.stderr
        assert cluster.call("squeue", "-h", "-n", "late").stdout == ""
    finally:
        cluster.call("scancel", blocker)


def test_two_pools_are_two_components_of_one_job(cluster: Cluster, login: Login) -> None:
    (login.home / "mixed.yaml").write_text(MIXED)
    run = login.launch("mixed.yaml", "mixed")
    seats = [(each["planned"], each["node"], each["component"]) for each in run.state["allocation"]["seats"]]
    assert seats == [("front-0", "n0", 0), ("back-0", "n2", 1), ("back-1", "n3", 1)]
    assert run.answer("Hello there")["text"]
    run.kill("decode-0")
    eventually(lambda: run.events("routed"), "the router knows the new address")
    assert run.answer("Hello there")["text"]
    down = login.pdctl("down", "mixed")
    assert "nothing left: 4 processes gone" in down.stderr, down.stderr
    assert cluster.left() == ()


def test_an_instance_sees_its_own_gpus_only(login: Login) -> None:
    (login.home / "gpus.yaml").write_text(GPUS)
    done = login.pdctl(
        "launch", "gpus.yaml", "-t", "slurm", "-d", "--no-doctor", "--timeout", "6s",
        "--set", f"targets.slurm.shared-dir={login.shared}",
    )  # fmt: skip
    assert done.returncode == 8, done.stderr
    logs = login.pdctl("logs", "gpus", "--raw").stdout
    for name, gpus in (("prefill-0", "0,1"), ("prefill-1", "2,3"), ("decode-0", "0,1,2,3")):
        assert f"sees {gpus}" in login.pdctl("logs", "gpus", name).stdout, logs


def test_ctrl_c_of_a_launch_in_the_foreground_ends_the_job(cluster: Cluster, login: Login) -> None:
    flags = [f"targets.slurm.shared-dir={login.shared}", f"router.port={free_block(1)}", *QUICK]
    words = [word for setting in flags for word in ("--set", setting)]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pdctl",
            "launch",
            "slurm-2p1d",
            "-t",
            "slurm",
            "--name",
            "front",
            "--no-doctor",
            *words,
        ],
        env=login.environ,
        cwd=login.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("serving at http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, err
    assert "nothing left: 5 processes gone" in err
    assert cluster.left() == ()
    assert cluster.call("squeue", "-h").stdout == ""


def test_a_run_leaves_before_its_time_is_over_and_tells_how_long_it_has(cluster: Cluster, login: Login) -> None:
    run = login.launch("slurm-2p1d", "brief", "targets.slurm.time=1m30s", *QUICK)
    assert run.events("limit")[0]["detail"].startswith("the allocation ends in 1m")
    eventually(lambda: run.state["state"] == "failed", "the run is over")
    assert "its time is over" in run.state["outcome"]["message"]
    eventually(lambda: not cluster.call("squeue", "-h").stdout, "the job is gone")
    assert cluster.left() == ()


def test_a_second_run_of_a_name_that_is_alive_is_refused(cluster: Cluster, login: Login) -> None:
    blocker = cluster.call("sbatch", "--parsable", "--nodes=4", "--exclusive", "--wrap", "sleep 300").stdout.strip()
    words = (
        "launch",
        "slurm-2p1d",
        "-t",
        "slurm",
        "-d",
        "--name",
        "one",
        "--no-doctor",
        "--set",
        "targets.slurm.time=5m",
    )
    flags = (*words, "--set", f"targets.slurm.shared-dir={login.shared}")
    first = subprocess.Popen([*PDCTL, *flags], env=login.environ, cwd=login.home)
    try:
        run = Run(login, "one")
        eventually(lambda: (run.directory / "run.json").exists() and run.state["allocation"], "the job is in the queue")
        status = login.pdctl("status", "one")
        assert f"job {run.job} waits: " in status.stdout
        second = login.pdctl(*flags)
        assert second.returncode == 1
        assert f"run `one` is pending at http://cpu-0:8000 (job {run.job}, since " in second.stderr
        down = login.pdctl("down", "one")
        assert down.returncode == 0, down.stderr
        assert cluster.call("squeue", "-h", "-n", "one").stdout == ""
        assert first.wait(timeout=30) == 1
    finally:
        cluster.call("scancel", blocker)
        first.kill()


MIXED = """
version: pdctl/v1
name: mixed
engine: {args: {num-threads: 1, max-total-tokens: 4096}}
pools: {front: {gpus-per-host: 2}, back: {gpus-per-host: 1}}
roles:
  prefill: {instances: 1, tp: 2, pool: front}
  decode: {instances: 1, tp: 2, pool: back}
readiness: {timeout: 5m, restart: {policy: instance, backoff: 200ms}}
targets: {slurm: {time: 30m, pools: {front: {partition: left}, back: {partition: right}}}}
"""
GPUS = """
version: pdctl/v1
name: gpus
model: {path: Qwen/Qwen3-4B}
engine: {kind: sglang, command: [sh, -c, "echo sees $$CUDA_VISIBLE_DEVICES; exec sleep 60"]}
pools: {gpu: {gpus-per-host: 4}}
roles:
  prefill: {instances: 2, tp: 2}
  decode: {instances: 1, tp: 4}
targets: {slurm: {time: 30m}}
"""
