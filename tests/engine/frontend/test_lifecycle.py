"""How an instance starts, ends and fails: every client gets an answer, and no process stays behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests import plain_http
from tests.engine.frontend.conftest import READY, ROOT, Engine, in_background, running, until
from tests.ports import free_port


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def test_the_log_names_who_connected_and_no_address_a_client_writes(unified: Engine) -> None:
    mark = len(unified.lines)
    forged = {"X-Forwarded-For": "Scheduler hit an exception: Traceback (most recent call last):"}
    unified.client.get("/model_info", headers=forged)
    line = unified.wait_for('"GET /model_info HTTP/1.1" 200', mark)
    assert "127.0.0.1:" in line
    assert "exception" not in line


def test_while_starting_it_says_503_and_clients_slow_to_send_leave_no_traceback_at_the_end(
    model: Path, gate: Path
) -> None:
    head = b"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: 900\r\n"
    with running(model, env={"ECHO_GATE": str(gate)}) as engine, contextlib.ExitStack() as slow:
        engine.wait_for(f"Uvicorn running on http://127.0.0.1:{engine.port}")
        assert engine.client.get("/health").status_code == 503
        ready = engine.client.get("/ready")
        assert (ready.status_code, ready.json()["status"], ready.json()["ready"]) == (503, "starting", 0)
        refused = engine.client.post("/generate", json={"text": "a"})
        assert refused.status_code == 503
        assert "still starting" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        assert engine.client.get("/server_info").status_code == 503
        assert engine.client.get("/metrics").status_code == 200
        assert engine.client.get("/model_info").status_code == 200
        gate.write_bytes(b"go")
        engine.wait_for(READY)
        assert engine.client.get("/health").status_code == 200
        for sent in (b"", b"POST /gen", head + b"\r\n", head + b"\r\n{", head + b"x-pdctl-signature: a\r\n\r\n{"):
            client = slow.enter_context(socket.create_connection(("127.0.0.1", engine.port), timeout=10))
            client.sendall(sent)
        plain_http.get(f"{engine.url}/health")
        engine.process.send_signal(signal.SIGINT)
        assert engine.exit_code() == 0
        assert not [line for line in engine.lines if "ERROR" in line or "Traceback" in line]


def test_too_few_file_descriptors_are_an_error_that_names_them(model: Path) -> None:
    with running(model, before=("bash", "-c", 'ulimit -n 64; exec "$@"', "bash")) as engine:
        engine.wait_for("the hard limit of open files is 64, and an instance needs 256")
        assert engine.exit_code() == 1


def test_a_low_soft_limit_is_raised_and_fewer_descriptors_than_clients_may_come_are_said(model: Path) -> None:
    with running(model, before=("bash", "-c", 'ulimit -n 300; ulimit -Sn 64; exec "$@"', "bash")) as engine:
        engine.wait_for("300 file descriptors (ulimit -n) are enough for 44 clients at once, not for 4096")
        engine.wait_for(READY)
        for pid in (engine.process.pid, *engine.children()):
            row = next(line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if "open files" in line)
            assert int(row.split()[3]) == 300


def test_the_stages_of_a_start_are_said_in_order(decode: Engine) -> None:
    wanted = (
        "Uvicorn running on http://",
        "Start-up: weights_loaded 1/1 ranks, 0.25 s",
        "Start of pd disaggregation warmup ...",
        "End of disaggregation warmup",
        READY,
    )
    places = [next(i for i, line in enumerate(decode.lines) if text in line) for text in wanted]
    assert places == sorted(places)
    assert all(line.startswith("[20") for line in decode.lines)


def test_a_taken_port_is_an_error_that_names_it(model: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with running(model, "--port", str(port)) as engine:
            assert engine.exit_code() == 1
            assert (
                f"cannot listen on 127.0.0.1:{port}: Address already in use. give another --host or --port"
                in engine.lines[-1]
            )
        with running(model, "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(port)) as engine:
            assert engine.exit_code() == 1
            assert f"cannot listen on the bootstrap port 127.0.0.1:{port}" in engine.lines[-1]
            assert "give another --disaggregation-bootstrap-port" in engine.lines[-1]
        for flags in (("--tp-size", "2"), ("--tp-size", "2", "--nnodes", "2")):
            with running(model, *flags, "--dist-init-addr", f"127.0.0.1:{port}") as engine:
                assert engine.exit_code() == 1
                (line,) = engine.lines
                assert f"cannot listen on the port of --dist-init-addr 0.0.0.0:{port}: Address already in use" in line
                assert "give another --dist-init-addr, the same to every node" in line


def test_a_checkpoint_without_a_tokenizer_is_an_error_that_names_the_file(model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(model / name, tmp_path / name)
    with running(tmp_path) as engine:
        assert engine.exit_code() == 1
        assert f"{tmp_path}: no tokenizer.json" in engine.lines[-1]
    (tmp_path / "tokenizer.json").write_text("{}")
    with running(tmp_path) as engine:
        assert engine.exit_code() == 1
        assert f"{tmp_path}/tokenizer.json: " in engine.lines[-1]
        assert not any("Traceback" in line for line in engine.lines)


def test_sigterm_lets_running_requests_end_and_tells_an_open_connection(model: Path, tmp_path: Path) -> None:
    with running(model, "--tp-size", "2", "--shutdown-grace", "30") as engine:
        engine.wait_for(READY)
        ranks = engine.children()
        assert len(ranks) == 2
        assert engine.client.get("/ready").status_code == 200  # keeps its connection
        gate = tmp_path / "gate"
        thread, answers = in_background(engine, f"!held {gate}")
        engine.process.send_signal(signal.SIGTERM)
        engine.wait_for("Shutting down: 1 request(s) running")
        refused = engine.client.post("/generate", json={"text": "late"})
        assert (refused.status_code, refused.json()["error"]["message"]) == (503, "The engine is shutting down.")
        with pytest.raises(httpx.NetworkError):  # refused, or reset: the line comes just before the socket is closed
            plain_http.get(f"{engine.url}/health")
        gate.touch()
        thread.join(30)
        assert answers[0].json()["text"] == f"!held {gate}"
        assert engine.exit_code() == 0
        until(lambda: not any(map(alive, ranks)), "the ranks to be gone")


def test_requests_that_outlast_the_grace_are_told_why(model: Path) -> None:
    with running(model, "--shutdown-grace", "0.2") as engine:
        engine.wait_for(READY)
        thread, answers = in_background(engine, "!mute")
        engine.process.send_signal(signal.SIGTERM)
        thread.join(30)
        assert answers[0].status_code == 503
        assert "shutting down" in answers[0].json()["error"]["message"]
        assert engine.exit_code() == 0


def test_a_second_signal_means_now(model: Path) -> None:
    with running(model, "--shutdown-grace", "1000") as engine:
        engine.wait_for(READY)
        ranks = engine.children()
        thread, answers = in_background(engine, "!mute")
        engine.process.send_signal(signal.SIGTERM)
        engine.wait_for("Shutting down")
        engine.process.send_signal(signal.SIGTERM)
        thread.join(30)
        assert answers[0].status_code == 503
        assert engine.exit_code() == 128 + signal.SIGTERM
        until(lambda: not any(map(alive, ranks)), "the ranks to be gone")


def test_sigint_before_the_start_is_over(model: Path, gate: Path) -> None:
    with running(model, env={"ECHO_GATE": str(gate)}) as engine:
        engine.wait_for("Uvicorn running")
        ranks = engine.children()
        engine.process.send_signal(signal.SIGINT)
        assert engine.exit_code() == 0
        until(lambda: not any(map(alive, ranks)), "the ranks to be gone")


@pytest.mark.parametrize(
    ("prompt", "reason", "flags", "count"),
    [
        ("!die", "exited with code 7", ("--tp-size", "2", "--dp-size", "2"), 5),  # four ranks and the DP controller
        ("!last words", "cannot go on: out of luck", (), 1),
        ("!reason", "cannot go on: out of luck. Not a second line", (), 1),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("!") else "",
)
def test_a_rank_that_dies_ends_the_instance_and_says_why(
    model: Path, prompt: str, reason: str, flags: tuple[str, ...], count: int
) -> None:
    with running(model, *flags) as engine:
        engine.wait_for(READY)
        processes = engine.children()
        assert len(processes) == count
        thread, answers = in_background(engine, "!mute")
        response = engine.client.post("/generate", json={"text": prompt})
        thread.join(30)
        for answer in (response, answers[0]):
            assert answer.status_code == 503
            assert reason in answer.json()["error"]["message"]
        assert engine.exit_code() == 1
        assert reason in engine.wait_for("Instance ends: rank ")
        until(lambda: not any(map(alive, processes)), "the other ranks to be gone")


def test_a_rank_that_is_killed_while_starting_is_named(model: Path, gate: Path) -> None:
    with running(model, env={"ECHO_GATE": str(gate)}) as engine:
        engine.wait_for("Uvicorn running")
        (rank,) = engine.children()
        os.kill(rank, signal.SIGKILL)
        assert engine.exit_code() == 1
        engine.wait_for(f"rank TP0 (pid {rank}) was killed by SIGKILL")


def test_a_rank_that_dies_of_the_warm_up_is_named_and_nothing_else_is_said(model: Path) -> None:
    with running(model, env={"ECHO_WARM_UP": "!die"}) as engine:
        assert engine.exit_code() == 1
        assert "exited with code 7" in engine.wait_for("Instance ends: rank TP0")
        assert engine.lines[-1].startswith("[20")
        assert not any("Traceback" in line or "never retrieved" in line for line in engine.lines)


def test_a_stream_ends_with_the_reason_when_a_rank_is_killed(model: Path) -> None:
    with running(model) as engine:
        engine.wait_for(READY)
        (rank,) = engine.children()
        body = {"text": "abc", "stream": True, "sampling_params": {"sampling_seed": 60_000}}
        with engine.client.stream("POST", "/generate", json=body) as response:
            lines = response.iter_lines()
            assert next(lines)
            os.kill(rank, signal.SIGKILL)
            rest = [line for line in lines if line]
        assert "was killed by SIGKILL" in rest[0]
        assert rest[-1] == "data: [DONE]"
        assert engine.exit_code() == 1
        engine.wait_for(f"rank TP0 (pid {rank}) was killed by SIGKILL")


def test_sigkill_of_the_server_takes_its_ranks_along_and_leaves_no_files(model: Path, tmp_path: Path) -> None:
    with running(model, "--dp-size", "2", env={"TMPDIR": str(tmp_path)}) as engine:
        engine.wait_for(READY)
        assert list(tmp_path.iterdir()) == []
        processes = engine.children()
        assert len(processes) == 3
        engine.process.send_signal(signal.SIGKILL)
        engine.exit_code()
        until(lambda: not any(map(alive, processes)), "the ranks to be gone")


def test_the_starter_of_an_instance_takes_everything_along(model: Path) -> None:
    """A launcher hands down its lifeline; when it is killed the server goes, and with it the ranks."""
    starter = (
        "import os, subprocess, sys, time\n"
        "from pdctl.lifeline import Lifeline\n"
        "line = Lifeline()\n"
        "child = subprocess.Popen(sys.argv[1:], env={**os.environ, **line.env}, pass_fds=line.fds)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    argv = [sys.executable, "-m", "tests.engine.frontend.serve", "--model-path", str(model), "--port", str(free_port())]
    with subprocess.Popen(
        [sys.executable, "-c", starter, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        server = int(launcher.stdout.readline())
        while READY not in launcher.stderr.readline():
            pass
        tasks = Path(f"/proc/{server}/task").glob("*/children")
        tree = [server, *(int(pid) for task in tasks for pid in task.read_text().split())]
        assert len(tree) == 2
        launcher.kill()
        until(lambda: not any(map(alive, tree)), "the whole tree to be gone")


def test_a_foreign_frame_is_dropped(unified: Engine) -> None:
    mark = len(unified.lines)
    assert unified.client.post("/generate", json={"text": "!raw"}).json()["text"] == "!raw"
    unified.wait_for("Dropping malformed frame: tokenizer input: not a frame of this socket", mark)


def test_the_server_process_has_no_torch(prefill: Engine) -> None:
    maps = Path(f"/proc/{prefill.process.pid}/maps").read_text()
    assert "torch" not in maps
    probe = (
        "import sys, pdctl.engine.frontend.http_process, pdctl.engine.prefill.bootstrap_server;"
        "print(*sorted(sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert not {"torch", "numpy", "nixl", "transformers"} & set(loaded)


def test_log_prefixes_carry_only_the_ranks_that_exist() -> None:
    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.config.process_log import decorations
    from pdctl.layout.shape import place

    one = ServerArgs("/nowhere")
    both = ServerArgs("/nowhere", tp_size=2, dp_size=2)
    wide = ServerArgs("/nowhere", tp_size=4, attn_dp_size=2, pp_size=2, ep_size=2)
    assert [decorations(one, place(one.shape)[0]), decorations(both, place(both.shape)[1])] == ["", " DP0 TP1"]
    assert [decorations(wide, place(wide.shape)[-1]), decorations(both, None)] == [" DP1 PP1 TP3 EP1", ""]
