"""Where the tests' other processes come from: forked from one that has imported what they need, and holds nothing.

A fresh interpreter for each would spend ten times as long on imports as most of these tests take.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

multiprocessing.set_forkserver_preload(["__main__", "tests.engine.transfer.far", "tests.engine.kv_link.far_rank"])
_CONTEXT = multiprocessing.get_context("forkserver")


def pipe() -> tuple[Connection, Connection]:
    return _CONTEXT.Pipe()


def started(target: Callable[..., object], *args: Any) -> BaseProcess:
    """`target` finds the environment as it is now, and the process ends with this one."""
    process = _CONTEXT.Process(target=_run, args=(dict(os.environ), target, args), daemon=True)
    process.start()
    return process


def _run(environ: dict[str, str], target: Callable[..., object], args: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    target(*args)
