"""Two prefills, a decode and the published router as processes: start as planned, cause one fault, end all."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tools.record_release.preload import PID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGY = ROOT / "topologies" / "sglang-2p1d-cpu.yaml"
TO_START, TO_ROUTE, TO_ANSWER, TO_END = 900.0, 600.0, 240.0, 20.0  # seconds; a router tries a lost room several times
SHORT = 8  # tokens
LOST = 20  # seconds after which SGLang gives up a lost room; its own default is 300
SERVER = "sglang.launch_server"
READY = b"The server is fired up and ready to roll!"


class RecordError(Exception):
    """The deployment could not be brought to the point at which the fault is caused."""


def plan(home: Path, version: str, traceable: bool) -> dict[str, Any]:
    """The output of `pdctl plan` for the topology, whose commands are run here. Raise RecordError if it fails."""
    python = home / version / "bin" / "sglang-python"
    if not python.is_file():
        raise RecordError(f"there is no {python}: it must be a Python in which sglang {version} runs on a CPU")
    said = {"SGLANG_PYTHON": str(python), "SGLANG_MODEL": str(home / "model"), "SGLANG_VERSION": version}
    settings = ["model.config=null", f"engine.traceable={'true' if traceable else 'false'}"]
    settings += [f"engine.env.SGLANG_DISAGGREGATION_{which}_TIMEOUT={LOST}" for which in ("BOOTSTRAP", "WAITING")]
    command = [sys.executable, "-m", "pdctl", "plan", str(TOPOLOGY), "-o", "json"]
    command += [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(
        command, env={**os.environ, **said}, capture_output=True, encoding="utf-8", cwd=ROOT, check=False
    )
    if done.returncode:
        raise RecordError(f"pdctl plan left with {done.returncode}: {done.stderr or done.stdout}")
    planned: dict[str, Any] = json.loads(done.stdout)
    return planned


class Preloaded:
    """A process of the release's Python that has imported SGLang and forks servers (preload.py)."""

    def __init__(self, python: Path) -> None:
        command = [str(python), str(Path(__file__).with_name("preload.py"))]
        self._command, pipe = shlex.join(command), subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, encoding="utf-8", start_new_session=True
        )
        self._pid()

    def _pid(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith(PID):
                return line.removeprefix(PID).strip()
        raise RecordError(f"the Python that imports SGLang once ended: run `{self._command}` to see why")

    def start(self, argv: list[str], env: dict[str, str], log: Path) -> Forked:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"argv": argv, "env": env, "log": str(log)}) + "\n")
        self._process.stdin.flush()
        return Forked(int(self._pid()))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Forked:
    """A server that is not our child, so its exit code is unknown."""

    pid: int

    def poll(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return -1
        return None

    def wait(self, timeout: float = TO_END) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.1)
        return -1


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a request, as its client saw it."""

    outcome: str  # ok or failed, also where the client gave up after TO_ANSWER: its room ends with that
    began: bool  # whether any token arrived


class Running:
    """The processes of one recording, each in its own process group, each with a log `NAME.log` under `out`."""

    def __init__(self, planned: dict[str, Any], prefills: list[str], out: Path, preloaded: Preloaded | None) -> None:
        """`prefills`: the router's `--prefill` words for all prefills."""
        self.out = out
        self.servers = {one["name"].replace("-", ""): one for one in planned["instances"]}
        self.url: str = planned["router"]["url"]
        self._router: list[str] = planned["router"]["command"]["argv"]
        start = self._router.index("--prefill")
        self._router = [*self._router[:start], *prefills, *self._router[self._router.index("--decode") :]]
        self._preloaded = preloaded
        self._processes: dict[str, subprocess.Popen[bytes] | Forked] = {}
        lines = [one["commands"][0]["shell"] for one in planned["instances"]] + [shlex.join(self._router)]
        (out / "run.sh").write_text("#!/bin/sh\n" + "".join(f"{line} &\n" for line in lines) + "wait\n", "utf-8")

    def ports(self, which: str) -> dict[int, str]:
        """Port → instance; `which`: http_port or bootstrap_port."""
        return {one[which]: name for name, one in self.servers.items() if one.get(which)}

    def start(self) -> None:
        """Start the servers and, when all are ready, the router. Raise RecordError if one ends or takes too long."""
        for name, one in self.servers.items():
            self._spawn(name, one["commands"][0]["argv"], one["commands"][0]["env"])
        for name in self.servers:
            log = self.out / f"{name}.log"
            self._wait(name, TO_START, f"`{READY.decode()}` in {log}", partial(ready, log))
        self._spawn("router", self._router, {})
        self._wait("router", TO_ROUTE, f"{len(self.servers)} healthy workers at {self.url}/workers", self._routes)

    def _routes(self) -> bool:
        with suppress(httpx.HTTPError):
            workers = httpx.get(f"{self.url}/workers", timeout=2).json()["workers"]
            return sum(bool(worker["is_healthy"]) for worker in workers) == len(self.servers)
        return False

    def _spawn(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        path = self.out / f"{name}.log"
        with path.open("wb") as log:
            if self._preloaded is not None and SERVER in argv:
                self._processes[name] = self._preloaded.start(argv[argv.index(SERVER) + 1 :], env, path)
                return
            self._processes[name] = subprocess.Popen(
                argv, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _wait(self, name: str, seconds: float, what: str, done: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        while not done():
            if (code := self._processes[name].poll()) is not None:
                raise RecordError(f"{name} left with {code} before {what}; see {self.out / name}.log")
            if time.monotonic() > end:
                raise RecordError(f"{name}: no {what} within {seconds:g} s")
            time.sleep(0.5)

    def ask(self, numbers: Iterable[int], at_once: int = 1, tokens: int = SHORT) -> dict[int, Answer]:
        """Send the prompt `number N` for each N; an answer of more than SHORT tokens is streamed. N → its answer."""
        with ThreadPoolExecutor(at_once) as crowd:
            return dict(crowd.map(lambda number: (number, self._ask(number, tokens)), numbers))

    def _ask(self, number: int, tokens: int) -> Answer:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"text": f"number {number}", "sampling_params": sampling, "stream": tokens > SHORT}
        began = broken = done = False
        try:
            with httpx.stream("POST", f"{self.url}/generate", json=body, timeout=TO_ANSWER) as answer:
                for line in answer.iter_lines():
                    began |= '"text"' in line
                    broken |= '"error"' in line
                    done |= line == "data: [DONE]"
                whole = answer.status_code == httpx.codes.OK and not broken and (done or tokens <= SHORT)
        except httpx.HTTPError:
            return Answer("failed", began)
        return Answer("ok" if whole else "failed", began)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a server and everything it started."""
        os.killpg(self._processes[name].pid, number)

    def end(self) -> None:
        """End all with SIGTERM, the router first; after TO_END seconds, use SIGKILL."""
        for process in reversed(self._processes.values()):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        end = time.monotonic() + TO_END
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ready(log: Path) -> bool:
    return READY in log.read_bytes()
