"""What an operator does with a run whose disk is full, in a mount namespace: `full_disk.py FOLDER [starting]`.

`starting`: the disk fills while the run starts, not while it serves.

Prints one JSON object. FOLDER becomes a tmpfs of 1 MiB that holds PDCTL_HOME; the topology lies beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.shell import Shell
from tests.launch.conftest import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Callable

FULL = b"\0" * (2 << 20)


def main(folder: Path, starting: bool) -> None:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
    shell = Shell(folder)
    shell.env["PDCTL_HOME"] = str(disk / "home")
    told: dict[str, object] = {}

    def run(name: str, *argv: str) -> None:
        done = shell.run(*argv)
        told[name] = [done.returncode, done.stdout, done.stderr]

    directory = disk / "home/runs/blue"
    if starting:
        starts(shell, disk, directory, told)
        json.dump(told, sys.stdout)
        return
    run("launch", "launch", str(shell.file), "-d", "--no-doctor", "--on-death", "instance")
    try:
        fill(disk / "fill")
        began = time.monotonic()
        while not lost(directory) and time.monotonic() < began + 20:
            time.sleep(0.05)
        told["served"] = served(shell.router)
        asked = {
            "status": ("status",),
            "status json": ("status", "-o", "json"),
            "ls": ("ls",),
            "logs": ("logs", "--tail", "1"),
            "doctor": ("doctor", "--no-extras", "--select", "PD2"),
            "doctor of the disk": ("doctor", "--select", "PD807", "-o", "json"),
        }
        for name, process in [(name, shell.start(*argv)) for name, argv in asked.items()]:  # all at once
            out, err = process.communicate(timeout=DEADLINE)
            told[name] = [process.returncode, out, err]
        told["run.json"] = json.loads((directory / "run.json").read_text())["state"]
        run("down", "down")
        run("down again", "down")
        run("ls after", "ls", "-o", "json")
        run("launch on the full disk", "launch", str(shell.file), "-d", "--no-doctor")
        run("status of the old one", "status", "blue")
        told["directories"] = sorted(each.name for each in directory.parent.iterdir())
        (disk / "fill").unlink()
        run("launch again", "launch", str(shell.file), "-d", "--no-doctor")
        run("status of the new one", "status")
        run("logs of the old one", "logs", "blue.1", "--tail", "1")
    finally:
        shell.run("down", "--force")
        shell.close()
    json.dump(told, sys.stdout)


def starts(shell: Shell, disk: Path, directory: Path, told: dict[str, object]) -> None:
    file = directory / "run.json"
    try:
        launch = shell.start("launch", str(shell.file), "-d", "--no-doctor")
        await_(lambda: file.exists() and servers_ready(json.loads(file.read_bytes())), "two servers")  # not the router
        fill(disk / "fill")
        out, err = launch.communicate(timeout=DEADLINE)
        told["launch"] = [launch.returncode, out, err]
        told["run.json"] = json.loads(file.read_bytes())["state"]
        for name, argv in {"status": ("status",), "ls": ("ls", "-o", "json")}.items():
            done = shell.run(*argv)
            told[name] = [done.returncode, done.stdout, done.stderr]
        (disk / "fill").unlink()
        await_(lambda: not lost(directory), "space")
        told["run.json later"] = json.loads(file.read_bytes())["state"]
        done = shell.run("status")
        told["status later"] = [done.returncode, done.stdout, done.stderr]
    finally:
        shell.run("down", "--force")
        shell.close()


def servers_ready(run: dict[str, list[dict[str, object]]]) -> bool:
    return len([event for event in run["events"] if event["stage"] == "ready"]) == 2


def await_(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come within {DEADLINE} s"
        time.sleep(0.02)


def fill(file: Path) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(handle, FULL)
    except OSError:
        os.close(handle)


def lost(directory: Path) -> bool:
    return bool(json.loads((directory / "notice.json").read_bytes()).get("since"))


def served(router: str) -> list[int]:
    body = json.dumps({"model": "standin", "messages": [{"role": "user", "content": "hi"}], "text": "hi"}).encode()
    answers = []
    for _ in range(20):
        request = urllib.request.Request(f"{router}/generate", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            answers.append(answer.status)
    return answers


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["starting"])
