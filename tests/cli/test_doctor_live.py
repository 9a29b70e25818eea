"""`pdctl doctor` against servers: recorded answers of real SGLang and its router, served again on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pdctl.doctor import gather, other_host
from tests.cli.doctor import ROOT, Said
from tests.doctor.replay import Replay, replay
from tests.fleet.conftest import Peer
from tests.launch.conftest import eventually

HEALTHY, NULL = "0.5.23-2p1d", "0.5.8-2p1d-router-without-ports"
FORMS = ("text", "json", "jsonl", "sarif", "github", "junit")
DEADLINE = 60.0
KEY = "k-9f8e7d6c5b4a"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def healthy() -> Iterator[Replay]:
    with replay(HEALTHY) as servers:
        yield servers


@pytest.fixture(scope="module")
def null() -> Iterator[Replay]:
    with replay(NULL) as servers:
        yield servers


@pytest.fixture(scope="module")
def far() -> Iterator[int]:
    """A port whose connections are never taken: what a host behind a firewall looks like."""
    with socket.socket() as mute, socket.socket() as first, socket.socket() as second:
        mute.bind(("127.0.0.1", 0))
        mute.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(mute.getsockname())
        yield mute.getsockname()[1]


def behind(servers: Replay) -> tuple[str, ...]:
    return ("--router", servers.url(8000), "--router-metrics", servers.url(29100))


def process(*argv: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdctl", "doctor", *argv],
        capture_output=True, text=True, timeout=DEADLINE, cwd=ROOT, check=False, **options,
    )  # type: ignore[call-overload,no-any-return]  # fmt: skip


# --- forms and exit codes


@pytest.mark.parametrize("form", FORMS)
def test_the_exit_code_is_the_same_in_every_form(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    healthy: Replay,
    null: Replay,
    far: int,
    form: str,
) -> None:
    monkeypatch.setattr(gather, "LEAST", 0.1)
    nowhere = ("--prefill", f"http://127.0.0.1:{far}", "--decode", f"http://127.0.0.1:{far}", "--timeout", "100ms")
    for argv, code in ((behind(healthy), 0), (behind(null), 1), (nowhere, 4)):
        said = Said(capsys, *argv, "-o", form)
        assert said.code == code, (argv, said.err)
        assert said.err == ""
        assert bool(said.out) is (code != 0 or form != "github")


def test_every_form_tells_the_same_findings(capsys: pytest.CaptureFixture[str], null: Replay) -> None:
    def out(form: str) -> str:
        return Said(capsys, *behind(null), "-o", form).out

    found = json.loads(out("json"))["findings"]
    codes = sorted(one["code"] for one in found)
    assert "PD201" in codes
    lines = [json.loads(line) for line in out("jsonl").splitlines()]
    assert sorted(line["code"] for line in lines if line["kind"] == "finding") == codes
    assert sorted(result["ruleId"] for result in json.loads(out("sarif"))["runs"][0]["results"]) == codes
    assert out("github").count("\n::") + 1 == len(codes)
    root = ElementTree.fromstring(out("junit").encode())
    errors = {one["code"] for one in found if one["severity"] == "error"}
    assert {case.get("name") for case in root.iter("testcase") if case.find("failure") is not None} == errors
    told = {case.get("name") for case in root.iter("testcase") if case.find("system-out") is not None}
    assert {one["code"] for one in found} == errors | told
    text = out("text")
    assert all(f"{one['code']} {one['slug']}" in text for one in found)


@pytest.mark.parametrize(
    "form",
    [form if form in ("text", "json", "junit") else pytest.param(form, marks=pytest.mark.heavy) for form in FORMS],
)
def test_a_stream_that_takes_only_ascii(null: Replay, form: str) -> None:
    """The evidence has arrows in it: they are spelt otherwise, and what is JSON or XML stays so."""
    done = process(*behind(null), "-o", form, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.isascii()
    if form == "json":
        assert "prefill-1 \u2192 decode-0" in json.dumps(json.loads(done.stdout), ensure_ascii=False)
    elif form == "junit":
        texts = [node.text or "" for node in ElementTree.fromstring(done.stdout.encode()).iter("failure")]
        assert any("prefill-1 \u2192 decode-0" in text for text in texts)


def test_a_reader_that_leaves_early(null: Replay) -> None:
    line = f'"$0" -m pdctl doctor {" ".join(behind(null))} -o json | head -1'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable], capture_output=True, text=True, timeout=DEADLINE, cwd=ROOT, check=True
    )
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_the_port_table_and_the_pair_that_will_fail(capsys: pytest.CaptureFixture[str], null: Replay) -> None:
    said = Said(capsys, *behind(null))
    assert "PD201 bootstrap-port-null  prefill-1" in said.out
    assert "prefill-1 → decode-0 will fail" in said.out
    rows = [line.split("\t") for line in said.out.splitlines() if line.startswith(("PREFILL", "prefill-"))]
    assert rows[0] == ["PREFILL", "SERVER_INFO", "BOOTSTRAP", "ROUTER"]
    assert [row[3] for row in rows[1:]] == ["null ✗", "null ✗"]


def test_canaries_fill_the_matrix(capsys: pytest.CaptureFixture[str], healthy: Replay) -> None:
    said = Said(capsys, *behind(healthy), "--canary", "--no-extras", "-o", "json")
    assert said.code == 0, said.out
    cells = said.document["matrix"]
    assert [(cell["prefill"], cell["decode"], cell["ok"]) for cell in cells] == [
        ("prefill-0", "decode-0", True), ("prefill-1", "decode-0", True),
    ]  # fmt: skip
    sent = [body for _, path, body in healthy.posted if path == "/generate"]
    assert {cell["room"] for cell in cells} == {body["bootstrap_room"] for body in sent}


def test_addresses_by_hand_need_no_router(capsys: pytest.CaptureFixture[str], healthy: Replay) -> None:
    prefill = f"{healthy.url(30000)},{healthy.port[8998]}"
    said = Said(capsys, "--prefill", prefill, "--decode", healthy.url(30002).removeprefix("http://"), "-o", "json")
    assert (said.code, said.document["title"]) == (0, "2 instances")
    wrong = f"{healthy.url(30000)},{healthy.port[8999]}"
    assert Said(capsys, "--prefill", wrong, "--decode", healthy.url(30002), "-o", "json").codes() == ["PD202"]


def test_a_key_goes_to_the_servers_and_nowhere_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SGL_KEY", f"{KEY}\n")  # as `export SGL_KEY=$(cat key)` does not, but a Secret's file may
    bundle = tmp_path / "b.tgz"
    with peer(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n") as asked:
        url = f"http://127.0.0.1:{asked.port}"
        pair = ("--prefill", url, "--decode", url, "--key-env", "SGL_KEY")
        said = Said(capsys, *pair, "-o", "json", "--bundle", bundle)
    assert any(f"authorization: Bearer {KEY}\r\n".encode() in request for request in asked.heard)
    assert KEY not in said.out + said.err + "".join(packed(bundle).values())


# --- into files


def test_a_report_is_whole_or_not_there(capsys: pytest.CaptureFixture[str], null: Replay, tmp_path: Path) -> None:
    there = tmp_path / "report.sarif"
    there.write_text("the one from before")
    said = Said(capsys, *behind(null), "-o", "sarif", "--output-file", there)
    assert (said.code, said.out, said.err) == (1, "", "")
    assert json.loads(there.read_text())["version"] == "2.1.0"
    assert [path.name for path in tmp_path.iterdir()] == ["report.sarif"]


def test_a_run_that_is_stopped_leaves_the_old_report(tmp_path: Path) -> None:
    there = tmp_path / "report.json"
    there.write_text("the one from before")
    with peer(hold=True) as server:
        assert Looking(server, "-o", "json", "--output-file", str(there)).end(signal.SIGINT) == -signal.SIGINT
    assert there.read_text() == "the one from before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_look_at_once(number: signal.Signals) -> None:
    """Also while nobody answers, and with nothing on stderr but what was said before."""
    with peer(hold=True) as server:
        assert Looking(server).end(number) == -number


@contextlib.contextmanager
def peer(*pieces: bytes, hold: bool = False) -> Iterator[Peer]:
    """A server that takes connections and says its pieces, or nothing."""
    server = Peer(pieces, forever=b"", hold=hold, host="127.0.0.1")
    try:
        yield server
    finally:
        server.close()


class Looking:
    """doctor at work on a server that says nothing; `end` waits until it is, and ends it with a signal."""

    def __init__(self, server: Peer, *argv: str) -> None:
        url = f"http://127.0.0.1:{server.port}"
        self._server = server
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pdctl", "doctor", "--prefill", url, "--decode", url, "--timeout", "50s", *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )

    def end(self, number: int) -> int:
        try:
            eventually(lambda: bool(self._server.heard), "doctor asks")
            self._process.send_signal(number)
            out, err = self._process.communicate(timeout=DEADLINE)
        finally:
            self._process.kill()
            self._process.communicate()
        assert (out, err) == (b"", b"")
        return self._process.returncode


def packed(bundle: Path) -> dict[str, str]:
    with tarfile.open(bundle) as archive:
        return {name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]


def test_a_bundle_holds_what_was_seen_and_no_secret(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The engine itself tells its key on /server_info."""
    told = f'{{"proxy_api_key": "{KEY}", "hub_token": "{KEY}", "vault_token": null, '
    with replay(
        HEALTHY, edit=lambda path, body: body.replace("{", told, 1) if "server_info" in path else body
    ) as servers:
        said = Said(capsys, *behind(servers), "--canary", "--no-extras", "--bundle", tmp_path / "out.tgz", "-o", "json")
    assert said.code == 0
    assert f"wrote {tmp_path / 'out.tgz'}" in said.err
    assert "key variable or field" in said.err
    text = packed(tmp_path / "out.tgz")
    files = ("facts.json", "log-lines.txt", "report.json", "report.txt", "versions.txt", "REDACTED.txt")
    assert list(text) == [f"out/{name}" for name in files]
    assert KEY not in "".join(text.values())
    facts = json.loads(text["out/facts.json"])
    assert [engine["endpoint"]["name"] for engine in facts["engines"]] == ["prefill-0", "prefill-1", "decode-0"]
    assert facts["engines"][0]["info"]["proxy_api_key"] == "[redacted]"
    assert {canary["text"] for canary in facts["canaries"]} == {"[redacted]"}
    assert json.loads(text["out/report.json"])["schema"] == "pdctl.findings/1"
    assert text["out/report.txt"].startswith("doctor http://127.0.0.1:")


# --- from another host


def elsewhere(capsys: pytest.CaptureFixture[str], servers: Replay) -> str:
    """What the printed command prints, run as a user would run it."""
    said = Said(capsys, *behind(servers), "--from-host")
    assert (said.code, said.err, said.out.count("\n")) == (0, "", 1)
    done = subprocess.run(["sh", "-c", said.out], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert done.stderr == ""
    return done.stdout


def test_the_command_for_another_host_runs_and_comes_back(
    capsys: pytest.CaptureFixture[str], healthy: Replay, tmp_path: Path
) -> None:
    output = elsewhere(capsys, healthy)
    assert len(other_host.read(output).reaches) == 7  # three HTTP ports, two bootstrap servers, two ranks
    (tmp_path / "there.txt").write_text(f"user@node-7:~$ python3 -c …\n{output}user@node-7:~$ ")
    assert Said(capsys, *behind(healthy), "--reached", tmp_path / "there.txt").code == 0


def from_node(output: str, port: int | None, reason: str) -> str:
    """The same as another host would have printed it, one port (None: all) not reached."""
    lines = [json.loads(line) for line in output.splitlines()]
    lines[0]["source"] = "node-7"
    for line in lines[1:]:
        if port in (None, line["port"]):
            line["reason"] = reason
    return "\n".join(map(json.dumps, lines))


def test_what_another_host_does_not_reach(capsys: pytest.CaptureFixture[str], healthy: Replay, tmp_path: Path) -> None:
    there = tmp_path / "there.txt"
    there.write_text(from_node(elsewhere(capsys, healthy), healthy.port[8999], "no connection within 3 s"))
    said = Said(capsys, *behind(healthy), "--reached", there, "-o", "json")
    assert (said.code, said.codes()) == (1, ["PD205"])
    (found,) = [one for one in said.document["findings"] if one["code"] == "PD205"]
    where = f"127.0.0.1:{healthy.port[8999]}"
    assert found["instance"] == "prefill-1"
    assert found["headline"] == "node-7 does not reach the bootstrap server of prefill-1: no connection within 3 s"
    assert found["observed"] == f"{where}: no connection within 3 s"
    assert found["fix"] == "give prefill-1 by an address that node-7 can reach"
    status = {check["code"]: check["status"] for check in said.document["checks"]}
    assert (status["PD205"], status["PD210"], status["PD901"]) == ("finding", "ok", "ok")


def test_findings_from_another_host_are_chosen_as_others(
    capsys: pytest.CaptureFixture[str], healthy: Replay, tmp_path: Path
) -> None:
    there = tmp_path / "there.txt"
    there.write_text(from_node(elsewhere(capsys, healthy), None, "connection refused"))
    all_of = Said(capsys, *behind(healthy), "--reached", there, "-o", "json")
    assert all_of.codes() == ["PD205", "PD205", "PD210", "PD210", "PD901", "PD901", "PD901"]
    only = Said(capsys, *behind(healthy), "--reached", there, "--select", "PD901", "-o", "json")
    assert (only.code, set(only.codes())) == (4, {"PD901"})
    without = Said(capsys, *behind(healthy), "--reached", there, "--ignore", "PD205,PD210,PD901")
    assert without.code == 0


def test_output_that_was_cut_decides_nothing(
    capsys: pytest.CaptureFixture[str], healthy: Replay, null: Replay, tmp_path: Path
) -> None:
    """Also that of another deployment, or from before a restart: what is not in it was not dialled."""
    there = tmp_path / "there.txt"
    lines = elsewhere(capsys, healthy).splitlines(keepends=True)
    there.write_text(lines[0])
    for servers, text in ((healthy, lines[0]), (null, "".join(lines))):
        there.write_text(text)
        said = Said(capsys, *behind(servers), "--reached", there, "--select", "PD205,PD210,PD901", "-o", "json")
        checks = {check["code"]: check for check in said.document["checks"]}
        assert said.code == 0
        for code in ("PD205", "PD210", "PD901"):
            assert checks[code]["status"] == "unknown"
            assert "says nothing about 127.0.0.1:" in checks[code]["reason"]


def test_nothing_to_dial(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = f"http://127.0.0.1:{listener.getsockname()[1]}"
    said = Said(capsys, "--router", dead, "--from-host")
    assert (said.code, said.out) == (4, "")
    assert "no address is known" in said.err


@pytest.mark.parametrize(("port", "role"), [(30000, "prefill"), (30002, "decode")])
def test_an_engine_given_as_the_router_is_named_with_how_to_give_it(
    capsys: pytest.CaptureFixture[str], healthy: Replay, port: int, role: str
) -> None:
    said = Said(capsys, "--router", healthy.url(port), "-o", "json")
    (found,) = [one for one in json.loads(said.out)["findings"] if one["code"] == "PD903"]
    assert found["headline"] == f"{healthy.url(port)} is a {role}, not a router"
    assert f"--{role} {healthy.url(port)}" in found["fix"]
    assert f"--router {healthy.url(port)}" not in found["fix"]
    way = found["evidence"][-1]
    assert way.startswith("to find the router, on the host that may run it: pgrep -af '")
    pattern = way.partition("'")[2].rstrip("'")
    assert re.search(pattern, "python -m sglang_router.launch_router --pd-disaggregation --prefill http://a:1 8998")
    assert re.search(pattern, "python -m pdctl.router --port 8000")
    assert not re.search(pattern, "python -m sglang.launch_server --disaggregation-mode prefill")
