"""Broken frames over real sockets to living engines that serve verified requests meanwhile.

`python -m tests.fuzz.live --frames 100000`: starts a prefill of two nodes and a decode (without a deployment secret:
with one no frame gets through) and sends so many cases to each kind of socket: KV ports, bootstrap server, meeting,
node link. Meanwhile it asks for the same answer again and again. Exit code 1: an answer differed or failed, /health
was not 200, or a process has died.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import zmq

from pdctl.layout.ports import PortBlock
from tests.fuzz import edits
from tests.fuzz.edits import SEPARATOR
from tests.fuzz.rank_targets import BETWEEN, bootstrap_seeds, kv_seeds, meeting_seeds, node_seeds
from tests.ports import free_block, free_port

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "pdctl" / "checkpoints" / "tiny"
HOST = "127.0.0.1"
PROMPT = "Repeat: the red fox"
KEYS = 200  # frames on one connection
BLOCK = 14  # ports that --dist-init-addr wants


def fetch(url: str, body: dict[str, object] | None = None, seconds: float = 60.0) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return answer.status, answer.read()


def listeners(pid: int) -> set[int]:
    """TCP ports on which a process listens."""
    links = [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
    own = {os.readlink(link) for link in links if os.path.islink(link)}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Engine:
    def __init__(self, role: str, log: Path, bootstrap: int, *more: str) -> None:
        self.port = free_port()
        argv = [
            sys.executable,
            "-m",
            "pdctl.engine",
            "--model-path",
            str(MODEL),
            "--host",
            HOST,
            "--port",
            str(self.port),
        ]
        argv += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "shm", *more]
        argv += ["--disaggregation-bootstrap-port", str(bootstrap)]
        environ = {name: value for name, value in os.environ.items() if name != "PDCTL_DEPLOYMENT_SECRET_FILE"}
        self.process = subprocess.Popen(argv, stdout=log.open("wb"), stderr=subprocess.STDOUT, env=environ)
        self.url = f"http://{HOST}:{self.port}"

    def wait(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit(f"the engine ended with {self.process.returncode}")
            try:
                if fetch(f"{self.url}/ready", seconds=5)[0] == 200:
                    return
            except OSError:
                time.sleep(0.2)
        raise SystemExit(f"{self.url} is not ready within 120 s")

    @property
    def rank_ports(self) -> set[int]:
        return set().union(*(listeners(pid) for pid in children(self.process.pid)))


class Requests:
    """One after the other, each with a room of its own; every answer must equal the first."""

    def __init__(self, prefill: Engine, decode: Engine, bootstrap: int, *more: Engine) -> None:
        self._urls, self._bootstrap = (prefill.url, decode.url), bootstrap
        self._healthy = [engine.url for engine in (prefill, decode, *more)]
        self.first, self.served, self.wrong = b"", 0, []  # type: ignore[var-annotated]
        self.over = threading.Event()
        self.first = self.ask()

    def ask(self) -> bytes:
        body = {
            "text": PROMPT, "sampling_params": {"max_new_tokens": 8, "temperature": 0.0}, "bootstrap_host": HOST,
            "bootstrap_port": self._bootstrap, "bootstrap_room": random.getrandbits(52),
        }  # fmt: skip
        prefill = threading.Thread(target=self._quietly, args=(f"{self._urls[0]}/generate", body))
        prefill.start()
        answer: bytes = json.loads(fetch(f"{self._urls[1]}/generate", body)[1])["text"].encode()
        prefill.join()
        return answer

    def _quietly(self, url: str, body: dict[str, object]) -> None:
        try:
            fetch(url, body)
        except OSError as error:
            self.wrong.append(f"prefill: {error}")

    def one_more(self) -> None:
        """Until a request that began after this call has ended, well or not."""
        before = self.served + len(self.wrong)
        deadline = time.monotonic() + 180
        while self.served + len(self.wrong) < before + 2:
            if time.monotonic() > deadline:
                raise SystemExit("no request ended within 180 s")
            time.sleep(0.05)

    def run(self) -> None:
        while not self.over.is_set():
            try:
                got = self.ask()
                health = [fetch(f"{url}/health")[0] for url in self._healthy]
                if got != self.first or set(health) != {200}:
                    self.wrong.append(f"{got!r}, not {self.first!r}; health {health}")
                self.served += 1
            except OSError as error:
                self.wrong.append(str(error))


def send_frames(port: int, frames: int, seed: int) -> int:
    chance, seeds = random.Random(seed), kv_seeds()
    sent = 0
    with zmq.Context() as context:
        while sent < frames:
            with context.socket(zmq.PUSH) as push:
                push.setsockopt(zmq.LINGER, 2000)
                push.setsockopt(zmq.SNDTIMEO, 5000)
                push.connect(f"tcp://{HOST}:{port}")
                for _ in range(min(KEYS, frames - sent)):
                    for frame in edits.apply(chance.choice(seeds), edits.chosen(chance), seeds).split(BETWEEN):
                        # Endpoints that came to lie elsewhere are nobody's to dial.
                        if b"tcp://" not in frame or b"tcp://127.0.0.1:" in frame:
                            push.send(frame)
                            sent += 1
    return sent


def send_bytes(port: int, cases: int, seed: int, seeds: tuple[bytes, ...]) -> int:
    chance = random.Random(seed)
    for _ in range(cases):
        data = edits.apply(chance.choice(seeds), edits.chosen(chance), seeds)
        try:
            with socket.create_connection((HOST, port), timeout=10) as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        except OSError:
            continue  # it hung up first
    return cases


def send_meeting(port: int, messages: int, seed: int) -> int:
    chance, seeds = random.Random(seed), meeting_seeds()
    sent = 0
    with zmq.Context() as context:
        while sent < messages:
            with context.socket(zmq.DEALER) as peer:
                peer.setsockopt(zmq.LINGER, 2000)
                peer.setsockopt(zmq.SNDTIMEO, 5000)
                peer.connect(f"tcp://{HOST}:{port}")
                for _ in range(min(KEYS, messages - sent)):
                    for message in edits.apply(chance.choice(seeds), edits.chosen(chance), seeds).split(BETWEEN):
                        peer.send_multipart(message.split(SEPARATOR))
                        sent += 1
    return sent


def kv_ports(prefill: Engine, ranks: int, decode: Engine, bootstrap: int) -> list[int]:
    """Of the prefill as its bootstrap server names them. The decode has one rank, with no other port."""
    query = "prefill_dp_rank=0&prefill_cp_rank=0&target_pp_rank=0&target_tp_rank="
    rows = [fetch(f"http://{HOST}:{bootstrap}/route?{query}{rank}")[1] for rank in range(ranks)]
    return [*(int(json.loads(row)["rank_port"]) for row in rows), *decode.rank_ports]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.live", description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000, help="cases for each kind of socket")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    folder, bootstrap, dist = Path(tempfile.mkdtemp(prefix="fuzz-live-")), free_port(), free_block(BLOCK)
    block = PortBlock.of(dist)
    two = ("--tp-size", "2", "--nnodes", "2", "--dist-init-addr", f"{HOST}:{dist}", "--node-rank")
    prefill = Engine("prefill", folder / "prefill.log", bootstrap, *two, "0")
    second = Engine("prefill", folder / "prefill-node1.log", bootstrap, *two, "1")
    decode = Engine("decode", folder / "decode.log", free_port())
    engines = (prefill, second, decode)
    try:
        for engine in (prefill, decode):
            engine.wait()
        requests = Requests(prefill, decode, bootstrap, second)
        asking = threading.Thread(target=requests.run)
        asking.start()
        ports = kv_ports(prefill, 2, decode, bootstrap)
        share = args.frames // len(ports) + 1
        each: dict[str, Callable[[], int]] = {
            "KV frames": lambda: sum(send_frames(port, share, args.seed + port) for port in ports),
            "bootstrap connections": lambda: send_bytes(bootstrap, args.frames, args.seed, bootstrap_seeds()),
            "meeting messages": lambda: send_meeting(block.handshake, args.frames, args.seed),
            "node connections": lambda: send_bytes(block.rpc, args.frames, args.seed, node_seeds() + bootstrap_seeds()),
        }
        for what, send in each.items():
            began, served, wrong = time.monotonic(), requests.served, len(requests.wrong)
            sent = send()
            requests.one_more()  # what was sent may still lie in the kernel's buffers
            print(
                f"{sent} {what} in {time.monotonic() - began:.0f} s; meanwhile {requests.served - served} requests, "
                f"{len(requests.wrong) - wrong} wrong",
                flush=True,
            )
        requests.over.set()
        asking.join()
        dead = [engine.url for engine in engines if engine.process.poll() is not None]
        last = requests.ask() == requests.first if not dead else False
        print(f"afterwards {'the same answer' if last else 'no answer'}; {len(dead)} dead; logs in {folder}")
        for line in requests.wrong[:5]:
            print(f"  {line}")
        return int(bool(requests.wrong or dead or not last))
    finally:
        for engine in engines:
            engine.process.terminate()
        for engine in engines:
            engine.process.wait(30)


if __name__ == "__main__":
    sys.exit(main())
