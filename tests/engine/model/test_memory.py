"""Huge pages are really asked for, and a user's own choice is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.engine.scheduler.__main__ import SWITCH, prefer_huge_pages

ALLOCATE = """
import os, re
from pathlib import Path
from pdctl.engine.scheduler.__main__ import prefer_huge_pages
prefer_huge_pages(os.environ)
import torch
tensor = torch.ones(8 << 20)
flags = {}
for line in Path("/proc/self/smaps").read_text().splitlines():
    if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
        start, end = (int(bound, 16) for bound in bounds.groups())
    elif line.startswith("VmFlags:") and start <= tensor.data_ptr() + (4 << 20) < end:
        print("hg" in line.split())
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this kernel has no transparent huge pages"
)
def test_a_large_tensor_is_marked_for_huge_pages() -> None:
    done = subprocess.run([sys.executable, "-c", ALLOCATE], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "True"


def test_a_users_choice_is_kept() -> None:
    environ = {SWITCH: "0"}
    prefer_huge_pages(environ)
    assert environ == {SWITCH: "0"}
