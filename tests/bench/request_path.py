"""How many files and functions of pdctl one thing meets: a request through router, prefill and decode, or a verb.

    python -m tests.bench.request_path request
    python -m tests.bench.request_path pdctl plan topologies/2p1d.yaml

Every process records the functions it enters, a request's from the moment everything is warm. A file counts once it is
entered; loading a module is not entering it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
# Loaded by every Python of the tree; a thread that begins later records too. `armed` turns recording on.
RECORDER = """
import os, sys, threading
OUT, ARMED, ROOT = (os.environ["REQUEST_PATH_" + name] for name in ("OUT", "ARMED", "ROOT"))
met = set()

def record(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(ROOT) and code not in met and code.co_name != "<module>":
        if not ARMED or os.path.exists(ARMED):
            met.add(code)
            with open(f"{OUT}/{os.getpid()}", "a") as out:
                out.write(f"{code.co_filename[len(ROOT):]} {code.co_qualname}\\n")

serves = any(word.startswith(("pdctl.engine", "pdctl.router")) for word in sys.orig_argv)
if not ARMED or serves:
    threading.setprofile(record)
    sys.setprofile(record)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs=argparse.REMAINDER, help="`request`, or a command")
    what = parser.parse_args().what or ["request"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "site").mkdir()
        (Path(folder) / "site" / "sitecustomize.py").write_text(RECORDER)
        (Path(folder) / "out").mkdir()
        env = {
            **os.environ,
            "PYTHONPATH": f"{folder}/site:{ROOT}",
            "PDCTL_HOME": f"{folder}/home",
            "REQUEST_PATH_OUT": f"{folder}/out",
            "REQUEST_PATH_ROOT": f"{ROOT}/pdctl/",
            "REQUEST_PATH_ARMED": f"{folder}/armed" if what == ["request"] else "",
        }
        if what == ["request"]:
            request(Path(folder), env)
        else:
            command = [sys.executable, "-m", *what] if what[0] == "pdctl" else what
            subprocess.run(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        report(Path(folder) / "out")


def request(folder: Path, env: dict[str, str]) -> None:
    """One chat request to a warm 1P1D deployment, and nothing else."""
    http, bootstrap, router = free_ports(2), free_ports(1), free_ports(1)
    settings = [f"ports.http={http[0]}", f"ports.bootstrap={bootstrap[0]}", f"router.port={router[0]}"]
    argv = ["launch", "topologies/2p1d.yaml", *(word for one in settings for word in ("--set", one))]
    argv += ["--set", "roles.prefill.instances=1", "--detach"]
    quiet = {**env, "REQUEST_PATH_ARMED": f"{folder}/never"}
    pdctl = [sys.executable, "-m", "pdctl"]
    subprocess.run([*pdctl, *argv], env=env, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    try:
        ask = [*pdctl, "ask", "Repeat: the red fox"]
        subprocess.run(ask, env=quiet, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        time.sleep(1.0)
        (folder / "armed").touch()
        subprocess.run(ask, env=quiet, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (folder / "armed").unlink()
    finally:
        subprocess.run([*pdctl, "down", "2p1d"], env=quiet, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


def report(folder: Path) -> None:
    met: set[tuple[str, str]] = set()
    for path in sorted(folder.iterdir()):
        mine = {tuple(line.split(" ", 1)) for line in path.read_text().splitlines()}
        met |= mine  # type: ignore[arg-type]
        print(json.dumps({"pid": path.name, "files": len({file for file, _ in mine}), "functions": len(mine)}))
    files = Counter(file for file, _ in met)
    for file, functions in sorted(files.items()):
        print(f"{functions:5} {file}")
    print(f"{len(files)} files, {len(met)} functions")


if __name__ == "__main__":
    main()
