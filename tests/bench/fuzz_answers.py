"""A million broken answers against everything that reads one: nothing may raise what its reader does not promise.

    python tests/bench/fuzz_answers.py                      # 10^6 cases, about five minutes
    python tests/bench/fuzz_answers.py --cases 20000 --seed 7

Each case takes a real answer (tests/data/answers), breaks it (bytes flipped, cut, doubled, spliced with another; values
of its JSON replaced by odd ones) and hands it to the readers of the fleet room.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pdctl.doctor import other_host  # noqa: E402 - runs from a checkout
from pdctl.errors import UsageError  # noqa: E402
from pdctl.fleet import (  # noqa: E402
    bootstrap_probe,
    canary_probe,
    engine_probe,
    http_client,
    peer_json,
    prober,
    prometheus_text,
    router_probe,
)
from pdctl.fleet.address import Unanswered  # noqa: E402
from pdctl.fleet.deadline import Deadline  # noqa: E402
from pdctl.fleet.http_client import Answer  # noqa: E402
from pdctl.fleet.http_connection import Reader  # noqa: E402
from pdctl.fleet.observations import Endpoint  # noqa: E402

ODD = (
    None,
    True,
    -1,
    0,
    2**63,
    10**400,
    1e308,
    "",
    "\ud800",
    "x" * 5000,
    [],
    {},
    [[]],
    {"": {}},
    [None, 1, "a"],
    "8998",
)
BYTES = (
    b"\x00",
    b"\xff",
    b"\r\n",
    b"{",
    b"}",
    b"[",
    b'"',
    b"\\u",
    b"9" * 30,
    b"-",
    b"\xe2\x80\xa8",
    b"data: ",
    b"\x1b[31m",
)
LONG = 4000  # bytes of a seed that are used: what is longer is more of the same


def seeds() -> list[bytes]:
    files = [path for path in (ROOT / "tests" / "data" / "answers").rglob("*") if path.name.count(".") >= 1]
    found = [path.read_bytes() for path in sorted(files) if path.is_file() and path.suffix != ".tsv"]
    generated = {
        "text": "a b",
        "output_ids": [1, 2],
        "meta_info": {"completion_tokens": 2, "finish_reason": {"type": "length"}},
    }
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ntransfer-encoding: chunked\r\n\r\n"
    found += [json.dumps(generated).encode(), json.dumps([generated] * 2).encode(), b"data: {}\n\ndata: [DONE]\n\n"]
    found += [
        head + b"5\r\nhello\r\n0\r\n\r\n",
        head.replace(b"transfer-encoding: chunked", b"content-length: 3") + b"abc",
    ]
    found.append(
        b'{"source": "n", "targets": 3, "pdctl": "pdctl.reach/1"}\n{"host": "a", "port": 1, "pdctl": "pdctl.reach/1"}'
    )
    return [one[:LONG] if len(one) > 8 * LONG else one for one in found if one]


def mutated(chance: random.Random, seed: bytes, other: bytes) -> bytes:
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] = chance.randrange(256)
        elif kind == 1:
            del data[at : at + chance.randrange(40)]
        elif kind == 2:
            data[at:at] = chance.choice(BYTES)
        elif kind == 3:
            data[at:at] = data[at : at + chance.randrange(60)]
        elif kind == 4:
            data[at:] = other[chance.randrange(len(other)) :][:LONG]
        else:
            data[at:at] = other[:200]
    return bytes(data)


def replaced(chance: random.Random, value: object, depth: int = 0) -> object:
    """One value somewhere inside, exchanged for an odd one."""
    if depth and (chance.random() < 0.3 or not isinstance(value, dict | list) or not value):
        return chance.choice(ODD)
    if isinstance(value, dict) and value:
        key = chance.choice(list(value))
        return {**value, key: replaced(chance, value[key], depth + 1)}
    if isinstance(value, list) and value:
        at = chance.randrange(len(value))
        return [*value[:at], replaced(chance, value[at], depth + 1), *value[at + 1 :]]
    return chance.choice(ODD)


class Told(prober.Prober):
    """Answers without sockets."""

    def __init__(self, body: bytes, status: int) -> None:
        super().__init__(Deadline(60.0), 1.0)
        self._answer = Answer(status, body, "", 0.01, time.time(), True, {"date": body[:40].decode("latin-1")})

    def ask_all(self, base: str, paths: object) -> tuple[Answer, ...]:
        return tuple(self._answer for _ in paths)  # type: ignore[attr-defined]


def http(chance: random.Random, body: bytes) -> None:
    reader = Reader()
    reader.request("GET", "/", [("host", "h")], b"")  # before that an interim answer is none
    with contextlib.suppress(Unanswered):
        while body:
            cut = chance.randint(1, len(body))
            reader.feed(body[:cut])
            body = body[cut:]
        reader.end()


def engine(chance: random.Random, body: bytes) -> None:
    found = engine_probe._probe(
        Endpoint("e", "prefill", "http://h:1"), Told(body, chance.choice((200, 404, 500))), True
    )
    assert isinstance(found.version, str)
    canary_probe._held_requests("http://h:1", Told(body, 200))


def documents(chance: random.Random, body: bytes) -> None:
    value = peer_json.parse(body)
    json.dumps(value, ensure_ascii=False).encode()
    assert peer_json.complaint(body).isprintable()
    for style in (bootstrap_probe.NEW, bootstrap_probe.OLD):
        style.layout(peer_json.mapping(value))
    bootstrap_probe.counted(body.decode("utf-8", "replace"))
    router_probe.listed_workers(value)
    router_probe._kind(dict.fromkeys(router_probe.LOOKS, prober.reply("/", Answer(200, body))))
    for output in canary_probe.outputs(value):
        output.text.encode()


def texts(chance: random.Random, body: bytes) -> None:
    text = body.decode("utf-8", "replace")
    for sample in prometheus_text.samples(text):
        prometheus_text.labels(sample.labels)
    prometheus_text.totals(text)
    for payload in http_client.payloads(body[at : at + 50] for at in range(0, len(body), 50)):
        peer_json.parse(payload)
    with contextlib.suppress(UsageError):
        other_host.read(text)


TARGETS: tuple[Callable[[random.Random, bytes], None], ...] = (http, engine, documents, texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    found = seeds()
    trees = [value for one in found if isinstance(value := peer_json.parse(one), dict | list)]
    began, slowest = time.monotonic(), 0.0
    for number in range(args.cases):
        if number % 2:
            body = json.dumps(replaced(chance, chance.choice(trees))).encode()
        else:
            body = mutated(chance, chance.choice(found), chance.choice(found))
        target = TARGETS[number // 2 % len(TARGETS)]
        start = time.process_time()
        try:
            target(chance, body)
        except BaseException:
            print(f"case {number} of seed {args.seed} breaks {target.__name__}: {body[:2000]!r}")
            raise
        slowest = max(slowest, time.process_time() - start)
    seconds = time.monotonic() - began
    print(f"{args.cases} cases in {seconds:.0f} s, none broke a reader; the slowest took {slowest * 1e3:.0f} ms of CPU")


if __name__ == "__main__":
    main()
