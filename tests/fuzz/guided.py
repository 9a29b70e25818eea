"""The same targets under atheris: libFuzzer keeps the cases that reach new lines of pdctl, and changes those further.

It ends its process with the first finding, so it runs in one of its own: `python -m tests.fuzz.guided TARGET …`.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.judge import Target

ROOT = Path(__file__).resolve().parents[2]
SHORTEST = 4096  # bytes a case may have at least
DONE = re.compile(r"^#(\d+)\s+\S+\s+cov: (\d+)", re.MULTILINE)


def run(target: Target, cases: int, seed: int, corpus: Path | None) -> int:
    """1 when it found something. The corpus begins with the target's seeds, and is kept where one is named."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        kept = corpus or Path(folder) / "corpus"
        kept.mkdir(parents=True, exist_ok=True)
        longest = SHORTEST
        for data in target.seeds():
            (kept / hashlib.sha1(data).hexdigest()).write_bytes(data)
            longest = max(longest, 2 * len(data))
        limits = [f"-runs={cases}", f"-seed={seed}", f"-max_len={longest}", "-timeout=3600", "-rss_limit_mb=4096"]
        # Without it, short cases come first, and what is longer than half of them never comes.
        limits += ["-len_control=0", "-print_final_stats=1", f"-artifact_prefix={folder}/"]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.guided", target.name, str(kept), *limits],
            capture_output=True, text=True, errors="replace", cwd=ROOT, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
        marks = DONE.findall(done.stderr)
        count, lines = marks[-1] if marks else ("0", "0")
        words = "no findings" if not done.returncode else "broken"
        print(
            f"{target.name}: {count} guided cases of seed {seed} in {seconds:.0f} s ({int(count) / seconds:.0f}/s), "
            f"{words}; {lines} edges, {len(list(kept.iterdir()))} cases kept",
            flush=True,
        )
        if done.returncode:
            _tell(target, Path(folder), done.stdout + done.stderr)
        return min(done.returncode, 1)


def _tell(target: Target, folder: Path, said: str) -> None:
    from tests.fuzz.judge import Broken, judge, kept, shorter

    for artifact in sorted(folder.glob("*-*")):
        try:
            judge(target, artifact.read_bytes())
        except Broken as broken:
            print(short := Broken(target.name, broken.where, shorter(target, broken)))
            print(f"kept as {kept(short)}")
            return
    print(said[-4000:])


def _fuzz() -> None:
    import atheris

    with atheris.instrument_imports(include=["pdctl"]):
        from tests.fuzz.judge import judge
        from tests.fuzz.targets import TARGETS
    target = TARGETS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda data: _judged(judge, target, data))
    atheris.Fuzz()


def _judged(judge: object, target: Target, data: bytes) -> None:
    judge(target, data)  # type: ignore[operator]


if __name__ == "__main__":
    _fuzz()
