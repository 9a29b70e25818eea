"""`python -m pdctl.engine.scheduler`: one rank. Started by the engine's server process, never by hand."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from pdctl import lifeline
from pdctl.engine.args import ServerArgs
from pdctl.engine.logs import configure
from pdctl.engine.model.memory import prefer_huge_pages


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pdctl.engine.scheduler")
    parser.add_argument("--args-json", required=True)
    parser.add_argument("--tp-rank", type=int, required=True)
    parser.add_argument("--dp-rank", type=int, required=True)
    parser.add_argument("--ipc-dir", type=Path, required=True)
    parser.add_argument("--dist-port", type=int, required=True)
    options = parser.parse_args()
    lifeline.hold()
    # The server process decides when a rank ends: a Ctrl-C in the terminal reaches every process of the group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    args = ServerArgs.from_json(options.args_json)
    configure(args, tp_rank=options.tp_rank, dp_rank=options.dp_rank)

    prefer_huge_pages(os.environ)  # read once, when torch is imported
    from pdctl.engine.scheduler.rank import serve

    code = serve(args, options.tp_rank, options.dp_rank, options.ipc_dir, options.dist_port)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: with the system's libnl present, a process that created a NIXL agent can segfault in a library
    # destructor at normal interpreter exit, which a supervisor would read as a crash.
    os._exit(code)


if __name__ == "__main__":
    main()
