"""The executable reads .zst through a small module of its own: beside the package zstandard, answer for answer."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = Path(__file__).parents[2] / "tools" / "one_file" / "executable" / "zstandard.py"
LIBRARY = ctypes.util.find_library("zstd")
# Reads each file twice, with the package and with the module; both give chunks until the end or the error.
COMPARE = """
import importlib.util, json, sys
import zstandard
spec = importlib.util.spec_from_file_location("ours", sys.argv[1])
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)

def read(module, path):
    told = []
    with open(path, "rb") as stream:
        try:
            told.append(module.frame_content_size(stream.read(64)))
        except module.ZstdError:
            told.append("no frame")
        stream.seek(0)
        reader = module.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
        space = bytearray(1 << 16)
        try:
            while got := reader.readinto(memoryview(space)[:50_000]):
                told.append([got, hash(bytes(space[:got]))])
        except module.ZstdError:
            told.append("damaged")
    return told

print(json.dumps([[read(zstandard, path), read(ours, path)] for path in sys.argv[2:]]))
"""


@pytest.mark.skipif(not LIBRARY, reason="no shared libzstd to stand for the one that is linked in")
def test_it_reads_as_the_package_does(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    text = b"".join(b"line %d of a log\n" % number for number in range(40_000))
    known = zstandard.ZstdCompressor().compress(text)
    flow = zstandard.ZstdCompressor().compressobj()
    unknown = flow.compress(text) + flow.flush()
    inputs = {
        "known": known, "unknown": unknown, "several": known + unknown + known, "empty": b"",
        "empty-frame": zstandard.ZstdCompressor().compress(b""), "cut": known[:-100], "cut-head": known[:3],
        "damaged": known[:3000] + bytes(64) + known[3064:], "followed": known + b"something else", "text": text,
    }  # fmt: skip
    for name, content in inputs.items():
        (tmp_path / name).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(MODULE), *(str(tmp_path / name) for name in inputs)],
        env={**os.environ, "LD_PRELOAD": str(LIBRARY)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name, (expected, told) in zip(inputs, json.loads(done.stdout), strict=True):
        assert told == expected, name
    assert json.loads(done.stdout)[0][0][0] == len(text)
