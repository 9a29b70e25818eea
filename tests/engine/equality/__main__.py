"""The matrix: `python -m tests.engine.equality --models gqa,mla --backends nixl,shm --prompts 200`.

For each model and backend every prefill shape and every decode shape is started once, at the same time, and each
prefill serves each decode: {P tp 1, 2, 4} × {D tp 1, 2, 4} × {data parallel off, on}. The reference is a unified engine
of one rank. "On" is attention DP 2 where tp has room for it, two replicas of one rank otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.engine.checkpoints import make_checkpoint
from tests.engine.equality import ask, prompts
from tests.engine.equality.instances import Form, Instance, start

if TYPE_CHECKING:
    from collections.abc import Sequence

OFF = (Form(1), Form(2), Form(4))
ON = (Form(1, replicas=2), Form(2, dp=2), Form(4, dp=2))
START_WITHIN = 240.0


def forms(words: str) -> tuple[Form, ...]:
    """`tp4dp2,tp1x2` → shapes; `all`: the six of the matrix."""
    known = {form.name: form for form in (*OFF, *ON)}
    if words == "all":
        return tuple(known.values())
    return tuple(known[word] if word in known else _read(word) for word in words.split(","))


def _read(word: str) -> Form:
    sizes: dict[str, int] = {}
    at, names = 0, {"tp": "tp", "dp": "dp", "x": "replicas", "pp": "pp", "ep": "ep"}
    while at < len(word):
        name = next((name for name in names if word.startswith(name, at)), None)
        if name is None:
            raise SystemExit(f"--prefills/--decodes {word}: write for example tp4dp2, tp1x2, tp2pp2, tp4ep4")
        at += len(name)
        end = at
        while end < len(word) and word[end].isdecimal():
            end += 1
        sizes[names[name]] = int(word[at:end])
        at = end
    return Form(**sizes)


async def _started(model: Path, role: str, form: Form, backend: str, started: list[Instance]) -> Instance:
    """One after another: thirty ranks that import torch at once make each other late."""
    instance = start(model, role, form, backend)
    started.append(instance)
    await asyncio.to_thread(instance.wait_ready, START_WITHIN)
    return instance


async def run(model: str, backend: str, prefills: Sequence[Form], decodes: Sequence[Form], count: int) -> list[dict]:
    asked = prompts.make(count)
    results = []
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = make_checkpoint(model, Path(directory) / model, 3)
        started: list[Instance] = []
        try:
            reference = await _started(checkpoint, "null", Form(1), backend, started)
            wanted = await ask.unified(reference, asked)
            reference.stop()
            sides = [await _started(checkpoint, "prefill", form, backend, started) for form in prefills]
            peers = [await _started(checkpoint, "decode", form, backend, started) for form in decodes]
            for prefill in sides:
                for decode in peers:
                    began = time.monotonic()
                    found = await ask.pair(prefill, decode, asked, wanted)
                    row = {
                        "model": model, "backend": backend, "prefill": prefill.form.name, "decode": decode.form.name,
                        "prompts": count, "equal": count - len(found), "seconds": round(time.monotonic() - began, 1),
                        "first": found[0]._asdict() if found else None,
                    }  # fmt: skip
                    results.append(row)
                    print(json.dumps(row), flush=True)
        finally:
            for instance in started:
                instance.stop()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.equality", description=__doc__)
    parser.add_argument("--models", default="gqa,mla")
    parser.add_argument("--backends", default="nixl,shm")
    parser.add_argument("--prefills", default="all")
    parser.add_argument("--decodes", default="all")
    parser.add_argument("--prompts", type=int, default=200)
    options = parser.parse_args()
    rows: list[dict] = []
    for model in options.models.split(","):
        for backend in options.backends.split(","):
            sides = forms(options.prefills), forms(options.decodes)
            rows += asyncio.run(run(model, backend, *sides, options.prompts))
    wrong = [row for row in rows if row["equal"] != row["prompts"]]
    print(f"{len(rows)} pairs, {len(rows) - len(wrong)} equal in every token, {len(wrong)} not")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
