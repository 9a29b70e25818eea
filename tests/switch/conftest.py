"""Two prefills and two decodes of scripted engines behind our real router."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdctl.switch import perform
from tests import plain_http
from tests.cli.verb import Verb
from tests.e2e.conftest import ROOT, wait_for
from tests.ports import free_block
from tests.switch.engines import Engine


@dataclass
class Fleet:
    """`home` is pdctl's state directory."""

    prefills: list[Engine]
    decodes: list[Engine]
    router: str
    home: Path
    verb: Verb

    def workers(self) -> dict[str, tuple[str, int | None]]:
        """URL → role and bootstrap port, of those that the router uses."""
        entries = plain_http.get(f"{self.router}/workers").json()["workers"]
        used = [entry for entry in entries if entry["is_healthy"]]
        return {entry["url"]: (entry["worker_type"], entry.get("bootstrap_port")) for entry in used}

    def expected(self) -> dict[str, tuple[str, int | None]]:
        prefills = {one.url: ("prefill", one.bootstrap_port) for one in self.prefills}
        return {**prefills, **{one.url: ("decode", None) for one in self.decodes}}

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """The verb in a process of its own, with the pauses it has everywhere."""
        env = {**os.environ, "PDCTL_HOME": str(self.home)}
        command = [sys.executable, "-m", "pdctl", "role-switch", *argv]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)

    def switch(self, engine: Engine, to: str, *more: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr of the verb, run in this process with hardly a pause between two looks."""
        code = self.verb("role-switch", engine.url, "--to", to, "--router", self.router, *more)
        return code, self.verb.out, self.verb.err


@pytest.fixture
def engines() -> Iterator[tuple[list[Engine], list[Engine]]]:
    made = [Engine(role) for role in ("prefill", "prefill", "decode", "decode")]
    yield made[:2], made[2:]
    for engine in made:
        engine.close()


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Without workers; every test brings its own."""
    port = free_block(1)
    command = [sys.executable, "-m", "pdctl.router", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path_factory.mktemp("router") / "router.log").open("w") as log:
        process = subprocess.Popen([*command, "--probe-interval", "0.1"], stdout=log, stderr=log, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    wait_for("the router", lambda: plain_http.get(f"{url}/health").status_code == 200)
    yield url
    process.terminate()
    assert process.wait(15) == 0


@pytest.fixture
def fleet(
    engines: tuple[list[Engine], list[Engine]],
    router: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Fleet]:
    monkeypatch.setenv("PDCTL_HOME", str(tmp_path))
    for pause in ("AGAIN", "BETWEEN_TURNS"):
        monkeypatch.setattr(perform, pause, 0.02)
    prefills, decodes = engines
    made = Fleet(prefills, decodes, router, tmp_path, Verb(capsys))
    for url, (role, port) in made.expected().items():
        body = {"url": url, "worker_type": role, **({"bootstrap_port": port} if port else {})}
        assert plain_http.post(f"{router}/workers", json=body).status_code == 202
    wait_for("four workers", lambda: made.workers() == made.expected())
    yield made
    for entry in plain_http.get(f"{router}/workers").json()["workers"]:
        plain_http.delete(f"{router}/workers/{entry['id']}")
