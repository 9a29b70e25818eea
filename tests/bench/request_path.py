"""How many files and functions of pdctl one thing meets: a request through router, prefill and decode, or a verb.

    python -m tests.bench.request_path request
    python -m tests.bench.request_path pdctl plan topologies/2p1d.yaml

Every process records the functions it enters, a request's from the moment everything is warm. A file counts once it is
entered; loading a module is not entering it.

A deployment at rest is not still: the router probes its workers, servers and threads look at their clocks. So a window
without a request is recorded first, longer than the rarest tick's period; what both windows entered proves nothing by
itself. A request's way is what its window alone entered, and of what both entered: the functions in the same files (the
scheduler's turn, a loop that waits), and the functions that all these call (a clock, a lock). The rest are counted
apart: ticks, and the few things that a probe meets too, such as the guard before every route.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
IDLE = 6.0  # seconds without a request: longer than the rarest tick's period, the 5 s of heartbeats
# Loaded by every Python of the tree; a thread that begins later records too. A line is the window, the function, and
# the function of pdctl that called it (`-` if none). The link ARMED names the window; recording is off without it.
RECORDER = """
import os, sys, threading
OUT, ARMED, ROOT = (os.environ["REQUEST_PATH_" + name] for name in ("OUT", "ARMED", "ROOT"))
met = set()

def name(frame):
    return frame.f_code.co_filename[len(ROOT):] + " " + frame.f_code.co_qualname

def record(frame, event, argument):
    if event != "call" or not frame.f_code.co_filename.startswith(ROOT) or frame.f_code.co_name == "<module>":
        return
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
        caller = caller.f_back
    try:
        window = os.readlink(ARMED) if ARMED else "request"
    except OSError:
        return
    entry = (window, name(frame), name(caller) if caller else "-")
    if entry not in met:
        met.add(entry)
        with open(f"{OUT}/{os.getpid()}", "a") as out:
            out.write("\\t".join(entry) + "\\n")

serves = any(word.startswith(("pdctl.engine", "pdctl.router")) for word in sys.orig_argv)
if not ARMED or serves:
    threading.setprofile(record)
    sys.setprofile(record)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs=argparse.REMAINDER, help="`request`, or a command")
    parser.add_argument("--functions", action="store_true", help="name each function")
    chosen = parser.parse_args()
    what = chosen.what or ["request"]
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
        report(Path(folder) / "out", chosen.functions)


def request(folder: Path, env: dict[str, str]) -> None:
    """One chat request to a warm 1P1D deployment, and nothing else."""
    http, bootstrap, router = free_ports(2), free_ports(1), free_ports(1)
    settings = [f"ports.http={http[0]}", f"ports.bootstrap={bootstrap[0]}", f"router.port={router[0]}"]
    argv = ["launch", "topologies/2p1d.yaml", *(word for one in settings for word in ("--set", one))]
    # The router's checks of its workers share their connections with requests, and a health check is a generation.
    argv += ["--set", "router.args.health-interval=600", "--set", "router.args.liveness-interval=600"]
    argv += ["--set", "roles.prefill.instances=1", "--detach"]
    quiet = {**env, "REQUEST_PATH_ARMED": f"{folder}/never"}
    pdctl = [sys.executable, "-m", "pdctl"]
    subprocess.run([*pdctl, *argv], env=env, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    try:
        ask = [*pdctl, "ask", "Repeat: the red fox"]
        subprocess.run(ask, env=quiet, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        time.sleep(1.0)
        armed = folder / "armed"
        armed.symlink_to("idle")
        time.sleep(IDLE)
        armed.unlink()
        subprocess.run(ask, env=quiet, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)  # connections are open again
        armed.symlink_to("request")
        subprocess.run(ask, env=quiet, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        armed.unlink()
    finally:
        subprocess.run([*pdctl, "down", "2p1d"], env=quiet, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


def report(folder: Path, each: bool) -> None:
    met: dict[str, set[str]] = {"idle": set(), "request": set()}  # functions that a window entered
    calls: dict[str, set[str]] = {}
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            window, function, caller = line.split("\t")
            met[window].add(function)
            if window == "request":
                calls.setdefault(caller, set()).add(function)
    way = way_of(met["request"], met["idle"], calls)
    for file, functions in sorted(files_of(way).items()):
        print(f"{functions:5} {file}")
        for function in sorted(way) if each else ():
            if function.startswith(f"{file} "):
                print(f"      {function.split(' ')[1]}")
    ticks = met["request"] - way
    for file, functions in sorted(files_of(ticks).items()):
        print(f"{functions:5} {file} (a tick, not counted)")
    print(f"{len(files_of(way))} files, {len(way)} functions")
    if ticks:
        print(f"with ticks: {len(files_of(met['request']))} files, {len(met['request'])} functions")


def way_of(request: set[str], idle: set[str], calls: dict[str, set[str]]) -> set[str]:
    """The functions of the request's way: see the module's docstring."""
    own = request - idle
    way = own | {function for function in request if function.split(" ")[0] in files_of(own)}
    called = own
    while called:
        called = set().union(*(calls.get(function, set()) for function in called)) - way
        way |= called
    return way


def files_of(functions: set[str]) -> Counter[str]:
    return Counter(function.split(" ")[0] for function in functions)


if __name__ == "__main__":
    main()
