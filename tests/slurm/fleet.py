"""A fleet of many small instances over many hosts, measured: `python -m tests.slurm.fleet --nodes 16 --instances 64`.

The tiny model and the `fake` transfer: what is measured is pdctl, its supervisor and Slurm, not the engines. Half of
the instances are prefills.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pdctl.launch import procfs
from tests.slurm.cluster import Cluster, missing
from tests.slurm.conftest import Login

TOPOLOGY = """
version: pdctl/v1
name: fleet
engine:
  args: {{num-threads: 1, max-total-tokens: 1024, max-running-requests: 2}}
pools:
  cpu: {{gpus-per-host: {per_host}}}
roles:
  prefill: {{instances: {prefills}}}
  decode: {{instances: {decodes}}}
transfer: {{backend: {backend}}}
router: {{port: 18000}}
ports: {{http: 20000, bootstrap: 22500, dist-init: 24000}}
readiness: {{timeout: 60m, interval: 5s}}
doctor: {{ignore: [{{code: PD208, because: the hosts of this cluster are one machine}}]}}
targets:
  slurm: {{time: 2h}}
"""


def memory(pids: tuple[int, ...]) -> tuple[float, float]:
    """Resident and proportional set size of processes together, in GB."""
    resident = proportional = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        rows = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:] if len(line.split()) > 1}
        resident += rows.get("Rss", 0)
        proportional += rows.get("Pss", 0)
    return resident / 1e6, proportional / 1e6


def timed(what: str, login: Login, *argv: str, limit: float = 5400.0) -> subprocess.CompletedProcess[str]:
    began = time.monotonic()
    done = login.pdctl(*argv, timeout=limit)
    print(f"{what}: {time.monotonic() - began:.1f} s, exit {done.returncode}", flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--instances", type=int, default=64)
    parser.add_argument("--dir", type=Path, help="of the cluster")
    parser.add_argument("--backend", default="fake")
    parser.add_argument("--keep", type=float, default=0.0, help="seconds to leave it up")
    asked = parser.parse_args()
    if missing():
        sys.exit(missing())
    prefills = asked.instances // 2
    text = TOPOLOGY.format(
        per_host=-(-asked.instances // asked.nodes),
        prefills=prefills,
        decodes=asked.instances - prefills,
        backend=asked.backend,
    )
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder, Cluster(asked.nodes, base=asked.dir) as cluster:
        login = Login(cluster, Path(folder) / "login")
        (login.home / "fleet.yaml").write_text(text)
        verify = [] if asked.backend != "fake" else ["--no-verify"]
        launched = timed(
            "launch to serving", login, "launch", "fleet.yaml", "-t", "slurm", "-d", "--no-doctor", *verify
        )
        if launched.returncode:
            sys.exit(launched.stderr[-4000:])
        print("\n".join(launched.stderr.splitlines()[-3:]))
        time.sleep(asked.keep)
        resident, proportional = memory(cluster.left())
        below = len(procfs.processes())
        load = os.getloadavg()[0]
        print(f"memory of {len(cluster.left())} processes: RSS {resident:.1f} GB, PSS {proportional:.1f} GB; "
              f"{below} processes on the machine, load {load:.1f}")  # fmt: skip
        status = timed("status", login, "status")
        print("\n".join(status.stdout.splitlines()[:3]))
        timed("logs --tail 5", login, "logs", "--tail", "5")
        doctor = timed("doctor", login, "doctor")
        print("\n".join(doctor.stdout.splitlines()[-3:]))
        timed("rooms", login, "rooms")
        down = timed("down", login, "down", "--timeout", "10m")
        print(down.stderr.splitlines()[-1] if down.stderr else down.stdout)
        print(f"processes left: {len(cluster.left())}; queue: {cluster.call('squeue', '-h').stdout.strip() or 'empty'}")


if __name__ == "__main__":
    main()
