"""`python -m pdctl.engine.scheduler`: one rank. Started by the engine's server process, never by hand."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import lifeline
from pdctl.engine.cluster.rank_processes import tell_end_reason
from pdctl.engine.config.instance_args import ReplicaRank, ServerArgs
from pdctl.engine.config.process_log import configure
from pdctl.errors import LimitError, limits_named

if TYPE_CHECKING:
    from collections.abc import MutableMapping


# torch reads it once, at its first allocation: from then on tensors of 2 MiB and more are marked MADV_HUGEPAGE.
SWITCH = "THP_MEM_ALLOC_ENABLE"


def prefer_huge_pages(environ: MutableMapping[str, str]) -> None:
    """Call before torch is imported. A step of one sequence, which waits for weights, takes up to a quarter less time.

    Has no effect if the kernel offers no transparent huge pages, or if the user has set the switch.
    """
    environ.setdefault(SWITCH, "1")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pdctl.engine.scheduler")
    parser.add_argument("--args-json", required=True)
    parser.add_argument("--tp-rank", type=int, required=True)
    parser.add_argument("--pp-rank", type=int, required=True)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--ipc-dir", type=Path, required=True)
    parser.add_argument("--dist-init", required=True)
    options = parser.parse_args()
    lifeline.hold()
    # The server process decides when a rank ends: a Ctrl-C in the terminal reaches every process of the group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    args = ServerArgs.from_json(options.args_json)
    here = ReplicaRank.find(args.shape, options.replica, options.pp_rank, options.tp_rank)
    configure(args, here.rank)

    prefer_huge_pages(os.environ)  # read once, when torch is imported
    gc.disable()  # imports make no garbage; looking for it takes a sixth of their time
    try:
        with limits_named():
            from pdctl.engine.scheduler.scheduler_rank import serve
    except LimitError as error:  # torch is hundreds of MB of libraries
        logging.getLogger("pdctl.engine").error("Start-up failed: %s. %s", error.message, error.fix)
        tell_end_reason(f"{error.message}; {error.fix}")
        sys.exit(1)
    gc.freeze()  # what is imported stays
    gc.enable()
    code = serve(args, here, options.ipc_dir, options.dist_init)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: with the system's libnl present, a process that created a NIXL agent can segfault in a library
    # destructor at normal interpreter exit, which a supervisor would read as a crash.
    os._exit(code)


if __name__ == "__main__":
    main()
