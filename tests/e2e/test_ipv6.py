"""A host with ::1 and no IPv4: instances, bootstrap server, ZMQ endpoints, router, probes with `engine.host: ::1`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT

SPACE = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
ALONE = "ip link set lo up && ip address del 127.0.0.1/8 dev lo && ip -6 -o address show dev lo"
SETS = ("engine.host=::1", "router.host=::1", "roles.prefill.tp=2", "router.port=8000")
# A namespace has all its ports to itself. `$@` is pdctl.
STORY = f"""
{ALONE} || exit 99
"$@" launch 1p1d -d {" ".join(f"--set {each}" for each in SETS)} || exit 1
"$@" status && "$@" ask 'Repeat: the red fox' && "$@" doctor --canary && "$@" trace-room --slowest 1 --no-index
code=$?
"$@" down
exit $code
"""


def can_be_alone() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    done = subprocess.run([*SPACE, "sh", "-c", ALONE], capture_output=True, text=True, check=False)
    return done.returncode == 0 and "::1" in done.stdout


@pytest.mark.skipif(not can_be_alone(), reason="no network namespace with ::1 alone can be made here")
def test_a_deployment_on_a_host_without_ipv4(tmp_path: Path) -> None:
    env = {**os.environ, "PDCTL_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path)}
    argv = [*SPACE, "sh", "-c", STORY, "sh", sys.executable, "-m", "pdctl"]
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "serving at http://[::1]:8000" in done.stdout
    assert "the red fox" in done.stdout
    assert "on tcp://[::1]:" in done.stdout  # the page list's way, in the story of the room
    logs = "".join(path.read_text() for path in (tmp_path / "state" / "runs" / "1p1d" / "logs").iterdir())
    assert "127.0.0.1" not in logs
