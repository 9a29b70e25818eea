"""Requests that end before they are done: aborted by a client, or left by one."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.engine.frontend.conftest import Engine, in_background, until
from tests.engine.frontend.echo_scheduler import IDLE_TOKENS


def busy(engine: Engine) -> int:
    return sum(load["num_running_reqs"] for load in engine.client.get("/v1/loads").json()["loads"])


def made(engine: Engine) -> int:
    """Tokens of requests in flight. The server has had them: this answer came after them, through the same socket."""
    return sum(load["num_used_tokens"] - IDLE_TOKENS for load in engine.client.get("/v1/loads").json()["loads"])


def send(engine: Engine, path: str, body: dict[str, object]) -> socket.socket:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
    connection = socket.create_connection(("127.0.0.1", engine.port), timeout=30)
    connection.sendall(head + raw)
    return connection


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_takes_its_request_along(unified: Engine, path: str, stream: bool) -> None:
    mark = len(unified.lines)
    command = "!mute"
    rid = f"gone{path.replace('/', '-')}{stream}"
    body = {"text": command, "prompt": command, "messages": [{"role": "system", "content": command}], "rid": rid}
    connection = send(unified, path, {**body, "stream": stream})
    unified.wait_for(f"Receive: obj=GenerateReqInput(rid='{rid}'", mark)
    assert busy(unified) == 1
    connection.close()
    assert "the client closed the connection" in unified.wait_for(f"Finish: obj=GenerateReqInput(rid='{rid}'", mark)
    until(lambda: busy(unified) == 0, "the scheduler to drop the request")


def test_a_client_that_leaves_in_mid_stream(unified: Engine) -> None:
    mark = len(unified.lines)
    body = {"text": ["abcdef", "ghijkl"], "stream": True, "rid": "mid", "sampling_params": {"sampling_seed": 60_000}}
    connection = send(unified, "/generate", body)
    assert b"200 OK" in connection.recv(65536)
    connection.close()
    for rid in ("mid_0", "mid_1"):
        unified.wait_for(f"Finish: obj=GenerateReqInput(rid='{rid}'", mark)
    until(lambda: busy(unified) == 0, "the scheduler to drop the requests")


def test_a_client_that_leaves_in_mid_upload(unified: Engine) -> None:
    mark = len(unified.lines)
    with socket.create_connection(("127.0.0.1", unified.port), timeout=30) as connection:
        connection.sendall(b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"text": "a')
    assert unified.client.get("/health").status_code == 200
    assert not any("Traceback" in line for line in unified.lines[mark:])


def test_leaving_one_request_does_not_touch_another_whose_rid_begins_alike(unified: Engine, tmp_path: Path) -> None:
    mark = len(unified.lines)
    gate = tmp_path / "gate"
    thread, answers = in_background(unified, f"!held {gate}")
    rid = next(line for line in unified.lines[mark:] if "Receive" in line).split("rid='")[1].split("'")[0]
    connection = send(unified, "/generate", {"text": "!mute", "rid": rid[:-1]})
    unified.wait_for(f"Receive: obj=GenerateReqInput(rid='{rid[:-1]}'", mark)
    connection.close()
    unified.wait_for(f"Finish: obj=GenerateReqInput(rid='{rid[:-1]}'", mark)
    gate.touch()
    thread.join(30)
    assert answers[0].json()["text"] == f"!held {gate}"


def test_abort_by_rid_prefix_is_a_shorter_answer(unified: Engine) -> None:
    """sglang: an abort a client asked for is no error."""
    thread, answers = in_background(unified, ["abcdef", "abc"], rid="cut", sampling_params={"sampling_seed": 60_000})
    until(lambda: made(unified) == 2, "the first token of both")
    assert unified.client.post("/abort_request", json={"rid": "cut_"}).status_code == 200
    thread.join(30)
    assert answers[0].status_code == 200
    for answer in answers[0].json():
        reason = answer["meta_info"]["finish_reason"]
        assert (answer["text"], reason["type"], reason["message"]) == ("a", "abort", "Aborted by AbortReq.")


def test_abort_ends_a_chat_stream_with_its_reason(unified: Engine) -> None:
    body = {"messages": [{"role": "system", "content": "abc"}], "seed": 60_000, "stream": True, "rid": "chat-cut"}
    with unified.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        assert next(lines)
        unified.client.post("/abort_request", json={"rid": "chat-cut"})
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"


def test_abort_all(replicas: Engine) -> None:
    pairs = [in_background(replicas, "!mute") for _ in range(3)]
    assert replicas.client.post("/abort_request", json={"abort_all": True}).status_code == 200
    for thread, answers in pairs:
        thread.join(30)
        assert answers[0].json()["meta_info"]["finish_reason"]["type"] == "abort"


def test_an_abort_that_matches_nothing(unified: Engine) -> None:
    mark = len(unified.lines)
    assert unified.client.post("/abort_request", json={"rid": "never"}).status_code == 200
    assert unified.client.post("/abort_request", json={}).status_code == 200
    unified.wait_for("Ignoring abort with empty rid", mark)
    assert unified.client.post("/abort_request", json={"rid": 5}).status_code == 400
