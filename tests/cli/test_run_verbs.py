"""launch, status, logs, ask, ls and down as a user types them; the engine is a stand-in, the router is pdctl's own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pdctl.cli import ask
from pdctl.fleet import listeners
from pdctl.launch import procfs
from pdctl.launch.deployment import ServerRole
from pdctl.launch.run_directory import RunDir
from pdctl.launch.run_record import Run, RunOutcome, State, with_process
from tests.cases import for_each
from tests.cli.shell import Shell
from tests.cli.verb import Verb, within
from tests.launch.conftest import DEADLINE, eventually, standin
from tests.launch.runs import living
from tests.ports import free_ports


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def detached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell with the run `blue` serving in the background."""
    shell = Shell(tmp_path_factory.mktemp("detached"))
    launched = shell.run("launch", "blue.yaml", "-d")
    assert launched.returncode == 0, launched.stderr
    assert launched.stdout.splitlines()[0] == f"serving at {shell.router}"
    assert "curl -s " in launched.stdout
    assert "prefill-0 bootstrap registered 1/1" in launched.stderr
    assert "prefill-0 → decode-0 answered" in launched.stderr
    yield shell
    assert shell.run("down").returncode == 0
    shell.close()


def test_status_asks_every_process(detached: Shell) -> None:
    table = detached.run("status")
    assert table.returncode == 0, table.stdout
    assert table.stdout.startswith(f"blue: serving at {detached.router}, 1P1D, for ")
    rows = [line.split("\t") for line in table.stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == ["NAME", "prefill-0", "decode-0", "router"]
    assert [row[1] for row in rows] == ["ROLE", "prefill", "decode", "router"]
    assert rows[1][5:] == ["200", "1/1", "yes", "-", "-", "0", "-"]
    document = json.loads(detached.run("status", "blue", "-o", "json").stdout)
    assert document["schema"] == "pdctl.status/1"
    assert document["ready"] is True
    assert document["instances"][0]["registered"] == 1
    assert detached.run("status", "blue", "--wait", "--timeout", "60s").returncode == 0


def test_status_does_not_head_a_run_as_serving_whose_router_or_only_decode_is_silent(detached: Shell) -> None:
    for name in ("router", "decode-0"):
        found = json.loads(detached.run("status", "-o", "json").stdout)
        pid = next(one["pid"] for one in found["instances"] if one["name"] == name)
        os.killpg(pid, signal.SIGSTOP)
        try:
            silent = detached.run("status")
        finally:
            os.killpg(pid, signal.SIGCONT)
        assert silent.returncode == 8, name
        assert re.match(rf"blue: not serving \(see {name}\) at {detached.router}, 1P1D, started .* ago", silent.stdout)
        eventually(lambda: detached.run("status").returncode == 0, f"{name} answers again")


def test_serving_is_counted_from_when_requests_were_answered_and_not_from_the_launch(detached: Shell) -> None:
    started = json.loads(next((detached.folder / "state/runs/blue").glob("run.json")).read_text())
    serving = next(event["at"] for event in started["events"] if event["kind"] == "serving")
    found = json.loads(detached.run("status", "-o", "json").stdout)
    assert abs((found["seconds"] - found["serving_seconds"]) - (serving - started["created"])) < 0.1
    assert found["serving_seconds"] < found["seconds"]


def test_a_limit_of_the_shell_that_asks_is_not_blamed_on_the_run(detached: Shell) -> None:
    """`ulimit -n`: no socket is left to ask with. (Without the limit the same run is fine.)"""
    words = f"ulimit -n 5; exec {shlex.quote(sys.executable)} -m pdctl status blue"
    for _ in range(30):  # where each question happens to end before the next, two sockets are enough
        asked = subprocess.run(
            ["sh", "-c", words], env=detached.env, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        if asked.returncode:
            break
    assert (asked.returncode, asked.stdout) == (4, ""), asked.stderr
    assert asked.stderr == (
        "error: too many open files in this process\n  fix: raise the limit of this shell: ulimit -n 65536\n"
    )


def test_logs_are_prefixed_filtered_and_followed(detached: Shell) -> None:
    assert detached.run("logs", "blue", "decode-0", "--grep", "room=", "--tail", "50").stdout.startswith(
        "decode-0  │ ["
    )
    raw = detached.run("logs", "decode-0", "--raw", "--tail", "1").stdout
    assert raw.startswith("[")
    stamp = raw[1:20]
    assert raw in detached.run("logs", "decode-0", "--raw", "--since", stamp.replace(" ", "T")).stdout
    assert detached.run("logs", "decode-0", "--since", "2100-01-01").stdout == ""
    refused = detached.run("logs", "decode-0", "--since", "yesterday")
    assert (refused.returncode, "--since yesterday: this is not a time" in refused.stderr) == (2, True)
    assert detached.run("logs", "decode-0", "--since", "-10m").stdout
    follower = detached.start("logs", "-f", "decode-0", "--grep", "stream-me")
    detached.run("ask", "stream-me", "--json")
    log = detached.folder / "state/runs/blue/logs/decode-0.log"
    with log.open("a") as stream:
        stream.write("stream-me\n")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "decode-0  │ stream-me\n"
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=DEADLINE)
    assert follower.returncode == -signal.SIGINT


def test_logs_are_not_followed_for_a_reader_that_left(detached: Shell) -> None:
    follower = detached.start("logs", "-f", "--grep", "no line has this")
    assert follower.stdout is not None
    follower.stdout.close()
    assert follower.wait(timeout=DEADLINE) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@for_each("verb", [["ask", "hi"], ["logs", "-f"]])
def test_an_answer_that_cannot_be_written_names_the_stream(detached: Shell, verb: list[str]) -> None:
    argv = [sys.executable, "-m", "pdctl", *verb]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            argv, env=detached.env, cwd=detached.folder, stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=DEADLINE, check=False,
        )  # fmt: skip
    said = "error: standard output: No space left on device\n  fix: free space there\n"
    assert (done.returncode, done.stderr[-len(said) :]) == (4, said)


def test_ask_streams_the_answer_and_names_the_pair(detached: Shell) -> None:
    asked = detached.run("ask", "Repeat: the red fox", "-v")
    assert asked.stdout == "the red fox\n"
    assert "x-pd-prefill http://127.0.0.1:" in asked.stderr
    assert "x-pd-room " in asked.stderr
    document = json.loads(detached.run("ask", "--run", "blue", "--raw", "x", "--json").stdout)
    assert document["schema"] == "pdctl.answer/1"
    assert document["text"] == "the red fox"
    assert document["completion_tokens"] == 3
    assert detached.run("ask", "--url", detached.router, "hi").stdout == "the red fox\n"
    assert detached.run("ask", "Repeat:", "the", "red", "fox").stdout == "the red fox\n"


def test_ask_ends_when_the_router_is_stopped_and_names_the_command_that_continues_it(detached: Shell) -> None:
    rows = json.loads(detached.run("status", "-o", "json").stdout)["instances"]
    pid = next(row["pid"] for row in rows if row["name"] == "router")
    os.kill(pid, signal.SIGSTOP)
    try:
        asked = detached.run("ask", "hi")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert asked.returncode == 4
    assert f"router does not answer: its process (pid {pid}) is stopped" in asked.stderr
    assert f"fix: kill -CONT {pid}" in asked.stderr


@pytest.mark.skipif(not procfs.LINUX, reason="/proc tells what is stopped")
def test_diagnose_names_a_stopped_instance_of_which_no_log_can_tell(detached: Shell) -> None:
    rows = json.loads(detached.run("status", "-o", "json").stdout)["instances"]
    pid = next(row["pid"] for row in rows if row["name"] == "decode-0")
    before = detached.run("diagnose", "-o", "json")
    assert not [one for one in json.loads(before.stdout)["findings"] if one["code"] == "PD604"]
    assert "is serving\n" in before.stderr
    os.killpg(pid, signal.SIGSTOP)
    try:
        eventually(lambda: set(procfs.stopped(pid)) == set(procfs.session(pid)), "all of it is stopped")
        pids = " ".join(map(str, procfs.session(pid)))
        found = detached.run("diagnose")
        named = detached.run("diagnose", "--run", "blue", "-o", "json")
    finally:
        os.killpg(pid, signal.SIGCONT)
    assert (found.returncode, named.returncode) == (1, 1)
    assert found.stdout.startswith("✗ PD604 instance-down")
    assert "decode-0 does not answer: its process" in found.stdout
    assert f"fix: kill -CONT {pids}\n" in found.stdout
    assert "is serving, but decode-0 is stopped: pdctl status blue\n" in found.stderr
    told = json.loads(named.stdout)
    assert [(one["instance"], one["fix"]) for one in told["findings"]] == [("decode-0", f"kill -CONT {pids}")]


def test_ask_says_what_it_waits_for_and_ends_at_its_timeout(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "SILENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # it accepts, and says nothing

        def list_models() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                body = b'{"data": [{"id": "m"}]}'
                peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

        threading.Thread(target=list_models, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert verb("ask", "--url", url, "--timeout", "1s", "hi") == 4
    assert f"waiting for the first byte from {url}; curl -i {url}/v1/models" in verb.err
    assert "no answer within 1 s" in verb.err


def test_half_of_a_pair_that_is_asked_alone_is_called_that(verb: Verb) -> None:
    spec = standin(ServerRole.DECODE, 0, free_ports(1)[0], "--wrong-answer")
    with subprocess.Popen(spec.argv, stderr=subprocess.PIPE, text=True) as engine:
        assert engine.stderr is not None
        next(line for line in engine.stderr if "Uvicorn running" in line)
        code = verb("ask", "--url", spec.url, "hi")
        engine.kill()
    assert code == 1
    assert 'prefill instance" (it is a decode engine, half of a pair)' in verb.err
    assert "fix: ask its router: --url URL_OF_ROUTER" in verb.err


def test_ls_lists_it(detached: Shell) -> None:
    assert detached.run("ls").stdout.splitlines()[1].split("\t")[:4] == ["blue", "serving", "1P1D", detached.router]
    document = json.loads(detached.run("ls", "-o", "json").stdout)
    assert document["schema"] == "pdctl.runs/1"
    assert document["runs"][0]["state"] == "serving"


def test_a_living_run_and_its_ports_are_in_the_way(detached: Shell) -> None:
    again = detached.run("launch", "blue.yaml")
    assert again.returncode == 1
    assert again.stderr.startswith(f"error: run `blue` is serving at {detached.router} (pid ")
    assert "fix: pdctl down blue" in again.stderr
    beside = detached.run("launch", "blue.yaml", "--name", "green")
    assert beside.returncode == 1
    assert "4 problems keep `green` from starting:" in beside.stderr
    assert "(router, http) is taken by run `blue` (pid " in beside.stderr
    assert "; pdctl down blue)" in beside.stderr
    env = {**detached.env, "PDCTL_HOME": str(detached.folder / "other")}
    elsewhere = within("launch", str(detached.file), "--name", "green", env=env)
    assert f"; PDCTL_HOME={detached.env['PDCTL_HOME']} pdctl down blue)" in elsewhere.stderr
    asked = detached.run("doctor", "blue")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert asked.stderr == (
        "error: there is no topology `blue`, but a run of that name\n  fix: pdctl doctor --run blue\n"
    )
    moves = r"\n  fix: --set ports\.http=\d+ --set ports\.bootstrap=\d+ --set router\.port=\d+\n"
    assert re.search(moves, beside.stderr)
    assert "green" not in detached.run("ls").stdout


@for_each(
    ("argv", "code", "said"),
    [
        (("status", "red"), 5, "no run `red`"),
        (("status", "../x"), 2, "run name `../x` cannot be"),
        (("logs", "blue", "decode-7"), 5, "blue has no instance `decode-7`"),
        (("logs", "red"), 5, "`red` is no run"),
        (("logs", "--grep", "a("), 2, "is not a regular expression"),
        (("down", "red"), 5, "no run `red`"),
        (("down", "blue", "--timeout", "soon"), 2, "--timeout soon"),
        (("ask", ""), 2, "the prompt is empty"),
        (("ask", "hi", "--url", "127.0.0.1:1"), 2, "not an address"),
        (("ask", "hi", "--url", "http://127.0.0.1:1"), 4, "connection refused"),
        (("ask", "hi", "--url", "http://x", "--run", "blue"), 2, "name two places"),
        (("launch", "blue.yaml", "--name", "Blue"), 2, "run name `Blue` cannot be"),
        (("launch", "blue.yaml", "--timeout", "5"), 2, "--timeout 5"),
        (
            ("launch", "blue.yaml", "--on-death", "rest"),
            2,
            "--on-death `rest`: there is no such choice\n  fix: choose one",
        ),
        (("launch", "blue.yaml", "--on-death", "restart", "--timeout", "5"), 2, "--timeout 5"),
        (("launch", "nowhere.yaml"), 2, "nowhere.yaml"),
    ],
)
def test_bad_input_is_told_on_stderr(
    detached: Shell,
    argv: tuple[str, ...],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PDCTL_HOME", str(detached.folder / "state"))
    monkeypatch.chdir(detached.folder)
    pdctl = Verb(capsys)
    assert pdctl(*argv) == code, pdctl.err
    assert said in pdctl.err
    assert pdctl.out == ""


def test_dry_run_prints_what_the_plan_says(shell: Shell) -> None:
    text = shell.run("launch", "blue.yaml", "--dry-run").stdout.splitlines()
    assert [line.split(":")[0] for line in text[::2]] == ["# prefill-0", "# decode-0", "# router"]
    document = json.loads(shell.run("launch", "blue.yaml", "--dry-run", "-o", "json").stdout)
    assert document["schema"] == "pdctl.launch/1"
    plan = json.loads(shell.run("plan", "blue.yaml", "-o", "json").stdout)
    planned = [command["argv"] for instance in plan["instances"] for command in instance["commands"]]
    assert [process["argv"] for process in document["processes"][:-1]] == planned
    assert not (shell.folder / "state" / "runs").exists()


def test_in_the_foreground_one_ctrl_c_ends_it_and_the_code_is_the_signals(shell: Shell) -> None:
    launcher = shell.start("launch", "blue.yaml")
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == f"serving at {shell.router}\n"
    shell.run("ask", "hi")
    launcher.send_signal(signal.SIGINT)
    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == -signal.SIGINT
    assert "Ctrl-C again ends everything now" in err
    assert "decode-0  │ [" in err  # the logs were followed
    assert err.rstrip().endswith("nothing left: 3 processes gone, 4 ports free")
    down = shell.run("down", "blue")
    assert (down.returncode, down.stderr) == (0, "blue is not running\n")
    status = shell.run("status", "blue")
    assert status.returncode == 8
    assert status.stdout.startswith("blue: stopped at ")
    doctor = shell.run("doctor", "--run", "blue")
    assert doctor.returncode == 4
    assert "run blue was stopped: stopped by SIGINT: nothing of it can be asked" in doctor.stderr


def test_a_detached_launch_that_fails_says_why_in_the_foreground(shell: Shell) -> None:
    failed = shell.run("launch", "blue.yaml", "-d", "--set", "roles.decode.args.exit=3")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "error: decode-0 left with exit code 3 before it was ready. What may tell why, in" in failed.stderr
    assert "RuntimeError: no memory for the KV pool" in failed.stderr
    said = "decode-0: /health answers 503; last line: ["
    for limit in ("1s", "5s", "30s"):  # on a busy machine its server may not listen yet
        late = shell.run("launch", "blue.yaml", "-d", "--timeout", limit, "--set", "roles.decode.args.never-ready=true")
        assert late.returncode == 8
        if said in late.stderr:
            break
        shell.run("down", "blue")  # its supervisor may still be ending what it started
    assert said in late.stderr
    assert shell.run("ls").stdout.splitlines()[1].split("\t")[1] == "failed"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_detached_run_whose_address_cannot_be_printed_is_said_to_go_on(shell: Shell) -> None:
    argv = [sys.executable, "-m", "pdctl", "launch", "blue.yaml", "-d"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            argv, env=shell.env, cwd=shell.folder, stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE,
            check=False,
        )  # fmt: skip
    said = f"error: standard output: No space left on device; `blue` serves at {shell.router} and goes on\n"
    assert done.returncode == 4
    assert done.stderr.endswith(f"{said}  fix: pdctl status blue, or pdctl down blue\n"), done.stderr
    assert shell.run("status", "blue").returncode == 0
    assert shell.run("down", "blue").returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_in_the_foreground_the_lines_go_on_where_the_address_cannot_be_printed(shell: Shell) -> None:
    argv = [sys.executable, "-m", "pdctl", "launch", "blue.yaml"]
    with Path("/dev/full").open("w") as full:
        launcher = subprocess.Popen(
            argv, env=shell.env, cwd=shell.folder, stdout=full, stderr=subprocess.PIPE, text=True
        )
    shell.started.append(launcher)
    assert launcher.stderr is not None
    said = f"standard output: No space left on device; serving at {shell.router}\n"
    assert any(line == said for line in launcher.stderr)
    assert "the logs follow" in launcher.stderr.readline()
    launcher.terminate()
    rest = launcher.communicate(timeout=DEADLINE)[1]
    assert launcher.returncode == -signal.SIGTERM
    assert "nothing left: 3 processes gone" in rest


def test_logs_go_where_the_topology_says(shell: Shell) -> None:
    shell.run("launch", "blue.yaml", "-d", "--set", "roles.decode.args.exit=3", "--set", "readiness.logs.dir=elsewhere")
    assert "no memory" in (shell.folder / "elsewhere" / "blue" / "decode-0.log").read_text()
    assert "no memory" in shell.run("logs", "blue", "decode-0").stdout


def test_the_run_goes_on_when_nobody_reads_what_it_says(shell: Shell) -> None:
    launcher = shell.start("launch", "blue.yaml")
    assert launcher.stderr is not None
    next(line for line in launcher.stderr if "started" in line)
    launcher.stderr.close()
    ready = shell.run("status", "blue", "--wait", "--timeout", "90s")
    assert ready.returncode == 0, ready.stderr
    launcher.stderr = None
    launcher.terminate()
    launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == -signal.SIGTERM
    assert shell.run("ls").stdout.splitlines()[1].split("\t")[1] == "stopped"


@pytest.mark.skipif(sys.platform != "linux", reason="fills the pipe through /proc")
def test_a_terminal_that_takes_nothing_stops_neither_the_run_nor_its_end(shell: Shell) -> None:
    """A pipe that nobody reads, or Ctrl-S: SIGTERM ends the run all the same."""
    launcher = shell.start("launch", "blue.yaml")
    assert launcher.stderr is not None
    next(line for line in launcher.stderr if "started" in line)
    full = os.open(f"/proc/self/fd/{launcher.stderr.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, b"\n" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, b"\n")
    ready = shell.run("status", "blue", "--wait", "--timeout", "90s")
    assert ready.returncode == 0, ready.stderr
    launcher.terminate()
    assert launcher.wait(timeout=DEADLINE) == -signal.SIGTERM
    os.close(full)
    assert shell.run("ls").stdout.splitlines()[1].split("\t")[1] == "stopped"


def test_quiet_says_nothing_but_the_answer(shell: Shell) -> None:
    launcher = shell.start("launch", "blue.yaml", "-q")
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == f"serving at {shell.router}\n"
    launcher.terminate()
    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == -signal.SIGTERM
    assert err == ""


def test_a_run_whose_supervisor_was_killed_is_stale_until_down(shell: Shell) -> None:
    launcher = shell.start("launch", "blue.yaml", "--progress", "none", "-q")
    assert launcher.stdout is not None
    launcher.stdout.readline()
    launcher.kill()
    launcher.communicate(timeout=DEADLINE)
    status = shell.run("status")
    assert status.returncode == 8
    assert "blue: stale at" in status.stdout
    assert ") died; " in status.stdout
    assert "Clear it: pdctl down blue" in status.stdout
    eventually(lambda: "no process is left" in shell.run("status").stdout, "its processes are gone")
    diagnosed = shell.run("diagnose")
    assert diagnosed.returncode == 1, diagnosed.stdout
    assert diagnosed.stdout.startswith(f"✗ the supervisor (pid {launcher.pid}) died\n")
    found = [one for one in json.loads(shell.run("doctor", "-o", "json").stdout)["findings"] if one["code"] == "PD604"]
    assert {one["headline"] for one in found} == {
        f"{name} is not running: it ended with its supervisor (pid {launcher.pid}), which died"
        for name in ("prefill-0", "decode-0", "router")
    }
    # Nobody was there to record when: the last line of a process may be much older than its end.
    assert all(", which died, after 20" in one["observed"] for one in found), found
    assert all(one["observed"].endswith(", its last sign of life") for one in found), found
    asked = shell.run("ask", "Hello")
    assert (asked.returncode, asked.stdout) == (5, "")
    assert "no run is alive; `blue` is stale: its supervisor died" in asked.stderr
    assert "pdctl down blue" in asked.stderr
    assert shell.run("down").stdout == "blue is stopped; its supervisor had died\n"
    assert shell.run("down").stderr == "no run is alive\n"
    for words in ((), ("--run", "blue")):  # whoever clears it takes no cause away
        diagnosed = shell.run("diagnose", *words)
        assert diagnosed.stdout.startswith(f"✗ the supervisor (pid {launcher.pid}) died\n"), diagnosed.stdout


@pytest.mark.skipif(not procfs.LINUX, reason="/proc tells what is stopped")
def test_a_stopped_supervisor_is_named_with_what_continues_it(shell: Shell) -> None:
    """It restarts nothing and ends nothing, while the instances go on answering."""
    launched = shell.run("launch", "blue.yaml", "-d")
    assert launched.returncode == 0, launched.stderr
    pid = json.loads(shell.run("status", "-o", "json").stdout)["supervisor"]
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: procfs.is_stopped(pid), "the supervisor is stopped")
        status, diagnosed, down = shell.run("status"), shell.run("diagnose"), shell.run("down", "--timeout", "1s")
    finally:
        os.kill(pid, signal.SIGCONT)
    said = f"the supervisor (pid {pid}) is stopped: it restarts nothing and ends nothing. Continue it: kill -CONT {pid}"
    assert (status.returncode, down.returncode) == (8, 8)
    assert f"\n  {said}\n" in status.stdout
    assert said in " ".join(diagnosed.stdout.split())
    assert f"blue is still stopping after 1.0 s: its supervisor (pid {pid}) is stopped\n" in down.stderr
    assert f"fix: kill -CONT {pid}\n" in down.stderr
    eventually(lambda: "no run is alive" in shell.run("down").stderr, "the order to end, once it is read, is followed")


def test_after_a_death_status_and_doctor_say_the_recorded_cause_and_where_to_look(shell: Shell) -> None:
    launched = shell.run("launch", "blue.yaml", "-d")
    assert launched.returncode == 0, launched.stderr
    instances = json.loads(shell.run("status", "-o", "json").stdout)["instances"]
    pid = next(one["pid"] for one in instances if one["name"] == "decode-0")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: "blue: failed" in shell.run("status").stdout, "the run has ended")
    status = shell.run("status")
    assert status.returncode == 8
    assert "decode-0 was killed by SIGKILL (from outside, or OOM-killed: see dmesg)" in status.stdout
    assert "No line of " in status.stdout  # a process that is killed cannot write one, and no error stands before it
    assert "\n    decode-0 | [" not in status.stdout
    why = "failed: decode-0 was killed by SIGKILL (from outside, or OOM-killed: see dmesg)"
    for words, code, said in (
        ((), 5, "no run is alive; the last to end, `blue`,"),
        (("--run", "blue"), 4, "run blue"),
    ):
        asked = shell.run("ask", "Hello", *words)
        assert (asked.returncode, asked.stdout) == (code, "")
        assert asked.stderr.startswith(f"error: {said} {why}")
        assert asked.stderr.endswith("\n  fix: pdctl diagnose --run blue\n")
    for verb in ("diagnose", "rooms", "logs"):
        assert f"note: the logs are those of run `blue`, which {why}" in shell.run(verb).stderr
        assert "those of run" not in shell.run(verb, *(("blue",) if verb == "logs" else ("--run", "blue"))).stderr
    missing = shell.run("logs", "prefill-7")
    assert missing.returncode == 5
    assert missing.stderr == (
        "error: `prefill-7` is no run, and no instance of blue\n"
        "  fix: did you mean prefill-0? There are prefill-0, decode-0, router of blue; the runs are blue\n"
    )
    doctor = shell.run("doctor", "--select", "PD604", "-o", "json")
    assert doctor.returncode == 1
    everything = shell.run("doctor")
    assert everything.returncode == 1
    assert everything.stdout.startswith(f"doctor run blue {why}"), everything.stdout
    assert everything.stdout.splitlines()[0].endswith("  (static)")
    errors = [line.split()[1] for line in everything.stdout.splitlines() if line.startswith("✗ ")]
    assert errors == ["PD604"]
    assert "connection refused" not in everything.stdout
    found = {one["instance"]: one for one in json.loads(doctor.stdout)["findings"]}
    assert found["decode-0"]["headline"].startswith("decode-0 is not running: it was killed by SIGKILL (from outside")
    assert found["decode-0"]["severity"] == "error"
    assert any(line.endswith("'out of memory|killed process'") for line in found["decode-0"]["evidence"])
    assert found["prefill-0"]["severity"] == "info"


def test_nothing_was_ever_launched(shell: Shell) -> None:
    assert shell.run("ls").stderr == "no run was ever launched here\n"
    assert shell.run("status").returncode == 5
    assert shell.run("down").returncode == 0


KEY = "the-key-of-this-run"


@contextlib.contextmanager
def listener(port: int) -> Iterator[list[str]]:
    """A server of this very process, and the heads of the requests that it got."""
    heads: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heads.append(f"{self.path} {self.headers}")
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield heads
        finally:
            server.shutdown()
            thread.join(DEADLINE)


def keyed(root: Path, **changes: object) -> Run:
    """A run whose servers require KEY and whose supervisor is this process; none of its processes lives."""
    run, key = living(root, "blue"), root / "key"
    key.write_text(KEY)
    deployment = run.deployment
    roles = tuple(dataclasses.replace(spec, argv=(*spec.argv, "--api-key-file", str(key))) for spec in deployment.roles)
    deployment = dataclasses.replace(deployment, roles=roles, checkpoint=str(root))
    run = dataclasses.replace(run, deployment=deployment, state=State.SERVING)
    run = dataclasses.replace(run, **changes)  # type: ignore[arg-type]
    RunDir.of(root, "blue").save(run)
    return run


# Answers whoever knows the key.
WITH_KEY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.headers["authorization"] == f"Bearer {sys.argv[2]}" else 401)
        self.send_header("content-length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
ASKING = (
    ("ask", "--run", "blue", "hi"),
    ("simulate", "calibrate", "blue", "--timeout", "5s"),
    ("autoscale", "advise", "--run", "blue", "--count", "1", "--timeout", "2s"),
    ("role-switch", "prefill-0", "--to", "decode", "--run", "blue"),
)


@pytest.mark.parametrize("state", [State.FAILED, State.STOPPED, State.STALE])
def test_nothing_is_sent_to_the_ports_of_a_run_that_is_over(tmp_path: Path, state: State) -> None:
    ended: dict[str, object] = {"state": state, "outcome": RunOutcome("router was killed by SIGKILL", code=1)}
    if state is State.STALE:  # its record says that it serves
        ended = {"supervisor_started": "other-1"}
    run = keyed(tmp_path, **ended)
    env = {**os.environ, "PDCTL_HOME": str(tmp_path)}
    with contextlib.ExitStack() as stack:
        heads = [stack.enter_context(listener(port.port)) for spec in run.deployment.specs for port in spec.ports]
        said = {}
        for words in ASKING:
            done = within(*words, env=env)
            assert done.returncode == 4, (words, done.stderr)
            said[words] = done.stderr
        for words in (("doctor", "--run", "blue"), ("status", "blue"), ("logs", "blue"), ("diagnose", "--run", "blue")):
            within(*words, env=env)
        assert not any(heads), heads
    (words,) = set(said.values())  # the same in every verb
    why = {State.FAILED: "failed: router was", State.STOPPED: "was stopped: router was", State.STALE: "is stale: its"}
    assert words.startswith(f"error: run blue {why[state]} ")
    assert words.endswith(": nothing of it can be asked\n  fix: pdctl diagnose --run blue\n")


@pytest.mark.skipif(not procfs.LINUX, reason="/proc tells who listens")
def test_the_key_of_a_run_goes_to_its_own_processes_alone(tmp_path: Path) -> None:
    """The prefill's port is held by a process that the record names; the decode's and the router's by this one."""
    run = keyed(tmp_path)
    prefill, decode, router = run.deployment.specs
    env = {**os.environ, "PDCTL_HOME": str(tmp_path)}
    with contextlib.ExitStack() as stack:
        fakes = [stack.enter_context(listener(spec.port)) for spec in (decode, router)]
        own = stack.enter_context(subprocess.Popen([sys.executable, "-c", WITH_KEY, str(prefill.port), KEY]))
        stack.callback(own.kill)
        process = dataclasses.replace(
            run.process("prefill-0"), pid=own.pid, started=procfs.identity(own.pid), generation=1
        )
        RunDir.of(tmp_path, "blue").save(with_process(run, process))
        eventually(lambda: listeners.is_listening("127.0.0.1", prefill.port), "it listens")
        status = json.loads(within("status", "blue", "-o", "json", env=env).stdout)
        assert status["instances"][0]["health"] == "200", status
        assert f"held by pid {os.getpid()} (" in status["instances"][1]["missing"]
        said = [within(*words, env=env) for words in (*ASKING, ("doctor", "--run", "blue"))]
        assert not any(fakes), fakes
    assert [done.returncode for done in said] == [4] * len(said), said
    held = f"port {router.port} of router is held by pid {os.getpid()} ("
    assert said[0].stderr.startswith(f"error: {held}")
    assert said[0].stderr.endswith("), not by run blue: nothing is sent there\n  fix: pdctl status blue\n")
