"""Two prefills and a decode, each in a network namespace of its own, and what can cut one off."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.e2e.conftest import ROOT

PATIENCE = 12  # seconds both sides wait for each other
ENGINES = {"prefill-0": "prefill", "prefill-1": "prefill", "decode-0": "decode"}
NOWHERE = "02:00:00:00:00:fe"  # no interface has it: frames to it are lost without a word
LEAST = 0.9  # of the failed rooms


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


@dataclass
class Net:
    """A bridge in a namespace of its own, and one namespace for each name behind it."""

    mark: str = field(default_factory=lambda: f"pd{random.randrange(16**4):04x}")
    names: list[str] = field(default_factory=list)

    def space(self, name: str) -> str:
        return f"{self.mark}-{name}"

    def address(self, name: str) -> str:
        return f"10.77.0.{2 + self.names.index(name)}"

    def make(self, names: list[str]) -> None:
        hub = self.space("hub")
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "br0", "type", "bridge")
        ip("-n", hub, "link", "set", "br0", "up")
        for name in names:
            self.names.append(name)
            at, inside = f"v{len(self.names)}", self.space(name)
            ip("netns", "add", inside)
            ip("-n", inside, "link", "set", "lo", "up")
            ip("-n", inside, "link", "add", "eth0", "type", "veth", "peer", "name", at, "netns", hub)
            ip("-n", hub, "link", "set", at, "master", "br0", "up")
            ip("-n", inside, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            ip("-n", inside, "link", "set", "eth0", "up")

    def cut(self, source: str, target: str) -> None:
        """What `source` sends to `target` is lost; the other way round all arrives."""
        where = ("dev", "eth0", "nud", "permanent")
        ip("-n", self.space(source), "neigh", "replace", self.address(target), "lladdr", NOWHERE, *where)

    def heal(self, source: str, target: str) -> None:
        ip("-n", self.space(source), "neigh", "del", self.address(target), "dev", "eth0")

    def remove(self) -> None:
        for name in [*self.names, "hub"]:
            ip("netns", "del", self.space(name), check=False)


@dataclass
class Fleet:
    net: Net
    folder: Path
    started: dict[str, subprocess.Popen[bytes]]

    def stop(self, name: str, number: int) -> None:
        found = psutil.Process(self.started[name].pid)
        for process in [found, *found.children(recursive=True)]:
            process.send_signal(number)


def start(
    net: Net, folder: Path, name: str, *words: str, more: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": str(PATIENCE),
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(PATIENCE), **(more or {}),
    }  # fmt: skip
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            ["ip", "netns", "exec", net.space(name), sys.executable, "-m", *words],
            cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


MATRIX = {
    "SIGSTOP prefill": ("prefill-0", ""),
    "SIGSTOP decode": ("decode-0", ""),
    "prefill's frames to decode lost": ("prefill-0", "decode-0"),
    "decode's frames to prefill lost": ("decode-0", "prefill-0"),
}
