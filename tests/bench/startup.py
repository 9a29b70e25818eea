"""CPU time of a verb as a multiple of `python -c pass`, interleaved. Usage: python tests/bench/startup.py [rounds]"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

VERBS = {
    "--version": ["--version"],
    "completion answer": ["plan", "--dec"],
    "plan --tp 16 --dp 8": ["plan", "--tp", "16", "--dp", "8"],
    "plan topologies/2p1d.yaml": ["plan", "topologies/2p1d.yaml"],
    "--help": ["--help"],
}


def cpu(command: list[str], env: dict[str, str] | None = None) -> float:
    """User and system seconds of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    bare: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in VERBS}
    for _ in range(rounds):
        bare.append(cpu([sys.executable, "-c", "pass"]))
        for name, argv in VERBS.items():
            env = {**os.environ, "_PDCTL_COMPLETE": "1"} if name.startswith("completion") else None
            times[name].append(cpu([sys.executable, "-m", "pdctl", *argv], env))
    print(f"{'command':28} {'min ms':>8} {'median ms':>10} {'× bare (min)':>13} {'× bare (median)':>16}")
    print(f"{'python -c pass':28} {min(bare) * 1e3:8.1f} {statistics.median(bare) * 1e3:10.1f}")
    for name, values in times.items():
        low, mid = min(values), statistics.median(values)
        ratios = f"{low / min(bare):13.1f} {mid / statistics.median(bare):16.1f}"
        print(f"{name:28} {low * 1e3:8.1f} {mid * 1e3:10.1f} {ratios}")


if __name__ == "__main__":
    main()
