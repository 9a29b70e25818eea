"""The run's directory on the shared file system, and what of the queue is told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pdctl.errors import LaunchError
from pdctl.launch.slurm import queue, submission
from pdctl.topology import resolve


def test_the_list_of_runs_holds_a_link_to_the_shared_directory(tmp_path: Path) -> None:
    registered, real = tmp_path / "home" / "runs" / "blue", tmp_path / "shared" / "blue"
    submission.link(registered, real)
    assert registered.resolve() == real
    elsewhere = tmp_path / "other" / "blue"
    submission.link(registered, elsewhere)  # the next launch may share another directory
    assert registered.resolve() == elsewhere


def test_a_local_run_of_that_name_is_not_hidden(tmp_path: Path) -> None:
    registered = tmp_path / "runs" / "blue"
    registered.mkdir(parents=True)
    with pytest.raises(LaunchError, match="holds an earlier run of this machine"):
        submission.link(registered, tmp_path / "shared" / "blue")


@pytest.mark.parametrize(
    ("given", "expected"), [("", "pdctl-runs/blue"), ("{shared-dir: /lustre/me}", "/lustre/me/blue")]
)
def test_where_the_directory_is(given: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "blue.yaml"
    slurm = f"targets: {{slurm: {given or '{time: 1h}'}}}\n"
    file.write_text(f"version: pdctl/v1\nroles: {{prefill: {{}}, decode: {{}}}}\n{slurm}")
    assert submission.folder(resolve.load([file]), "blue") == tmp_path / expected


def test_the_reason_of_a_wait_comes_with_the_expected_start() -> None:
    at = time.mktime((2026, 11, 22, 4, 0, 0, 0, 0, -1))
    assert (
        submission.pending_reason(queue.SlurmJob("12", "PENDING", "Resources", at))
        == "Resources, expected to start at 2026-11-22 04:00:00"
    )
    assert submission.pending_reason(queue.SlurmJob("12", "PENDING", "Priority")) == "Priority"
