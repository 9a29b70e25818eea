"""`python -m MODULE` forked from a process that has imported it before, for tests that start one program many times.

A fresh interpreter spends most of its time on imports. Here one process makes them once and holds nothing else: what
is forked from it has an environment, a working directory, standard streams and a process of its own, and runs the
module as `python -m` does. Where the start itself is the subject, a test starts an interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LENGTH, _NUMBER = struct.Struct("!I"), struct.Struct("!i")
_STREAMS = 4  # descriptors that come with a request: standard input, output, error, and where its end is told


class Fork:
    """A process with what tests use of subprocess.Popen, which a process that is not a child of ours cannot be."""

    def __init__(
        self, module: str, argv: Sequence[str], env: Mapping[str, str], needs: Sequence[str], stdout: int, stderr: int
    ) -> None:
        """`needs`: modules that are imported before the fork, once for all processes that name them."""
        asked = {"module": module, "argv": list(argv), "needs": list(needs), "env": dict(env)}
        read, told = os.pipe()
        self._told = open(read, "rb", buffering=0)  # noqa: SIM115 - the pid, and later the exit code
        with open(os.devnull, "rb") as nothing:
            _server().ask(json.dumps(asked).encode(), (nothing.fileno(), stdout, stderr, told))
        os.close(told)
        self.returncode: int | None = None
        self._words = (module, *argv)
        self.pid = self._next()

    def _next(self) -> int:
        told = self._told.read(_NUMBER.size)
        assert told, f"the process that forks ended before {self._words}"
        return int(_NUMBER.unpack(told)[0])

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = self._next()
            self._told.close()
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None and not select.select([self._told], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self._words, timeout)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_fork(
    module: str, argv: Sequence[str], env: Mapping[str, str], needs: Sequence[str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run does, with the output captured as text."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = Fork(module, argv, env, needs, out.fileno(), err.fileno())
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess([module, *argv], code, out.read().decode(), err.read().decode())


class _Server:
    """The process that forks, as seen from a test process. It ends with it."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip

    def close(self) -> None:
        self._line.close()
        self._process.wait(60)

    def ask(self, request: bytes, streams: Sequence[int]) -> None:
        with self._lock:
            socket.send_fds(self._line, [_LENGTH.pack(len(request))], streams)
            self._line.sendall(request)


@cache
def _server() -> _Server:
    server = _Server()
    atexit.register(server.close)
    return server


@dataclass
class _Children:
    """Those of the process that forks: pid → where its end is told."""

    told: dict[int, int] = field(default_factory=dict)

    def reap(self) -> None:
        while self.told:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            told = self.told.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                os.write(told, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
            os.close(told)


def _received(line: socket.socket) -> tuple[dict[str, object], list[int]] | None:
    """The next request and its descriptors; None when the test process has ended."""
    head, streams, _, _ = socket.recv_fds(line, _LENGTH.size, _STREAMS)
    if not head:
        return None
    (left,) = _LENGTH.unpack(head)
    parts = []
    while left:
        parts.append(line.recv(left))
        left -= len(parts[-1])
    return json.loads(b"".join(parts)), streams


def _serve(line: socket.socket) -> tuple[str, list[str]] | None:
    """Fork at each request. Return the module and the words to run in the child, None at the end of all."""
    children = _Children()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([line, woken], [], [])
        if woken in ready:
            os.read(woken, 1024)
            children.reap()
        if line not in ready:
            continue
        request = _received(line)
        if request is None:
            return None
        asked, streams = request
        for name in asked["needs"]:  # type: ignore[attr-defined]
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # a fork that collects garbage would copy every page of what it shares
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, stream in enumerate(streams[:3]):
                os.dup2(stream, number)
            line.close()
            os.closerange(3, max((*streams, *children.told.values(), woken, wake)) + 1)
            os.environ.clear()
            os.environ.update(asked["env"])  # type: ignore[call-overload]
            time.tzset()
            return str(asked["module"]), list(asked["argv"])  # type: ignore[call-overload]
        told = streams[-1]
        children.told[child] = told
        os.write(told, _NUMBER.pack(child))
        for stream in streams[:3]:
            os.close(stream)


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    found = _serve(line)
    if found is not None:
        module, argv = found
        sys.argv[1:] = argv
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
