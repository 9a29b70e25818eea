"""What a verb loads. Time is measured in tests/bench/startup.py; the gate is the list of modules."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.cases import for_each

FORBIDDEN = {"torch", "nixl", "nixl_cu12", "fastapi", "uvicorn", "pydantic", "numpy", "zmq", "msgspec", "transformers"}
PROBE = """
import json, sys
sys.argv = ["pdctl", *json.loads(sys.argv[1])]
from pdctl.__main__ import main
try:
    main()
except SystemExit:
    pass
sys.stderr.write("\\nMODULES " + json.dumps(sorted(sys.modules)))
"""


def loaded(*argv: str, env: dict[str, str] | None = None) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(argv)], capture_output=True, text=True, timeout=60, check=True, env=env
    )
    return set(json.loads(done.stderr.rsplit("MODULES ", 1)[1]))


@for_each(
    "argv",
    [
        ("--help",),
        ("plan", "--tp", "16", "--dp", "8"),
        ("plan", "topologies/2p1d.yaml"),
        ("launch", "topologies/2p1d.yaml", "--dry-run"),
        ("ls",),
        ("status", "no-such-run"),
        ("down", "no-such-run"),
        ("logs", "no-such-run"),
        ("topology", "check", "topologies/2p1d.yaml"),
        ("autoscale", "explain", "--policy", "blitz", "--observation", "tests/snapshots/files/fleet.json"),
        ("simulate", "2p1d", "--trace", "steady:rate=1,duration=5"),
    ],
    ids=" ".join,
)
def test_no_ops_verb_loads_the_engine(argv: tuple[str, ...]) -> None:
    roots = {name.split(".")[0] for name in loaded(*argv)}
    assert not roots & FORBIDDEN


@for_each(
    "argv",
    [
        ("--version",),
        ("plan", "topologies/2p1d.yaml"),
        ("topology", "check", "topologies/2p1d.yaml"),
        ("launch", "topologies/2p1d.yaml", "--dry-run"),
        ("ls",),
        ("autoscale", "explain", "--policy", "blitz", "--observation", "tests/snapshots/files/fleet.json"),
        ("simulate", "2p1d", "--trace", "steady:rate=1,duration=5"),
    ],
    ids=" ".join,
)
def test_what_asks_nobody_and_redraws_nothing_loads_no_library_for_it(argv: tuple[str, ...]) -> None:
    assert not {name.split(".")[0] for name in loaded(*argv)} & {"rich", "httpx", "h11", "typer", "click", "plotly"}


def test_asking_over_http_loads_h11_and_no_other_http_library() -> None:
    """Importing httpx alone would cost more than the question."""
    probe = """
import sys
from pdctl.fleet import http_client
assert not http_client.get("http://127.0.0.1:1").reached
libraries = {"h11", "httpx", "httpcore", "http", "urllib3", "asyncio", "ssl", "email", "rich", "click"}
print(*{name.split(".")[0] for name in sys.modules} & libraries)
"""
    assert subprocess.check_output([sys.executable, "-c", probe], text=True, timeout=60) == "h11\n"


def test_version_loads_next_to_nothing() -> None:
    """Bare Python loads about 30 modules; the version must not pay for a command-line library."""
    modules = loaded("--version")
    assert "typer" not in modules
    assert len(modules) < 60


def test_plan_stays_lean() -> None:
    modules = loaded("plan", "--tp", "16", "--dp", "8")
    assert not {name.split(".")[0] for name in modules} & {"rich", "httpx", "h11", "yaml", "asyncio", "http"}
    assert len(modules) < 140
