"""A Slurm cluster of one's own on this machine: real daemons, nodes on loopback or in network namespaces, no real GPUs.

    python -m tests.slurm.cluster --nodes 4 --dir /tmp/cluster      # prints SLURM_CONF; Ctrl-C ends it

Debian's `slurm-wlm` and `munge` are enough; no root, no systemd, no database, nothing in /etc. Root is needed only for
nodes with addresses of their own (`--namespaces`), which may then all use the same ports, as real hosts do.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.ports import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
INSTALL = "apt-get install slurm-wlm munge"
START, STOP = 30.0, 10.0  # seconds
GPUS = 8
SUBNET = "10.213.7"


def missing() -> str:
    """Why no cluster can be started here; empty when one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if absent:
        return f"{', '.join(absent)} not installed: {INSTALL}"
    if not all(Path(f"/dev/tty{number}").is_char_device() for number in range(GPUS)):
        return "no /dev/tty0 to /dev/tty7: Slurm takes character devices only for GPUs"
    return ""


def missing_namespaces() -> str:
    """Why nodes cannot have addresses of their own here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name, path=PATH) is None]
    return f"{', '.join(absent)} not installed: apt-get install iproute2 util-linux" if absent else ""


class Cluster:
    """`nodes` are n0, n1, …; every one says it has 8 CPUs and 8 GPUs. `dead_after`: seconds without an answer."""

    def __init__(self, nodes: int, *, base: Path | None = None, namespaces: bool = False, dead_after: int = 10) -> None:
        self.base = base or Path(tempfile.mkdtemp(prefix="slurm-"))
        self.nodes = tuple(f"n{number}" for number in range(nodes))
        self.namespaces = namespaces
        self._dead_after = dead_after
        self._host = socket.gethostname().partition(".")[0]
        self._tag = f"{os.getpid():x}"[-5:]  # of the names of bridge and namespaces
        self._ports = free_ports(1 if namespaces else nodes + 1)

    @property
    def environ(self) -> dict[str, str]:
        """What every Slurm command has to be called with."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))}
        return {**clean, "SLURM_CONF": str(self.base / "slurm.conf"), "PATH": PATH}

    def start(self) -> None:
        for name in ("state", "log", "run", "munge"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        self.base.chmod(0o711)  # munged wants every directory above its socket to be passable
        (self.base / "munge").chmod(0o700)
        (self.base / "run").chmod(0o711)
        for node in self.nodes:
            (self.base / "spool" / node).mkdir(parents=True)
        if self.namespaces:
            self._network()
        (self.base / "slurm.conf").write_text(self._conf())
        (self.base / "gres.conf").write_text(
            f"NodeName=n[0-{len(self.nodes) - 1}] Name=gpu File=/dev/tty[0-{GPUS - 1}] Flags=nvidia_gpu_env\n"
        )
        self._munge()
        self._run("slurmctld", "-c", "-f", str(self.base / "slurm.conf"))
        for node in self.nodes:
            self.start_node(node)
        self._until_idle()

    def stop(self) -> None:
        """Jobs first, then every daemon by its pid, then what a killed daemon's job left, then the namespaces."""
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            self.call("scancel", "--user", getpass.getuser(), timeout=5)
            self._until(lambda: not self.call("squeue", "-h", timeout=5).stdout.strip(), 8.0)
        for names in ([f"slurmd-{node}" for node in self.nodes], ["slurmctld"], ["munged"]):
            self._end(names)
        for pid in self.left():
            _kill(pid)
        if self.namespaces:
            for node in self.nodes:
                _quiet("ip", "netns", "delete", f"{self._tag}-{node}")
            _quiet("ip", "link", "delete", f"br{self._tag}")
        shutil.rmtree(self.base, ignore_errors=True)

    def call(self, *argv: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, env=self.environ, capture_output=True, text=True, timeout=timeout, check=False)

    def start_node(self, node: str) -> None:
        daemon = ["slurmd", "-N", node, "-f", str(self.base / "slurm.conf")]
        if not self.namespaces:
            self._run(*daemon)
            return
        # `ip netns exec` mounts another /sys, and with it /sys/fs/cgroup is gone, which slurmd will not do without.
        inside = f"hostname {node}; mount --bind {self.base}/hosts /etc/hosts; exec {' '.join(daemon)}"
        self._run("nsenter", f"--net=/run/netns/{self._tag}-{node}", "unshare", "--uts", "--mount", "sh", "-c", inside)

    def lose_node(self, node: str) -> None:
        """The daemon is killed, and with namespaces the link goes down: what runs there goes on, unreachable."""
        if self.namespaces:
            self._sh("ip", "link", "set", f"v{self._tag}{node}", "down")
        pid = self._pid(f"slurmd-{node}")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def left(self) -> tuple[int, ...]:
        """Processes that a job of this cluster started and that still live."""
        mark = f"SLURM_CONF={self.base}/slurm.conf".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    environ = (entry / "environ").read_bytes().split(b"\0")
                    if mark in environ and any(word.startswith(b"SLURM_JOB_ID=") for word in environ):
                        found.append(int(entry.name))
        return tuple(found)

    def address(self, node: str) -> str:
        return f"{SUBNET}.{self.nodes.index(node) + 10}" if self.namespaces else "127.0.0.1"

    def _conf(self) -> str:
        user = getpass.getuser()
        control = f"{SUBNET}.1" if self.namespaces else "127.0.0.1"
        lines = [
            "ClusterName=pdctl",
            f"SlurmctldHost={self._host}({control})",
            f"SlurmUser={user}",
            f"SlurmdUser={user}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.base}/run/munge.sock",
            "CredType=cred/munge",
            f"SlurmctldPort={self._ports[0]}",
            f"StateSaveLocation={self.base}/state",
            f"SlurmdSpoolDir={self.base}/spool/%n",
            f"SlurmctldPidFile={self.base}/run/slurmctld.pid",
            f"SlurmdPidFile={self.base}/run/slurmd-%n.pid",
            f"SlurmctldLogFile={self.base}/log/slurmctld.log",
            f"SlurmdLogFile={self.base}/log/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "MpiDefault=none",
            "SwitchType=switch/none",
            "ReturnToService=2",
            "SlurmdParameters=config_overrides",  # two cores may say they are eight
            "GresTypes=gpu",
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1",
            "KillWait=5",
            "JobRequeue=0",
            f"SlurmdTimeout={self._dead_after}",
            "SlurmctldTimeout=30",
            "MessageTimeout=10",
            "InactiveLimit=0",
        ]
        for number, node in enumerate(self.nodes):
            host = node if self.namespaces else self._host
            port = 6818 if self.namespaces else self._ports[1 + number]
            where = f"NodeHostname={host} NodeAddr={self.address(node)} Port={port}"
            lines.append(f"NodeName={node} {where} CPUs=8 RealMemory=8000 Gres=gpu:{GPUS}")
        half = max(1, len(self.nodes) // 2)
        last = len(self.nodes) - 1
        lines += [
            f"PartitionName=main Nodes=n[0-{last}] Default=YES MaxTime=INFINITE State=UP",
            f"PartitionName=left Nodes=n[0-{half - 1}] MaxTime=INFINITE State=UP",
            f"PartitionName=right Nodes=n[{half if last else 0}-{last}] MaxTime=INFINITE State=UP",
            f"PartitionName=short Nodes=n[0-{last}] MaxTime=2 State=UP",
        ]
        return "\n".join(lines) + "\n"

    def _munge(self) -> None:
        key = self.base / "munge" / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        run, log = self.base / "run", self.base / "log"
        self._run(
            "munged", f"--key-file={key}", f"--socket={run}/munge.sock", f"--pid-file={run}/munged.pid",
            f"--log-file={log}/munged.log", f"--seed-file={self.base}/munge/seed",
        )  # fmt: skip

    def _network(self) -> None:
        bridge = f"br{self._tag}"
        self._sh("ip", "link", "add", bridge, "type", "bridge")
        self._sh("ip", "addr", "add", f"{SUBNET}.1/24", "dev", bridge)
        self._sh("ip", "link", "set", bridge, "up")
        hosts = ["127.0.0.1 localhost", f"{SUBNET}.1 {self._host}"]
        for node in self.nodes:
            space, outer = f"{self._tag}-{node}", f"v{self._tag}{node}"
            self._sh("ip", "netns", "add", space)
            self._sh("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            self._sh("ip", "link", "set", outer, "master", bridge, "up")
            self._sh("ip", "-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            self._sh("ip", "-n", space, "link", "set", "eth0", "up")
            self._sh("ip", "-n", space, "link", "set", "lo", "up")
            self._sh("ip", "-n", space, "route", "add", "default", "via", f"{SUBNET}.1")
            hosts.append(f"{self.address(node)} {node}")
        (self.base / "hosts").write_text("\n".join(hosts) + "\n")

    def _sh(self, *argv: str) -> None:
        done = subprocess.run(argv, env=self.environ, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")

    def _run(self, *argv: str) -> None:
        """Start a daemon, which leaves its pid in its file."""
        output = self.base / "log" / f"{Path(argv[0]).name}.start"
        with output.open("ab") as stream:
            done = subprocess.run(
                argv,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                timeout=START,
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {output.read_text()[-2000:]}")

    def _until_idle(self) -> None:
        def idle() -> bool:
            return self.call("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D").stdout.strip() == str(
                len(self.nodes)
            )

        if not self._until(idle, START):
            states = self.call("sinfo", "-N", "-o", "%N %T %E").stdout
            log = (self.base / "log" / "slurmctld.log").read_text()[-2000:]
            raise RuntimeError(f"nodes not idle after {START:g} s\n{states}\n{log}")

    def _until(self, condition: object, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():  # type: ignore[operator]
                return True
            time.sleep(0.05)
        return False

    def _pid(self, name: str) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self.base / "run" / f"{name}.pid").read_text())
        return None

    def _end(self, names: list[str]) -> None:
        pids = [pid for pid in map(self._pid, names) if pid is not None]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self._until(lambda: not any(map(_lives, pids)), STOP)
        for pid in filter(_lives, pids):
            _kill(pid)

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _quiet(*argv: str) -> None:
    subprocess.run(argv, capture_output=True, timeout=10, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--namespaces", action="store_true", help="every node with an address of its own; needs root")
    asked = parser.parse_args()
    why = missing() or (missing_namespaces() if asked.namespaces else "")
    if why:
        sys.exit(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Cluster(asked.nodes, base=asked.dir, namespaces=asked.namespaces) as cluster:
        print(f"export SLURM_CONF={cluster.base}/slurm.conf", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
