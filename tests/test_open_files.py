"""A process says that its file descriptors run out before they have, and again only after they had not."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import contextlib, logging, os, resource, sys
from pdctl import open_files
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout, level=logging.INFO)
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
watch, held = open_files.OpenFilesWatch(logging.getLogger()), []
watch.look()
for _ in range(2):
    with contextlib.suppress(OSError):
        while len(held) < int(sys.argv[1]):
            held.append(os.dup(0))
    watch.look()
    watch.look()
    while held:
        os.close(held.pop())
    watch.look()
    watch.look()
print(open_files.raise_limit(200), open_files.limit())
"""


def said(held: int, hard: int = 300) -> list[str]:
    limited = ["bash", "-c", f'ulimit -n {hard}; exec "$@"', "bash", sys.executable, "-c", CODE, str(held)]
    done = subprocess.run(limited, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def test_it_warns_once_each_time() -> None:
    high, low, again, over, last = said(held=55)
    assert high.startswith("WARNING 5")
    assert "of this process's 64 file descriptors are open" in high
    assert low.startswith("INFO ")
    assert (again, over) == (high, low)
    assert last == "200 200"


def test_it_warns_where_none_is_left() -> None:
    assert "WARNING 64 of this process's 64 file descriptors are open" in said(held=1000)[0]


def test_a_process_far_from_its_limit_says_nothing() -> None:
    assert said(held=20) == ["200 200"]


def test_the_hard_limit_is_the_end() -> None:
    assert said(held=20, hard=100) == ["100 100"]
