"""`python -m pdctl.engine <flags>`: one instance. Binds its ports, starts its ranks, and only then imports the rest."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import lifeline, open_files, program
from pdctl.engine.cluster.rank_processes import SCHEDULER, Ranks
from pdctl.engine.config.engine_flags import parse_with_keys
from pdctl.engine.config.process_log import configure
from pdctl.engine.drill import fault_points
from pdctl.engine.ipc.channels import dist_address
from pdctl.errors import LimitError, MissingExtraError, PdctlError, limits_named
from pdctl.layout.ports import PortBlock
from pdctl.loopback import fix_of_listening
from pdctl.name_lookup import LOOKUP, look_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.config.instance_args import ServerArgs

log = logging.getLogger("pdctl.engine")

EXTRA = ("torch", "zmq", "msgspec", "tokenizers", "fastapi", "uvicorn", "orjson", "jinja2", "prometheus_client")
BACKLOG = 2048
LEAST_FILES = 256  # an idle rank has some 60 descriptors open, and libraries fail without a word where one is missing
RESOLVE = 1.0  # seconds between questions for a name that nobody knows yet
# A Unix socket's path holds 104 bytes on macOS, 108 on Linux: a deep TMPDIR leaves too few.
LONGEST_DIR = 62


def main() -> None:
    sys.exit(start(sys.argv[1:]))


def start(argv: Sequence[str], module: str = SCHEDULER) -> int:
    """Serve until told to stop; returns the exit code. `module` is what `python -m` runs as a rank."""
    args, keys = parse_with_keys(argv, os.environ)
    configure(args)
    for line in (*args.rehearsal.lines, *fault_points.start_lines()):
        log.warning("%s", line)
    try:
        _require_files()
        _require_extra()
        door = _listen(args)
        if args.node_rank:
            _await_name(args)
        else:
            _check_ports(args)
        ipc_dir = _ipc_dir()
    except PdctlError as error:
        log.error("%s. %s", error.message, error.fix)
        return error.exit_code
    lifeline.hold(on_cut=lambda: shutil.rmtree(ipc_dir, ignore_errors=True))
    ranks = Ranks(args, ipc_dir, module)
    try:
        # The ranks spend a second or more importing torch: whatever this process has to import costs nothing meanwhile.
        with limits_named():
            ranks.spawn()
            gc.disable()  # imports make no garbage; looking for it takes a seventh of their time
            if args.node_rank:
                from pdctl.engine.cluster.node_follower import follow

                gc.enable()
                return follow(args, door, ranks, ipc_dir)
            from pdctl.engine.frontend.http_process import serve

            gc.enable()
            return serve(args, door, ranks, ipc_dir, keys)
    except LimitError as error:
        log.error("Start-up failed: %s. %s", error.message, error.fix)
        return error.exit_code
    finally:
        ranks.kill()
        shutil.rmtree(ipc_dir, ignore_errors=True)


def _require_files() -> None:
    """Raise the limit for this process and the ranks it starts; refuse one that even an idle rank would reach."""
    files = open_files.raise_limit()
    if files < LEAST_FILES:
        raise PdctlError(
            f"the hard limit of open files is {files}, and an instance needs {LEAST_FILES} to begin with",
            f"raise it where this process is started (ulimit -Hn {open_files.ENOUGH}, or LimitNOFILE= of the unit)",
        )


def _require_extra() -> None:
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        what = f"the embedded engine needs {', '.join(missing)}"
        raise MissingExtraError(what, program.install_command(missing, "engine"))


def _listen(args: ServerArgs) -> socket.socket:
    """Bound before anything else, so that a taken port is said at once and /health answers 503 while weights load."""
    try:
        family, kind, proto, _, address = look_up(args.host, args.port, flags=socket.AI_PASSIVE)[0]
        door = socket.socket(family, kind, proto)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(address)
        door.listen(BACKLOG)
    except OSError as error:
        fix = fix_of_listening(error, args.host, "give another --host or --port")
        raise PdctlError(f"cannot listen on {args.host}:{args.port}: {error.strerror}", fix) from None
    return door


def _check_ports(args: ServerArgs) -> None:
    """Those that node 0 binds later: taken ones are said before a rank is started."""
    if args.serves_bootstrap:
        # Ranks that registered with another instance's bootstrap server would send its rooms here.
        fix = "give another --disaggregation-bootstrap-port, and the same to the router"
        _check_free(args.host, args.disaggregation_bootstrap_port, "the bootstrap port", fix)
    if args.dist_init_addr and args.tp_size * args.pp_size > 1:
        host, port = dist_address(args)
        fix = "give another --dist-init-addr, the same to every node"
        meetings = (port,) if args.nnodes > 1 else range(port, port + args.dp_size)
        for each in meetings:  # torch listens on every interface
            _check_free("0.0.0.0", each, "the port of --dist-init-addr", fix)
        for purpose, each in [*PortBlock.of(port)._asdict().items()][1:] if args.nnodes > 1 else ():
            _check_free(host, each, f"the {purpose} port of --dist-init-addr", fix)


def _await_name(args: ServerArgs) -> None:
    """Where nodes are started together, the name of node 0 may be known a while after this one runs."""
    host, port = dist_address(args)
    deadline = time.monotonic() + args.dist_timeout
    told = False
    while True:
        try:
            look_up(host, port, min(LOOKUP, max(1.0, deadline - time.monotonic())))
            return
        except OSError as error:
            reason = error.strerror
        if time.monotonic() >= deadline:
            message = f"waited {args.dist_timeout:g} s for the name {host} of --dist-init-addr to resolve: {reason}"
            raise PdctlError(message, "give node 0's own name or address")
        if not told:
            log.warning("Waiting for the name %s of --dist-init-addr to resolve: %s", host, reason)
            told = True
        time.sleep(min(RESOLVE, args.dist_timeout))


def _check_free(host: str, port: int, what: str, fix: str) -> None:
    try:
        family, kind, proto, _, address = look_up(host, port, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        fix = fix_of_listening(error, host, fix)
        raise PdctlError(f"cannot listen on {what} {host}:{port}: {error.strerror}", fix) from None


def _ipc_dir() -> Path:
    """Private (0700) home of the sockets between the processes of this instance.

    Named for this process, so that whoever started it (pdctl launch) can remove what a SIGKILL leaves. Raise PdctlError
    if it cannot be made.
    """
    try:
        base = tempfile.gettempdir()
        return Path(tempfile.mkdtemp(prefix=f"pdctl-{os.getpid()}-", dir=base if len(base) < LONGEST_DIR else "/tmp"))
    except OSError as error:
        said = f"cannot make a directory for sockets: {error.strerror}"
        raise PdctlError(said, "Set TMPDIR to a directory that can be written to: TMPDIR=DIR") from None


if __name__ == "__main__":
    main()
