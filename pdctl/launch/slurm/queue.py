"""The output of Slurm's own commands as values: jobs, nodes, partitions (22.05 and later).

`python -m pdctl.launch.slurm.queue JOB` ends when the job JOB has ended: the script of a job that only holds hosts.

JSON output is not used: its shape changes with the release, and a site's build may lack it.
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
import time
from dataclasses import dataclass

TIMEOUT = 30.0  # seconds one command may take: a busy controller is slow
POLL = 10.0  # seconds between two looks at the job for which hosts are held
FRESH = 1.0  # seconds for which an answer about a job is cached
FIELD = re.compile(r"(\S+?)=(.*?)(?= \S+?=|$)")
UNLIMITED = ("UNLIMITED", "INFINITE", "NOT_SET")
GONE = (
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
    "PREEMPTED",
)
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """A command's result. `code` -1: it could not be run at all, and `error` says why."""

    code: int
    output: str
    error: str

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One component of a job. `state` is empty for a job that the controller does not know, or no longer knows."""

    id: str
    state: str = ""
    reason: str = ""
    starts_at: float = 0.0
    ends_at: float = 0.0
    nodes: str = ""

    @property
    def pending(self) -> bool:
        return self.state in WAITING

    @property
    def over(self) -> bool:
        return not self.state or self.state in GONE


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """`state`: as Slurm writes it, `ALLOCATED*` for a node that does not answer; `gres`: (name, count) pairs."""

    name: str
    address: str
    state: str
    reason: str
    gres: tuple[tuple[str, int], ...] = ()

    @property
    def down(self) -> bool:
        """Whether Slurm considers the node down or failed."""
        return any(word in self.state for word in ("DOWN", "FAIL"))

    @property
    def silent(self) -> bool:
        """Whether its slurmd does not answer; the host may be lost or just busy."""
        return "NOT_RESPONDING" in self.state or self.state.endswith("*")

    @property
    def usable(self) -> bool:
        off = any(word in self.state for word in ("DRAIN", "MAINT", "POWERED_DOWN", "INVAL"))
        return not (self.down or self.silent or off)


@dataclass(frozen=True, slots=True)
class Partition:
    """`max_time`: in seconds, None: no limit. `nodes`: Slurm's host list."""

    name: str
    default: bool
    up: bool
    max_time: float | None
    max_nodes: int | None
    nodes: str


def ask(*argv: str, timeout: float = TIMEOUT) -> QueueAnswer:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        return QueueAnswer(-1, "", f"there is no command `{argv[0]}`")
    except subprocess.TimeoutExpired:
        return QueueAnswer(-1, "", f"{argv[0]} has not answered within {timeout:g} s")
    return QueueAnswer(done.returncode, done.stdout, done.stderr.strip())


def components(job: str) -> tuple[SlurmJob, ...]:
    """Every component of a job, the leader first; for an ended job, only while the controller remembers it."""
    answer = ask("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%i|%T|%r|%S|%e|%N")
    if not answer.ok:
        return (SlurmJob(job, state="UNKNOWN", reason=answer.error),) if "Invalid job id" not in answer.error else ()
    rows = sorted(line.split("|") for line in answer.output.splitlines() if line.count("|") == 5)
    return tuple(SlurmJob(row[0], row[1], row[2], moment(row[3]), moment(row[4]), row[5]) for row in rows)


def leader(job: str) -> SlurmJob:
    found = components(job)
    return found[0] if found else SlurmJob(job)


_seen: dict[str, tuple[float, bool]] = {}


def alive(job: str) -> bool:
    """Whether a job is queued, running or ending. It counts as alive if the controller does not answer."""
    now = time.monotonic()
    at, was = _seen.get(job, (0.0, False))
    if not at or now - at > FRESH:
        was = any(not each.over for each in components(job))
        _seen[job] = (now, was)
    return was


def cancel(job: str, signal: str = "", batch: bool = False) -> QueueAnswer:
    """End a job or step, or send its processes a signal; `batch`: only to the job's batch script."""
    _seen.clear()
    words = [f"--signal={signal}"] if signal else []
    return ask("scancel", *words, *(["--batch"] if batch else []), job)


def hosts(names: str) -> tuple[str, ...]:
    """Expand a host list: `n[0-2],m7` → n0, n1, n2, m7."""
    return tuple(ask("scontrol", "show", "hostnames", names).output.split()) if names else ()


def nodes(names: str) -> tuple[SlurmNode, ...]:
    answer = ask("scontrol", "--oneliner", "show", "node", names)
    return tuple(as_node(fields(line)) for line in answer.output.splitlines() if line.startswith("NodeName="))


def partitions() -> tuple[Partition, ...]:
    answer = ask("scontrol", "--oneliner", "show", "partition")
    return tuple(as_partition(fields(line)) for line in answer.output.splitlines() if line.startswith("PartitionName="))


def fields(line: str) -> dict[str, str]:
    """Parse a line `Key=Value Key=several words` of scontrol."""
    return {key: value.strip() for key, value in FIELD.findall(line)}


def moment(text: str) -> float:
    """Slurm's local time as seconds since the epoch; 0 if there is none."""
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def span(text: str) -> float | None:
    """Slurm's duration, as `1-12:00:00`, `30:00` or `5` (minutes), in seconds; None: no limit."""
    if text in UNLIMITED:
        return None
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:  # hours first
        parts += [0] * (3 - len(parts))
    elif len(parts) == 1:  # minutes
        parts = [0, *parts, 0]
    hours, minutes, seconds = ([0] * (3 - len(parts)) + parts)[-3:]
    return float(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)


def minutes(seconds: float) -> int:
    """Seconds rounded up to whole minutes, Slurm's unit of limits."""
    return max(1, -(-int(seconds) // 60))


def as_node(row: dict[str, str]) -> SlurmNode:
    gres = []
    for entry in row.get("Gres", "").split(","):
        words = entry.partition("(")[0].split(":")
        if len(words) > 1 and words[-1].isdigit():
            gres.append((words[0], int(words[-1])))
    return SlurmNode(
        row["NodeName"], row.get("NodeAddr", row["NodeName"]), row.get("State", ""), row.get("Reason", ""), tuple(gres)
    )


def as_partition(row: dict[str, str]) -> Partition:
    most = row.get("MaxNodes", "")
    return Partition(
        name=row["PartitionName"],
        default=row.get("Default") == "YES",
        up=row.get("State") == "UP",
        max_time=span(row.get("MaxTime", "UNLIMITED")),
        max_nodes=int(most) if most.isdigit() else None,
        nodes=row.get("Nodes", ""),
    )


def main(argv: list[str]) -> int:
    """Hold a job's hosts for as long as the supervisor's job argv[0] lives."""
    while alive(argv[0]):
        time.sleep(POLL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
