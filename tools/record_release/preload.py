"""Run by a release's own Python: import SGLang once, then fork a server for each line of stdin and print its pid.

A line is `{"argv": [...], "env": {...}, "log": path}`; argv follows `-m sglang.launch_server`. The scheduler and
detokenizer are forked too, not spawned: a start takes only seconds, but its order and times are not real.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import runpy
import signal
import sys
import traceback
from typing import Any

MODULES = ("launch_server", "srt.entrypoints.http_server", "srt.managers.scheduler", "srt.models.llama")
PID = "PID "


def serve(request: dict[str, Any]) -> None:
    """In the forked child: become the leader of a new session, and run the server."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(file, stream)
    os.environ.update(request["env"])
    sys.argv = ["launch_server.py", *request["argv"]]
    try:
        runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
    except SystemExit:
        pass
    except BaseException:  # noqa: BLE001 - the end of a process: the log is where its error belongs
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def main() -> None:
    set_start_method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda *_, **__: set_start_method("fork", force=True)
    for module in MODULES:
        importlib.import_module(f"sglang.{module}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the servers
    print(PID, flush=True)
    while line := sys.stdin.readline():
        if (pid := os.fork()) == 0:
            serve(json.loads(line))
        print(f"{PID}{pid}", flush=True)


if __name__ == "__main__":
    main()
