"""The deployment under test: `pdctl launch` with the embedded engine, and the hand that kills its instances."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import psutil

from tests.e2e.conftest import ROOT
from tests.ports import free_block

if TYPE_CHECKING:
    from pathlib import Path

    from tests.soak.plan import Plan

NAME = "soak"
# Small on purpose: long prompts are cut into chunks, pools run full, requests queue.
ENGINE = {"chunked-prefill-size": 256, "max-total-tokens": 16384, "max-running-requests": 16}


@dataclass
class Deployed:
    home: Path
    plan: Plan
    router_port: int
    http: int
    bootstrap: int
    launcher: int = 0
    kills: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    @property
    def router(self) -> str:
        return f"http://127.0.0.1:{self.router_port}"

    @property
    def urls(self) -> list[str]:
        count = self.plan.prefills + self.plan.decodes
        return [f"http://127.0.0.1:{self.http + index}" for index in range(count)]

    @property
    def ports(self) -> list[int]:
        plan = self.plan
        http = [self.http + index for index in range(plan.prefills + plan.decodes)]
        return [self.router_port, *http, *(self.bootstrap + index for index in range(plan.prefills))]

    @property
    def names(self) -> list[str]:
        plan = self.plan
        return [f"prefill-{n}" for n in range(plan.prefills)] + [f"decode-{n}" for n in range(plan.decodes)]

    def pids(self) -> dict[str, int]:
        run = json.loads((self.home / "runs" / NAME / "run.json").read_text())
        return {entry["name"]: entry["pid"] for entry in run["processes"]}

    def kill(self, dice: random.Random) -> None:
        """SIGKILL a random instance: its server, or one of its ranks alone."""
        name = dice.choice(self.names)
        pid, what = self.pids()[name], "server"
        ranks = [child.pid for child in children(pid) if "pdctl.engine.scheduler" in " ".join(cmdline(child))]
        if ranks and dice.random() < 0.5:
            pid, what = dice.choice(ranks), "rank"
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            what += " (already gone)"
        self.kills.append(f"{time.strftime('%H:%M:%S')} {name} {what} {pid}")

    def ready(self) -> bool:
        """Every instance answers a real generation of its own, and the router has a pair for each."""
        try:
            alive = all(httpx.get(f"{url}/health", timeout=5).status_code == 200 for url in self.urls)
            return alive and httpx.get(f"{self.router}/readiness", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def pdctl(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PDCTL_HOME": str(self.home), "PDCTL_FAULTS": self.plan.faults}
        command = [sys.executable, "-m", "pdctl", *argv]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, cwd=ROOT)


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def launch(plan: Plan, home: Path) -> Deployed:
    """Raises RuntimeError with what pdctl said when it does not come up."""
    made = Deployed(home, plan, free_block(1), free_block(plan.prefills + plan.decodes), free_block(plan.prefills))
    sets = [
        f"roles.prefill.instances={plan.prefills}",
        f"roles.decode.instances={plan.decodes}",
        f"roles.prefill.tp={plan.tp}",
        f"roles.decode.tp={plan.tp}",
        f"router.port={made.router_port}",
        f"ports.http={made.http}",
        f"ports.bootstrap={made.bootstrap}",
        "readiness.restart.policy=instance",
        "readiness.restart.max=1000",
        "readiness.restart.backoff=500ms",
        "readiness.restart.backoff-max=1s",
        f"transfer.backend={plan.backend}",
        *(f"roles.{role}.args.{flag}={value}" for role in ("prefill", "decode") for flag, value in ENGINE.items()),
    ]
    done = made.pdctl(
        "launch", "topologies/1p1d.yaml", "-d", "--name", NAME, *(word for one in sets for word in ("--set", one))
    )
    if done.returncode:
        raise RuntimeError(f"pdctl launch → {done.returncode}\n{done.stdout}\n{done.stderr}")
    made.launcher = json.loads((home / "runs" / NAME / "run.json").read_text())["supervisor"]
    return made
