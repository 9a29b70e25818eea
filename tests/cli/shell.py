"""pdctl with a topology of stand-ins and a state directory: what launches in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.verb import within
from tests.launch.conftest import DEADLINE, STANDIN
from tests.ports import free_block, free_ports

TOPOLOGY = """
version: pdctl/v1
name: blue
engine: {{kind: embedded, command: ["{python}", "{standin}"]}}
roles:
  prefill: {{instances: 1}}
  decode: {{instances: 1}}
router: {{port: {router}}}
ports: {{http: {http}, bootstrap: {bootstrap}}}
"""


class Shell:
    """A user's shell in a home and a directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        self.env = {**os.environ, "PDCTL_HOME": str(folder / "state"), "PYTHONUTF8": "1"}
        router, bootstrap = free_ports(2)
        self.router = f"http://127.0.0.1:{router}"
        self.file = folder / "blue.yaml"
        self.file.write_text(
            TOPOLOGY.format(
                python=sys.executable, standin=STANDIN, router=router, http=free_block(2), bootstrap=bootstrap
            )
        )

    def start(self, *argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "pdctl", *argv],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        """End what a failed test left running."""
        for process in self.started:
            process.kill()
            process.communicate()

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        if argv[0] != "launch":
            return within(*argv, env=self.env, folder=self.folder)
        process = self.start(*argv)
        out, err = process.communicate(timeout=DEADLINE)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)
