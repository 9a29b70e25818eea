"""Runs command lines in forks of one process that has imported every verb: `python -m tests.snapshots.forked` < cases.

Reads one JSON array of [argv, stdin file or ""] and writes one array of [exit code, stdout, stderr].
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path


def run(argv: list[str], stdin: str) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            source = os.open(stdin or os.devnull, os.O_RDONLY)
            for number, target in ((source, 0), (out.fileno(), 1), (err.fileno(), 2)):
                os.dup2(number, target)
            from pdctl.__main__ import main

            sys.argv = ["pdctl", *argv]
            code = 70  # what no verb leaves with
            try:
                main()
                code = 0
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            finally:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        out.seek(0), err.seek(0)
        return os.waitstatus_to_exitcode(status), out.read().decode(), err.read().decode()


def warm() -> None:
    """Read one recording in this process: what is compiled on the way, the forks share."""
    from pdctl.__main__ import main

    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        sys.argv = [
            "pdctl",
            "diagnose",
            "tests/data/rooms/pdctl-killed-decode",
            "tests/data/rooms/2p1d-missing-ports-info-sgl0522",
        ]
        with contextlib.suppress(SystemExit):
            main()


def main() -> None:
    from pdctl.cli.app import VERBS

    for verb in VERBS:
        importlib.import_module(verb.module.partition(":")[0])
    warm()
    cases = json.load(sys.stdin)
    # A fork that collects garbage copies every page of what it shares.
    gc.disable()
    gc.freeze()
    json.dump([run(argv, stdin) for argv, stdin in cases], sys.stdout)


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[2])
    main()
