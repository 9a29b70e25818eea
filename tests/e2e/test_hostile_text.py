"""What clients write into any field of a request leaves the logs' lines ours, and the verdicts on them the same."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from urllib.parse import quote

from pdctl.engines.prefix import SGLANG
from tests import plain_http
from tests.e2e.conftest import Deployment

FORGED = (
    "[2026-11-22 21:00:00.000] Scheduler hit an exception: Traceback (most recent call last):",
    "KeyError: 1234567",
    "[2026-11-22 21:00:00.000] Finish room=ROOM rid=a request_id=a attempt=1 prefill=http://127.0.0.1:1 "
    "decode=http://127.0.0.1:2 status=502 outcome=failed prefill_ms=- first_byte_ms=- total_ms=1.0",
    "pdctl: decode-0 generation 1 killed by SIGKILL",
)
FIELDS = (
    "rid", "text", "model", "bootstrap_host", "bootstrap_port", "bootstrap_room", "stream", "lora_path", "input_ids",
    "sampling_params", "routed_dp_rank", "return_logprob", "messages", "prompt", "n", "user", "FIELD",
)  # fmt: skip
PATHS = ("/generate", "/v1/chat/completions", "/abort_request", "/workers")


def hostile(room: int) -> tuple[str, str]:
    """What begins lines of its own where nothing is escaped, and what looks like one in the middle of a line."""
    lines = [line.replace("ROOM", str(room)) for line in FORGED]
    return "a\n" + "\n".join(lines) + "\n", f"a' phase=aborted\" )]}} {' '.join(lines)}\r\x1b[2J\x00\x9b\u2028\u202e"


def bodies(path: str, text: str) -> list[object]:
    good = {"text": "hi", "prompt": "hi", "messages": [{"role": "user", "content": "hi"}], "model": "x"}
    good["sampling_params"] = {"max_new_tokens": 1}
    good["max_tokens"] = 1
    made: list[object] = [{**good, name: text} for name in FIELDS]
    made += [{**good, "rid": [text]}, {**good, "rid": {text: text}}, {**good, text: 1}, [text], text]
    made += [{**good, "text": [text] * 2, "rid": [text, text + "b"]}, {**good, "sampling_params": {text: text}}]
    if path == "/workers":
        made += [{"url": f"http://{text}:1", "worker_type": "decode"}, {"url": text, "worker_type": text}]
    return made


def asked(url: str, text: str) -> None:
    """Each field of a body, the path, the query, the names and values of headers."""
    with plain_http.Client(base_url=url, timeout=60) as client:
        for path in PATHS:
            for body in bodies(path, text):
                client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
        client.post("/generate", content=text.encode("utf-8", "replace"))
        for method in ("GET", "POST", "DELETE"):
            client.request(method, "/workers/" + quote(text))
            client.request(method, "/rooms/" + quote(text))
            client.request(method, "/" + quote(text))
            client.request(method, "/generate?" + quote(text))
            client.request(method, "/flush_cache?" + quote(text))
    host, port = url.removeprefix("http://").split(":")
    raw, flat = text.encode("utf-8", "replace"), re.sub(rb"[\r\n\x00]", b" ", text.encode("utf-8", "replace"))
    body = b'{"text": "hi", "sampling_params": {"max_new_tokens": 1}}'
    for request in (
        b"GET /" + raw + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /flush_cache?\xff\xfe" + raw.replace(b" ", b"\t") + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        raw + b" / HTTP/1.1\r\nhost: a\r\n\r\n",
        *(
            b"POST %b HTTP/1.1\r\nhost: a\r\n%b: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (path, name, value, len(body), body)
            for path in (b"/generate", b"/workers", b"/abort_request")
            for name in (b"x-request-id", b"authorization", b"x-pdctl-signature", b"user-agent", b"content-type")
            for value in (flat, raw)
        ),
    ):
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            try:
                while client.recv(1 << 16):
                    pass
            except ConnectionError:
                continue


def verdicts(deployment: Deployment, healthy: int) -> list[object]:
    logs = str(deployment.home / "runs" / deployment.name / "logs")
    told = json.loads(deployment.pdctl("diagnose", logs, "-o", "json", check=False).stdout)
    rooms = json.loads(deployment.pdctl("rooms", logs, "-o", "json", check=False).stdout)
    (one,) = [each for each in rooms["rooms"] if each["room"] == healthy]
    return [
        [(each["instance"], each["code"]) for each in told["deaths"]],
        [source["speaker"] for source in told["sources"]],
        one["outcome"],
    ]


def test_no_client_writes_a_line_of_our_logs(two_prefills: Deployment) -> None:
    logs = two_prefills.home / "runs" / two_prefills.name / "logs"
    before = {path: path.stat().st_size for path in logs.glob("*.log")}
    good = {"text": "hi", "sampling_params": {"max_new_tokens": 2}}
    answer = plain_http.post(f"{two_prefills.router}/generate", json=good, timeout=60)
    healthy = int(answer.headers["x-pd-room"])
    was = verdicts(two_prefills, healthy)
    whole, torn = hostile(healthy)
    for url, text in (
        (two_prefills.router, whole),
        (two_prefills.router, torn),
        (two_prefills.prefills[0], whole),
        (two_prefills.decodes[0], torn),
    ):
        asked(url, text)
    assert plain_http.post(f"{two_prefills.router}/generate", json=good, timeout=60).status_code == 200
    for path, size in before.items():
        for line in written(path, size):
            assert line.isprintable(), (path.name, line)
            assert SGLANG.match(line.encode()), (path.name, line)
            assert not re.search(r".\[20\d\d-\d\d-\d\d ", line), (path.name, line)
    assert verdicts(two_prefills, healthy) == was


def written(path: Path, since: int) -> list[str]:
    text = path.read_bytes()[since:].decode("utf-8", "backslashreplace")
    return text.removesuffix("\n").split("\n") if text else []
