"""What keeps a topology from being submitted, asked of a real cluster."""

from __future__ import annotations

import pytest

from tests.slurm.conftest import Cluster, Login

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]


def refused(login: Login, *sets: str, topology: str = "slurm-2p1d") -> str:
    flags = [word for setting in sets for word in ("--set", setting)]
    done = login.pdctl("launch", topology, "-t", "slurm", "-d", "--name", "never", *flags)
    assert done.returncode == 1, done.stdout + done.stderr
    assert login.cluster.call("squeue", "-h").stdout == ""
    return done.stderr


def test_a_partition_that_does_not_exist_is_told_with_the_nearest(login: Login) -> None:
    told = refused(login, "targets.slurm.partition=shrot")
    assert "there is no partition `shrot`; there are main, left, right, short" in told
    assert "--set targets.slurm.partition=short" in told


def test_more_time_than_the_partition_allows(login: Login) -> None:
    told = refused(login, "targets.slurm.partition=short")
    assert "targets.slurm.time 1h is more than partition short allows (2m)" in told
    assert "--set targets.slurm.time=2m" in told


def test_more_hosts_than_there_are(login: Login) -> None:
    assert "pool cpu needs 6 hosts, partition main has 4 of 4" in refused(login, "roles.prefill.instances=4")


def test_gpus_under_another_name(login: Login) -> None:
    told = refused(login, "targets.slurm.gres=accelerator", "engine.args.device=cuda")
    assert "pool cpu needs 4 hosts with 1 accelerator, partition main has 0 of 4" in told
    assert "no host has the resource `accelerator`, there is gpu" in told
    assert "--set targets.slurm.gres=gpu" in told


def test_all_obstacles_are_told_at_once(login: Login) -> None:
    file = login.home / "file"
    file.write_text("no directory")
    told = refused(login, f"targets.slurm.shared-dir={file}", "targets.slurm.partition=nowhere")
    assert f"{file}/never cannot be written" in told
    assert "there is no partition `nowhere`" in told


def test_a_directory_that_cannot_be_made_is_told(login: Login) -> None:
    assert "/proc/nowhere/never cannot be written: No such file" in refused(
        login, "targets.slurm.shared-dir=/proc/nowhere"
    )


def test_what_this_version_does_not_do_is_refused(login: Login) -> None:
    assert "targets.slurm.container: this version starts ranks without" in refused(
        login, "targets.slurm.container.image=sglang"
    )


def test_a_machine_without_slurm_is_told_so(cluster: Cluster, login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {**login.environ, "PATH": "/nonexistent"}
    monkeypatch.setattr(Login, "environ", environ)
    told = refused(login)
    assert "no command sbatch, srun, squeue, scontrol, scancel here" in told


def test_a_controller_that_does_not_answer(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Login, "environ", {**login.environ, "SLURM_CONF": "/nonexistent/slurm.conf"})
    assert "the Slurm controller does not answer" in refused(login)


def test_a_dry_run_prints_the_script_and_every_step(login: Login) -> None:
    done = login.pdctl("launch", "slurm-2p1d", "-t", "slurm", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=4" in done.stdout
    assert "srun --nodelist=cpu-2,cpu-3 --nodes=2 --ntasks=2" in done.stdout
    assert "--node-rank 1 --dist-init-addr cpu-2:20000" in done.stdout


def test_an_interface_the_hosts_do_not_have_is_told_from_the_job(cluster: Cluster, login: Login) -> None:
    done = login.pdctl(
        "launch", "slurm-2p1d", "-t", "slurm", "-d", "--name", "faceless", "--no-doctor",
        "--set", "targets.slurm.interface=nope0", "--set", f"targets.slurm.shared-dir={login.shared}",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "no IPv4 address on interface nope0" in done.stderr
    assert "set targets.slurm.interface to the interface the hosts reach each other by" in done.stderr
    assert cluster.left() == ()
