"""The one HTTP client: every peer, however broken, is an answer or a reason, within the time it was given."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.fleet import host_probe, http_client, http_connection
from pdctl.fleet.address import Unanswered
from pdctl.fleet.deadline import Deadline
from pdctl.fleet.http_connection import Reader
from tests.cases import for_each
from tests.fleet.conftest import LONG, Peer, Serve, closed_port

Make = Callable[..., Peer]
OK = b"HTTP/1.1 200 OK\r\n"
MALFORMED = "answered with malformed HTTP: "  # what follows are h11's words


def ask(peer: Peer, timeout: float = LONG, **more: int) -> http_client.Answer:
    return http_client.get(f"http://127.0.0.1:{peer.port}/", timeout, **more)


def test_nobody_there_is_a_fact_not_an_exception() -> None:
    answer = http_client.get(f"http://127.0.0.1:{closed_port()}/health", LONG)
    assert not answer.reached
    assert not answer.connected
    assert answer.reason == "connection refused"


def test_silence_has_a_deadline(peer: Make) -> None:
    answer = ask(peer(hold=True), 0.2)
    assert answer.reason == "no answer within 0.2 s"
    assert answer.connected


def test_a_full_backlog_is_no_connection() -> None:
    with socket.socket() as mute, socket.socket() as first, socket.socket() as second:
        mute.bind(("127.0.0.1", 0))
        mute.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(mute.getsockname())
        answer = http_client.get(f"http://127.0.0.1:{mute.getsockname()[1]}/", 0.2)
    assert answer.reason == "no connection within 0.2 s"
    assert not answer.connected


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (OK + b"content-length: 3\r\n\r\nabc", b"abc"),
        (OK + b"content-length: 3\r\n\r\nabcdef", b"abc"),
        (OK + b"\r\nall of it", b"all of it"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 200\r\ncontent-length: 1\r\n\r\nx", b"x"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;a=b\r\nde\r\n0\r\n\r\n", b"abcde"),
        (OK + b"transfer-encoding: chunked\r\n\r\n0\r\nx-trailer: 1\r\n\r\n", b""),
        (OK.replace(b"\r", b"") + b"content-length: 1\n\nx", b"x"),  # RFC 9112 2.2: a bare LF may end a line
    ],
)
def test_answers_in_every_framing(peer: Make, said: bytes, body: bytes) -> None:
    for pieces in ((said,), tuple(said[i : i + 1] for i in range(len(said)))):
        answer = ask(peer(*pieces))
        assert (answer.status, answer.body, answer.reason) == (200, body, "")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "server disconnected without sending a response"),
        (b"HTT", "server disconnected in the middle of its headers"),
        (OK + b"content-length: 9\r\n\r\nabc", "peer closed connection without sending complete answer"),
        (OK + b"transfer-encoding: chunked\r\n\r\n9\r\nabc", "peer closed connection without sending complete answer"),
        (OK + b"content-length: -1\r\n\r\n", f"{MALFORMED}bad Content-Length"),
        (OK + b"content-length: " + b"9" * 20 + b"\r\n\r\n", "peer closed connection without sending complete answer"),
        (OK + b"content-length: " + b"9" * 5000 + b"\r\n\r\n", f"{MALFORMED}bad Content-Length"),
        (OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab", f"{MALFORMED}conflicting Content-Length headers"),
        (OK + b"transfer-encoding: gzip\r\n\r\n", f"{MALFORMED}Only Transfer-Encoding: chunked"),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n", f"{MALFORMED}illegal chunk header: (b'zz"),
        (OK + b"transfer-encoding: chunked\r\n\r\n1\r\nabc", f"{MALFORMED}malformed chunk footer"),
        (OK + b"transfer-encoding: chunked\r\n\r\n" + b"0" * 5000, f"{MALFORMED}Receive buffer too long"),
        (OK + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 2000, f"{MALFORMED}Receive buffer too long"),
        (OK + b"no header at all\r\n\r\n", f"{MALFORMED}illegal header line: (b'no header at all')"),
        # h11 alone would think about this line for 14 s, past every deadline.
        (OK + b"x:" + b" " * 60_000 + b"\0\r\n\r\n", f"{MALFORMED}a stray control character in its head"),
        (OK + b"x: " + b"y" * 70_000, "answered with more than 64 KiB of headers"),
        (OK + b"x: " + b"y" * 70_000 + b"\r\n\r\n", "answered with more than 64 KiB of headers"),
        (b"HTTP/1.1 2000 no\r\n\r\n", f"{MALFORMED}illegal status line"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", MALFORMED),  # nobody asked to
        (b"HTTP/1.1 103 Hints\r\n\r\n" * 9, "answered with more than 8 interim statuses"),
        (b"\x15\x03\x03\x00\x02\x02\x50", "it speaks TLS (write https://)"),
        (b"\xff\0\0\0\0\0\0\0\x01\x7f\x03", "it speaks ZMQ, not HTTP"),
        (b"\0\0\x12\x04\0\0\0\0\0", "it speaks HTTP/2 only"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "it speaks SSH, not HTTP"),
        (b"-ERR unknown command\r\n", "answered with something that is not HTTP"),
    ],
)
def test_what_is_no_answer_is_named(peer: Make, said: bytes, reason: str) -> None:
    answer = ask(peer(said))
    assert not answer.reached
    assert answer.reason.startswith(reason)


def test_an_endless_answer_ends_at_the_limit(peer: Make) -> None:
    answer = ask(peer(OK + b"\r\n", forever=b"x" * 65536), limit=1 << 20)
    assert answer.reason == "its answer is longer than 1024 KiB"


def test_a_byte_now_and_then_does_not_move_the_deadline(peer: Make) -> None:
    assert ask(peer(OK + b"x:", forever=b"y"), 0.3).reason == "no answer within 0.3 s"
    assert ask(peer(OK + b"\r\n", forever=b"y"), 0.3).reason == "its answer did not end within 0.3 s"


@pytest.mark.parametrize("coding", ["gzip", "br", "GZIP, gzip"])
def test_what_is_compressed_is_not_unpacked(peer: Make, coding: str) -> None:
    """50 KB of it could be 50 MB; and a client that says what it takes gets no such answer from an honest server."""
    packed = gzip.compress(bytes(50_000_000), 1)
    said = peer(OK + f"content-encoding: {coding}\r\ncontent-length: {len(packed)}\r\n\r\n".encode(), packed)
    answer = ask(said)
    assert not answer.reached
    assert answer.reason.startswith(f"its answer is compressed (content-encoding: '{coding.lower()}'")
    assert b"\r\naccept-encoding: identity\r\n" in said.heard[0].lower()
    plain = OK + b"content-encoding: identity\r\ncontent-length: 2\r\n\r\nhi"
    assert ask(peer(plain)).body == b"hi"


def test_a_redirect_is_not_followed(peer: Make) -> None:
    target = peer(OK + b"content-length: 0\r\n\r\n")
    moved = b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:%d/\r\ncontent-length: 0\r\n\r\n" % target.port
    assert ask(peer(moved)).status == 307
    assert not target.heard


@for_each("url", ["http://", "http://[::1", "http://a..b", "127.0.0.1:1", "ftp://127.0.0.1:1"])
def test_what_is_no_address_is_not_reached(url: str) -> None:
    assert http_client.get(url).reason


@for_each("url", ["http://h:0/", "http://h:65536/", "http://h/a b", "http://h/\r\nx: y", "http://u@h/"])
def test_a_url_that_would_mislead_the_request_is_refused(url: str) -> None:
    assert "127.0.0.1" not in http_client.get(url).reason
    assert http_client.get(url).reason.startswith("'http://")


def test_no_proxy_stands_between(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    assert http_client.get(serve({"/health": (200, "")}) + "/health", LONG).ok


def test_ipv6_and_a_name_with_several_addresses(peer: Make) -> None:
    if "::1" not in host_probe.addresses():
        pytest.skip("no IPv6 loopback here")
    six = peer(OK + b"content-length: 0\r\n\r\n", host="::1")
    assert http_client.get(f"http://[::1]:{six.port}/x?y=1", LONG).ok
    assert six.heard[0].startswith(b"GET /x?y=1 HTTP/1.1\r\nhost: [::1]:%d\r\n" % six.port)
    four = peer(OK + b"content-length: 0\r\n\r\n")
    assert http_client.get(f"http://localhost:{four.port}/", LONG).ok  # ::1 refuses, 127.0.0.1 answers


def test_a_request_carries_its_body_and_its_key(peer: Make) -> None:
    one = peer(OK + b"content-length: 0\r\n\r\n")
    assert http_client.post(f"http://127.0.0.1:{one.port}/generate", {"text": "\u2028\ud800"}, LONG, key="k\n").ok
    head, _, body = one.heard[0].partition(b"\r\n\r\n")
    assert b"\r\nauthorization: Bearer k\r\n" in head
    assert json.loads(body) == {"text": "\u2028\ud800"}


def test_a_key_that_cannot_be_sent_is_neither_sent_nor_told(peer: Make) -> None:
    one = peer(OK + b"content-length: 0\r\n\r\n")
    answer = http_client.get(f"http://127.0.0.1:{one.port}/", LONG, key="secret\r\nx: y")
    assert answer.reason == "not asked: the address or the key cannot stand in a request"
    assert not one.heard


def test_a_refusal_before_the_request_is_whole_is_read(peer: Make) -> None:
    """Over-long prompts are megabytes: a server that has read enough answers and reads no more."""
    one = peer(b"HTTP/1.1 413 Too Large\r\ncontent-length: 4\r\n\r\nlong", hold=True)
    answer = http_client.post(f"http://127.0.0.1:{one.port}/generate", {"input_ids": [1] * 4_000_000}, LONG)
    assert (answer.status, answer.body) == (413, b"long")


def test_calls_are_waited_for_together_and_called_off(peer: Make) -> None:
    whole = Deadline(60.0)
    calls = [http_connection.Call("GET", f"http://127.0.0.1:{peer(hold=True).port}/", None, whole) for _ in range(3)]
    threading.Timer(0.1, whole.call_off).start()
    http_connection.wait(calls)
    assert [one.reason for one in calls] == ["no answer within 60 s"] * 3
    late = http_connection.Call("GET", "http://127.0.0.1:1/", None, whole)
    assert (late.over, late.reason) == (True, "not asked within the 60 s granted")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1 in one file."""
    folder = tmp_path_factory.mktemp("tls")
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "crt")]
    try:
        subprocess.run([*made, *name, *files], check=True, capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("no openssl here to make a certificate with")
    both = folder / "both.pem"
    both.write_bytes((folder / "key").read_bytes() + (folder / "crt").read_bytes())
    return both


def test_https(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    body = b"z" * 300_000
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        for _ in range(3):
            connection, _ = listener.accept()
            with connection:
                try:
                    with context.wrap_socket(connection, server_side=True) as secure:
                        secure.recv(65536)
                        secure.sendall(OK + b"content-length: %d\r\n\r\n" % len(body) + body)
                except OSError:
                    continue

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with listener:
        port = listener.getsockname()[1]
        http_connection._trust.cache_clear()
        assert http_client.get(f"https://127.0.0.1:{port}/", LONG).reason.startswith("TLS: certificate verify failed")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        http_connection._trust.cache_clear()
        assert http_client.get(f"https://127.0.0.1:{port}/", LONG).body == body
        assert not http_client.get(f"http://127.0.0.1:{port}/", LONG).reached
        thread.join()
    http_connection._trust.cache_clear()


def test_https_to_a_port_that_speaks_plain_http(peer: Make) -> None:
    one = peer(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
    assert http_client.get(f"https://127.0.0.1:{one.port}/", LONG).reason == "it does not speak TLS (write http://)"
    assert http_client.get(f"https://127.0.0.1:{peer(hold=True).port}/", 0.2).reason == "no answer within 0.2 s"


@given(st.lists(st.binary(max_size=40), max_size=8), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_an_answer_or_a_reason(pieces: list[bytes], lead: bool) -> None:
    reader = Reader()
    body = b""
    with contextlib.suppress(Unanswered):
        for piece in [OK + b"transfer-encoding: chunked\r\n\r\n" if lead else b"HTTP/1.1 ", *pieces]:
            body += reader.feed(piece)
        reader.end()
        assert reader.complete
    assert len(body) <= sum(map(len, pieces))


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.data())
@settings(max_examples=60, deadline=None)
def test_chunks_are_the_same_however_they_arrive(chunks: list[bytes], data: st.DataObject) -> None:
    sent = OK + b"transfer-encoding: chunked\r\n\r\n"
    sent += b"".join(b"%X\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    reader, body = Reader(), b""
    while sent:
        size = data.draw(st.integers(1, len(sent)))
        body, sent = body + reader.feed(sent[:size]), sent[size:]
    assert reader.complete
    assert body == b"".join(chunks)
