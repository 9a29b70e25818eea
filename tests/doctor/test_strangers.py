"""Addresses at which no SGLang answers: what is said of them, with which exit code, and that nothing is called well."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pdctl.catalogue import book
from pdctl.catalogue.entry import Needs
from pdctl.doctor import check_run, selection
from pdctl.doctor import request as asking
from pdctl.doctor.check import CheckStatus, Finding, Report
from pdctl.doctor.gather import gather
from pdctl.doctor.live.pair_agreement import ROWS
from pdctl.doctor.request import Request
from pdctl.errors import ExitCode
from pdctl.layout.planner import plan_topology
from pdctl.topology.resolve import load
from tests.fleet.conftest import closed_port

TOPOLOGY = Path(__file__).resolve().parents[2] / "topologies" / "2p1d.yaml"
LISTEN = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[-1])));"
    "print(s.getsockname()[1], flush=True); sys.stdin.read()"
)


@pytest.fixture(scope="module")
def files() -> Iterator[str]:
    """python -m http.server: HTTP, and nothing of SGLang."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        said = re.search(r"port (\d+)", server.stdout.readline())
        assert said is not None
        yield f"http://127.0.0.1:{said[1]}"
        server.kill()


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """Every path asks for a key."""

    class Face(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Face)
    threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def refusing(status: int, headers: dict[str, str], body: str) -> ThreadingHTTPServer:
    """A server that answers the same to everything."""

    class Face(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Face)
    threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()
    return server


@contextmanager
def listener(*words: str, port: int = 0, stopped: bool = False) -> Iterator[tuple[int, int]]:
    """A process that takes connections and says nothing: its pid and port. `words` stand in its command line."""
    command = [sys.executable, "-c", LISTEN, *words, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        if stopped:
            os.kill(process.pid, signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
        try:
            yield process.pid, number
        finally:
            process.kill()


def pair(url: str) -> Request:
    return Request(endpoints=asking.given_endpoints((url,), (url,)))


def seen(request: Request) -> tuple[Report, ExitCode]:
    report = check_run.run(gather(request))
    return report, check_run.exit_code(report, selection.EVERYTHING.fail_on)


def errors(report: Report) -> list[Finding]:
    return [one for one in report.findings if one.severity.value == "error"]


def nothing_is_called_well(report: Report) -> None:
    """What a check of SGLang's own says needs an SGLang; that somebody listens, or nobody does, needs none."""
    well = {one.code for one in report.checks if one.status is CheckStatus.OK}
    sglang = {Needs.ENDPOINT, Needs.ROUTER, Needs.CANARY}
    assert not [code for code in well - check_run.DIALLED if set(book.entry(code).needs) <= sglang]


def test_a_server_of_files_is_no_engine(files: str) -> None:
    report, code = seen(pair(files))
    assert [(one.code, one.instance) for one in errors(report)] == [("PD903", "prefill-0"), ("PD903", "decode-0")]
    assert errors(report)[0].headline.startswith(f"{files} answers, but it is not an SGLang engine: ")
    assert "404" in errors(report)[0].headline
    assert code is ExitCode.NOT_PROBED
    nothing_is_called_well(report)


def test_a_server_of_files_is_no_router(files: str) -> None:
    report, code = seen(Request(router=files))
    (found,) = errors(report)
    assert found.headline == f"{files} answers, but it is not an SGLang router: {found.observed}"
    assert "404 on /workers" in found.observed
    assert (found.code, code) == ("PD903", ExitCode.NOT_PROBED)
    nothing_is_called_well(report)


def test_servers_that_ask_for_a_key(locked: str) -> None:
    for request, who in ((pair(locked), ["prefill-0", "decode-0"]), (Request(router=locked), ["router"])):
        report, code = seen(request)
        assert [(one.code, one.instance) for one in errors(report)] == [("PD904", name) for name in who]
        assert "asks for an API key: 401" in errors(report)[0].headline
        assert "--key-env" in errors(report)[0].fix
        assert code is ExitCode.NOT_PROBED
        nothing_is_called_well(report)


@pytest.mark.parametrize("environ", [{}, {"HTTP_PROXY": "http://proxy:3128"}])
@pytest.mark.parametrize(
    ("status", "headers", "body", "wants_key"),
    [
        (401, {}, "", True),
        (403, {"WWW-Authenticate": "Bearer"}, "", True),
        (403, {}, '{"error": "Forbidden"}', True),
        (403, {}, '{"error": {"message": "an API key is needed; the one that was sent is wrong"}}', True),
        (403, {}, "resolve_deny: denied destination", False),
        (403, {}, "<html>Forbidden</html>", False),
        (403, {}, "", False),
    ],
)
def test_only_who_asks_for_a_key_is_said_to_ask_for_one(
    status: int, headers: dict[str, str], body: str, wants_key: bool, environ: dict[str, str]
) -> None:
    with refusing(status, headers, body) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        for request, route in ((pair(url), "/server_info"), (Request(router=url), "/workers")):
            report, code = seen(dataclasses.replace(request, environ=environ))
            found = errors(report)[0]
            assert code is ExitCode.NOT_PROBED
            assert found.code == ("PD904" if wants_key else "PD903")
            if not wants_key:
                assert found.headline == f"a proxy or firewall refuses requests to {url}: 403 on {route}"
                assert ("HTTP_PROXY is set here: add 127.0.0.1 to NO_PROXY" in found.fix) == bool(environ)
        server.shutdown()


def test_ports_at_which_nobody_listens() -> None:
    for request, expected in (
        (pair(f"http://127.0.0.1:{closed_port()}"), "PD604"),
        (Request(router=f"http://127.0.0.1:{closed_port()}"), "PD602"),
    ):
        report, code = seen(request)
        assert {one.code for one in errors(report)} == {expected}
        assert "does not answer: connection refused" in errors(report)[0].headline
        assert code is ExitCode.NOT_PROBED
        nothing_is_called_well(report)


def test_one_that_is_dead_beside_one_that_lives_is_a_finding() -> None:
    from tests.doctor.fixtures import recorded as real

    report = check_run.run(real.down(real.healthy(), "decode-0"))
    assert check_run.exit_code(report, selection.EVERYTHING.fail_on) is ExitCode.FINDINGS
    well = {one.code for one in report.checks if one.status is CheckStatus.OK}
    assert not [row.code for row in ROWS if row.code in well], "a pair was called equal of which one side was read"
    assert {"PD204", "PD209", "PD313", "PD314"} <= well, "what is about the prefills alone was seen"


def planned(port: int, own: dict[int, str]) -> Request:
    """topologies/2p1d.yaml, with decode-0 at `port`."""
    topology = load([TOPOLOGY], (f"ports.http={port - 2}", f"ports.bootstrap={closed_port()}", "router.port=1"), {})
    plan = plan_topology(topology)
    assert [one.http_port for one in plan.instances if one.name == "decode-0"] == [port]
    return Request(topology=topology, plan=plan, own=own, deadline=3.0)


def of_decode(report: Report) -> list[Finding]:
    return [one for one in report.findings if one.instance == "decode-0"]


@pytest.mark.parametrize("recorded", [True, False], ids=["run", "topology"])
def test_a_stopped_decode_is_not_a_taken_port(recorded: bool) -> None:
    """Its own process holds its port: by the run's record, or by the --port in its command line."""
    port = closed_port()
    words = () if recorded else ("-m", "sglang.launch_server", "--port", str(port), "--x")
    with listener(*words, port=port, stopped=True) as (pid, _):
        report, code = seen(planned(port, {pid: "decode-0"} if recorded else {}))
    (found,) = of_decode(report)
    assert found.code == "PD604"
    assert found.headline == f"decode-0 does not answer: its process (pid {pid}) is stopped"
    assert found.fix == f"kill -CONT {pid}"
    assert code is ExitCode.NOT_PROBED if not recorded else ExitCode.FINDINGS


def test_a_decode_in_another_network_is_not_down() -> None:
    """Its process lives, and its address means nothing here."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rn", "true"], check=False).returncode:
        pytest.skip("no network namespaces for this user")
    command = ["unshare", "-rn", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        asked = planned(closed_port(), {os.getpid(): "prefill-0", process.pid: "decode-0"})
        report, _ = seen(dataclasses.replace(asked, run="chat"))
        process.kill()
    (found,) = of_decode(report)
    assert found.code == "PD901"
    assert "not reachable from here: the run is in another network namespace" in found.headline
    assert found.fix == f"nsenter -t {process.pid} -n pdctl doctor --run chat"
    assert {one.code for one in report.findings if one.instance == "prefill-0"} & {"PD604", "PD901"} == {"PD604"}


def test_a_stranger_at_the_port_is_named_by_its_pid() -> None:
    port = closed_port()
    with listener("nc", "-l", port=port) as (pid, _):
        report, _ = seen(planned(port, {}))
    found = {one.code: one for one in of_decode(report)}
    assert set(found) == {"PD218", "PD604"}
    assert found["PD218"].headline.startswith(f"port {port} (decode-0, http) is taken by pid {pid} (")
    assert found["PD218"].fix == f"stop pid {pid} to free port {port}: kill {pid}"
    assert found["PD604"].evidence[0] == "explained by PD218 port-collision at decode-0"


def test_a_holder_that_cannot_be_seen_is_not_blamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from pdctl.fleet import listeners

    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        monkeypatch.setattr(listeners, "PROC", tmp_path)
        report, _ = seen(planned(port, {}))
    assert "PD218" not in {one.code for one in report.findings}
    assert next(one for one in report.checks if one.code == "PD218").status is CheckStatus.UNKNOWN
