"""doctor on a real run of `pdctl launch`: all is well, real requests leave nothing behind, and a death is seen."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import plain_http
from tests.e2e.conftest import ROOT, Deployment, start, wait_for

TOKEN = "hf_9f8e7d6c5b4a39281706"
# A process that dies stays dead long enough to be looked at.
ONCE = "readiness.restart={policy: instance, backoff: 10m, backoff-max: 10m}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    sets = (ONCE, f"roles.prefill.env.HF_TOKEN={TOKEN}")
    deployment = start(
        tmp_path_factory.mktemp("state"), "watched", "topologies/1p1d.yaml", 1, *(w for s in sets for w in ("--set", s))
    )
    yield deployment
    deployment.pdctl("down", "watched")


def test_real_requests_through_every_pair(run: Deployment, tmp_path: Path) -> None:
    done = run.pdctl("doctor", "--canary", "-o", "json", "--bundle", str(tmp_path / "watched.tgz"))
    report = json.loads(done.stdout)
    assert [one for one in report["findings"] if one["severity"] == "error"] == []
    assert (report["depth"], report["title"]) == ("canary", "run watched")
    cells = {(cell["prefill"], cell["decode"]): cell for cell in report["matrix"]}
    assert set(cells) == {("prefill-0", "decode-0")}
    assert all(cell["ok"] is True and cell["seconds"] > 0 and cell["room"] for cell in cells.values())
    status = {check["code"]: check["status"] for check in report["checks"]}
    asked = ("PD201", "PD202", "PD205", "PD209", "PD302", "PD604", "PD610", "PD611", "PD613")
    assert {code: status[code] for code in asked} == dict.fromkeys(asked, "ok")
    assert [row["odd"] for row in report["ports"]] == [None]
    nothing_left(run)
    bundled(tmp_path / "watched.tgz", done.stderr)


def queued(url: str) -> list[dict[str, int]]:
    """Requests per queue of each rank."""
    found = []
    for load in plain_http.get(f"{url}/v1/loads", timeout=10).json()["loads"]:
        queues = {name: count for name, count in load["disaggregation"].items() if name.endswith("_reqs")}
        found.append(queues | {name: load[name] for name in ("num_running_reqs", "num_waiting_reqs")})
    assert all(len(queues) > 2 for queues in found)
    return found


def nothing_left(run: Deployment) -> None:
    """No request is queued and every page of the KV cache is free, also after a cancelled and a refused canary."""
    for url in (*run.prefills, *run.decodes):  # a busy machine is still ending what was cancelled
        wait_for(
            f"empty queues at {url}", lambda url=url: not any(count for one in queued(url) for count in one.values())
        )  # type: ignore[misc]
    wait_for("return of every page", run.all_pages_free)


def bundled(path: Path, said: str) -> None:
    """Everything a colleague needs, still readable as JSON, and neither the token nor what was generated."""
    text: dict[str, str] = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert isinstance(file, io.BufferedReader)
            text[member.name.partition("/")[2]] = file.read().decode()
    assert set(text) == {
        "facts.json", "report.json", "report.txt", "log-lines.txt", "versions.txt", "REDACTED.txt", "run/run.json",
        "run/plan.json", "run/topology.yaml",
    }  # fmt: skip
    assert TOKEN not in "".join(text.values())
    assert "key variable or field" in text["REDACTED.txt"]
    assert "key variable or field" in said
    facts: Any = json.loads(text["facts.json"])
    assert [engine["endpoint"]["name"] for engine in facts["engines"]] == ["prefill-0", "decode-0"]
    assert {canary["text"] for canary in facts["canaries"] if canary["text"]} == {"[redacted]"}
    assert json.loads(text["run/run.json"])["name"] == "watched"
    assert json.loads(text["run/plan.json"])["schema"] == "pdctl.plan/1"


def test_watching_a_prefill_die(run: Deployment) -> None:
    """The one finding that opens names it; Ctrl-C ends the watch as it ends any command."""
    argv = [sys.executable, "-m", "pdctl", "doctor", "--run", "watched", "--watch", "1s", "-o", "jsonl"]
    env = {**os.environ, "PDCTL_HOME": str(run.home)}
    watch = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert watch.stdout is not None
    try:
        os.kill(run.processes()["prefill-0"], signal.SIGKILL)
        events = []
        for line in watch.stdout:
            events.append(json.loads(line))
            if events[-1]["code"] == "PD604":
                break
        watch.send_signal(signal.SIGINT)
        _, errors = watch.communicate(timeout=30)
    finally:
        watch.kill()
        watch.communicate()
    assert (watch.returncode, errors) == (-signal.SIGINT, "")
    opened = events[-1]
    assert (opened["event"], opened["instance"], opened["severity"]) == ("opened", "prefill-0", "error")
    assert opened["headline"].startswith(("prefill-0 does not answer: ", "prefill-0 is not running: it was killed"))
    assert not [event for event in events if event["event"] == "opened" and event["instance"] == "decode-0"]
    status = run.pdctl("doctor", "--select", "PD604", "-o", "json", check=False)
    assert status.returncode == 1
    # The router's log may tell of it as well: a line of a moment, and a warning.
    errors = [one["instance"] for one in json.loads(status.stdout)["findings"] if one["severity"] == "error"]
    assert errors == ["prefill-0"]
