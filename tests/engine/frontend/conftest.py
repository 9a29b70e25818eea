"""Real engine processes (echo ranks) and HTTP clients, shared by the tests of this folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests import plain_http
from tests.engine.frontend import checkpoint
from tests.forks import Fork
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
ECHO = "tests.engine.frontend.serve"  # the real server process over ranks that echo
# What every one of them imports.
NEEDS = (
    "pdctl.engine.__main__", "pdctl.engine.frontend.http_process", "pdctl.engine.cluster.node_follower",
    "uvicorn.loops.auto",
)  # fmt: skip
READY = "The server is fired up and ready to roll!"
PATIENCE = 90.0  # seconds; a busy machine is slow, never this slow


class Engine:
    """One `python -m` process, its log, and a client. `wait_for` blocks until a line of the log holds a text."""

    def __init__(
        self,
        model: Path,
        flags: tuple[str, ...],
        env: dict[str, str] | None = None,
        module: str = ECHO,
        before: tuple[str, ...] = (),
    ) -> None:
        """`before`: a command that ends by running the one that follows it.

        What echoes is forked, unless `before` has to run it.
        """
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.lines: list[str] = []
        self._ended = False
        self._more = threading.Condition()
        argv = ["--model-path", str(model), "--port", str(self.port), *flags]
        given = {**os.environ, **(env or {})}
        read, write = os.pipe()
        self._stderr = open(read, encoding="utf-8")  # noqa: SIM115 - read to its end by a thread
        self.process: subprocess.Popen[bytes] | Fork
        if module == ECHO and not before:
            with open(os.devnull, "wb") as nowhere:
                self.process = Fork(module, argv, given, NEEDS, nowhere.fileno(), write)
        else:
            command = [*before, sys.executable, "-m", module, *argv]
            self.process = subprocess.Popen(command, stderr=write, cwd=ROOT, env=given)
        os.close(write)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.client = plain_http.Client(base_url=self.url, timeout=PATIENCE)

    def _read(self) -> None:
        with self._stderr as stderr:
            for line in stderr:
                with self._more:
                    self.lines.append(line.rstrip("\n"))
                    self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait_for(self, text: str, after: int = 0) -> str:
        def found() -> str | None:
            return next((line for line in self.lines[after:] if text in line), None)

        with self._more:
            self._more.wait_for(lambda: found() or self._ended, PATIENCE)
            line = found()
            assert line, f"waited up to {PATIENCE} s for {text!r} in:\n" + "\n".join(self.lines)
            return line

    def exit_code(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def children(self) -> list[int]:
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def close(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.exit_code()


@contextmanager
def running(
    model: Path, *flags: str, env: dict[str, str] | None = None, module: str = ECHO, before: tuple[str, ...] = ()
) -> Iterator[Engine]:
    engine = Engine(model, flags, env, module, before)
    try:
        yield engine
    finally:
        engine.close()


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        pause.wait(0.01)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def unified(model: Path) -> Iterator[Engine]:
    with running(model, "--served-model-name", "echo") as engine:
        engine.wait_for(READY)
        yield engine


@pytest.fixture(scope="session")
def decode(model: Path) -> Iterator[Engine]:
    with running(model, "--disaggregation-mode", "decode") as engine:
        engine.wait_for(READY)
        yield engine


@pytest.fixture(scope="session")
def prefill(model: Path) -> Iterator[Engine]:
    flags = ("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(free_port()))
    with running(model, *flags) as engine:
        engine.wait_for(READY)
        yield engine


@pytest.fixture(scope="session")
def replicas(model: Path) -> Iterator[Engine]:
    with running(model, "--dp-size", "2", "--tp-size", "2", "--load-balance-method", "round_robin") as engine:
        engine.wait_for(READY)
        yield engine


def events(response: httpx.Response) -> list[dict[str, object]]:
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def in_background(engine: Engine, text: object, **body: object) -> tuple[threading.Thread, list[httpx.Response]]:
    """A request on its way (it has reached the engine when this returns) and where its answer will be."""
    answers: list[httpx.Response] = []
    rid = body.setdefault("rid", f"bg{len(engine.lines)}")

    def ask() -> None:
        answers.append(plain_http.post(f"{engine.url}/generate", json={"text": text, **body}, timeout=30))

    thread = threading.Thread(target=ask)
    thread.start()
    engine.wait_for(f"Receive: obj=GenerateReqInput(rid='{rid}")
    return thread, answers


SHAPE = ("--tp-size", "2", "--attn-dp-size", "2")
