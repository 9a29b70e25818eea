"""Real instances of the engine, started by hand and talked to without a router."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
READY = "The server is fired up and ready to roll!"
LAST_LINES = 40


class Form(NamedTuple):
    """A parallel shape: `dp` attention groups within `tp`, or `replicas` of it; `pp` stages; `ep` expert groups."""

    tp: int
    dp: int = 1
    replicas: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.replicas

    @property
    def name(self) -> str:
        sizes = (("tp", self.tp), ("dp", self.dp), ("x", self.replicas), ("pp", self.pp), ("ep", self.ep))
        return "".join(f"{word}{size}" for word, size in sizes if size > 1 or word == "tp")

    @property
    def flags(self) -> tuple[str, ...]:
        sizes = (
            ("--tp-size", self.tp),
            ("--attn-dp-size", self.dp),
            ("--dp-size", self.replicas),
            ("--pp-size", self.pp),
            ("--ep-size", self.ep),
        )
        return tuple(word for flag, size in sizes if size > 1 for word in (flag, str(size)))


@dataclass(eq=False)
class Instance:
    """One `python -m pdctl.engine`; `tail` are its last lines, for whoever asks why."""

    name: str
    form: Form
    process: subprocess.Popen[str]
    port: int
    bootstrap_port: int
    ready: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.tail.append(line.rstrip())
                if READY in line:
                    self.ready.set()
        self.ended.set()
        self.ready.set()

    def wait_ready(self, seconds: float) -> None:
        if not self.ready.wait(seconds) or self.ended.is_set():
            raise RuntimeError(f"{self.name} {self._why(seconds)}:\n" + "\n".join(self.tail))

    def _why(self, seconds: float) -> str:
        return "ended at its start" if self.ended.is_set() else f"is not ready after {seconds:g} s"

    def stop(self, seconds: float = 20.0) -> None:
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(seconds)


def start(model: Path, role: str, form: Form, backend: str, *more: str, python: str = sys.executable) -> Instance:
    port, bootstrap = free_port(), free_port()
    flags = [
        *("--model-path", str(model), "--port", str(port), *form.flags, "--num-threads", "1"),
        *("--max-total-tokens", "16384", "--max-running-requests", "32"),
    ]
    if role != "null":
        flags += ["--disaggregation-mode", role, "--disaggregation-bootstrap-port", str(bootstrap)]
        flags += ["--disaggregation-transfer-backend", backend]
    process = subprocess.Popen(
        [python, "-m", "pdctl.engine", *flags, *more],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    instance = Instance(f"{role}-{form.name}", form, process, port, bootstrap)
    threading.Thread(target=instance.read, daemon=True).start()
    return instance
