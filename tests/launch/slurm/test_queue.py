"""Slurm's own words, as a 22.05.8 cluster wrote them."""

from __future__ import annotations

import pytest

from pdctl.launch.slurm import queue
from tests.cases import for_each

NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=8 CPUEfctv=8 CPUTot=8 CPULoad=15.78 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=gpu:h100:8(S:0-1),nvme:2 NodeAddr=10.0.0.11 NodeHostName=vm Port=43613 Version=22.05.8 "
    "OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=8000 AllocMem=0 FreeMem=10742 Sockets=8 Boards=1 "
    "State=DOWN+NOT_RESPONDING ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=main,left,short  "
    "BootTime=2026-11-21T19:38:39 SlurmdStartTime=2026-11-22T02:39:09 CfgTRES=cpu=8,mem=8000M,billing=8 AllocTRES= "
    "Reason=Not responding [slurm@2026-11-22T02:59:27]"
)
PARTITION = (
    "PartitionName=short AllowGroups=ALL AllowAccounts=ALL Default=NO QoS=N/A DefaultTime=NONE GraceTime=0 Hidden=NO "
    "MaxNodes=UNLIMITED MaxTime=00:02:00 MinNodes=0 Nodes=n[0-3] PriorityTier=1 State=UP TotalCPUs=32 TotalNodes=4 "
    "TRES=cpu=32,mem=32000M,node=4,billing=32"
)


def test_a_node_is_read_with_its_gres_by_name_and_its_reason_whole() -> None:
    node = queue.as_node(queue.fields(NODE))
    assert (node.name, node.address, node.state) == ("n1", "10.0.0.11", "DOWN+NOT_RESPONDING")
    assert node.gres == (("gpu", 8), ("nvme", 2))
    assert node.reason == "Not responding [slurm@2026-11-22T02:59:27]"
    assert node.down
    assert not node.usable


@for_each(
    ("state", "down", "silent", "usable"),
    [
        ("IDLE", False, False, True),
        ("IDLE+COMPLETING", False, False, True),
        ("ALLOCATED+NOT_RESPONDING", False, True, False),
        ("IDLE*", False, True, False),
        ("IDLE+DRAIN", False, False, False),
        ("DOWN", True, False, False),
        ("ALLOCATED+FAIL", True, False, False),
    ],
)
def test_a_daemon_that_is_silent_is_not_yet_a_lost_host(state: str, down: bool, silent: bool, usable: bool) -> None:
    node = queue.SlurmNode("n0", "n0", state, "")
    assert (node.down, node.silent, node.usable) == (down, silent, usable)


def test_a_partition_is_read_with_its_limit_in_seconds() -> None:
    partition = queue.as_partition(queue.fields(PARTITION))
    assert partition == queue.Partition("short", False, True, 120.0, None, "n[0-3]")


@for_each(
    ("text", "seconds"),
    [
        ("UNLIMITED", None),
        ("5", 300.0),
        ("30:00", 1800.0),
        ("04:00:00", 14400.0),
        ("1-12", 129600.0),
        ("2-00:30:00", 174600.0),
    ],
)
def test_a_time_limit_is_read_as_slurm_writes_it(text: str, seconds: float | None) -> None:
    assert queue.span(text) == seconds


def test_limits_are_asked_for_in_whole_minutes() -> None:
    assert [queue.minutes(seconds) for seconds in (1, 60, 61, 4 * 3600)] == [1, 1, 2, 240]


def test_a_command_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert queue.ask("squeue") == queue.QueueAnswer(-1, "", "there is no command `squeue`")
