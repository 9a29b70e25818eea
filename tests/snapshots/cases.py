"""The command lines whose output is kept. All read files of the repository alone: no network, no run, no host facts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ROOMS = "tests/data/rooms"
TOPOLOGIES = ("1p1d", "2p1d", "2p1d-decode-tp2", "deepseek-v3-wide", "qwen3-hetero", "sglang-2p1d-cpu", "slurm-2p1d",
              "tp16dp8-two-nodes")  # fmt: skip
VERBS = (
    "plan", "launch", "render", "doctor", "diagnose", "trace-room", "rooms", "ask", "status", "role-switch",
    "autoscale", "simulate", "logs", "down", "ls", "explain", "dialect", "import", "topology", "completion", "self",
)  # fmt: skip
# A recording of each kind of course, and a room of it that is worth a look.
RECORDINGS = (
    "1p1d-dp-attention-crash-debug-sgl058", "1p1d-page-size-debug-sgl0523", "1p1d-wrong-port-info-sgl0523",
    "2p1d-healthy-info-log-requests-sgl0523", "2p1d-missing-ports-info-sgl0522", "2p1d-prefill-killed-info-sgl0522",
    "2p1d-swapped-ports-info-log-requests-sgl0523", "pdctl-killed-decode", "pdctl-missing-bootstrap-port",
    "pdctl-slow-transfer",
)  # fmt: skip


class Case(NamedTuple):
    """`stdin`: a file of the repository that is fed in, "" for none."""

    name: str
    argv: tuple[str, ...]
    stdin: str = ""


def case(*argv: str, stdin: str = "") -> Case:
    words = " ".join(re.sub(r"^(topologies|tests/data/rooms|tests/data)/", "", word) for word in argv)
    return Case(re.sub(r"[^\w.=-]+", "_", words)[:110].strip("_"), argv, stdin)


def _helps() -> list[Case]:
    subs = {
        "dialect": ("show", "check", "flags", "env"),
        "topology": ("check", "show", "schema"),
        "render": ("kubernetes",),
        "autoscale": ("explain", "policies"),
    }
    found = [case("--help"), case("--version")]
    found += [case(verb, "--help") for verb in VERBS]
    return found + [case(verb, sub, "--help") for verb, each in subs.items() for sub in each]


def _planning() -> list[Case]:
    found = [case("plan", f"topologies/{name}.yaml") for name in TOPOLOGIES]
    found += [
        case("plan", f"topologies/{name}.yaml", "-o", form)
        for name in ("2p1d", "slurm-2p1d")
        for form in ("json", "yaml", "shell")
    ]
    found += [
        case("plan", "--tp", "16", "--dp", "8", "--decode-tp", "32", "--decode-dp", "32"),
        case("plan", "--tp", "8", "--dp", "3"),
        case("plan", "--tp", "4", "--sglang-version", "0.5.10", "-o", "json"),
        case("plan", "topologies/sglang-2p1d-cpu.yaml", "--set", "engine.version=0.5.9", "-o", "shell"),
        case("plan", "topologies/2p1d.yaml", "--set", "roles.decode.args.page-sise=3"),
        case("topology", "show", "topologies/2p1d.yaml"),
        case("topology", "check", "topologies/2p1d.yaml", "topologies/qwen3-hetero.yaml"),
        case("topology", "check", "-", stdin="tests/snapshots/files/wrong.yaml"),
        case("topology", "schema"),
        case("render", "kubernetes", "topologies/sglang-2p1d-cpu.yaml"),
        case("render", "kubernetes", "topologies/deepseek-v3-wide.yaml"),
        case("import", "tests/snapshots/files/run.sh"),
        case("import", "tests/snapshots/files/compose.yaml"),
    ]  # fmt: skip
    return found


def _findings() -> list[Case]:
    found = [
        case("doctor", "--static", "topologies/incidents/swapped-bootstrap-ports.yaml", "-o", form)
        for form in ("json", "jsonl", "sarif", "github", "junit")
    ]
    incidents = ("missing-bootstrap-port", "page-size-mismatch", "swapped-bootstrap-ports", "wrong-bootstrap-port")
    found += [case("doctor", "--static", f"topologies/incidents/{name}.yaml") for name in incidents]
    found += [
        case("doctor", "--static", "tests/snapshots/files/run.sh"),
        case("doctor", "--static", "tests/data/doctor/prefill-annotated.yaml", "-v"),
        case("doctor", "--list-checks"),
        case("explain", "PD7", "-o", "json"),
        case("explain", "PD201"),
        case("explain", "PD2", "*-mismatch"),
        case("explain", "PD999"),
    ]
    return found


def _logs() -> list[Case]:
    found = []
    for name in RECORDINGS:
        folder = f"{ROOMS}/{name}"
        found += [
            case("diagnose", folder), case("diagnose", folder, "-o", "json"),
            case("rooms", folder), case("rooms", folder, "-o", "json"),
            case("trace-room", "--last-failed", folder, "--no-index"),
        ]  # fmt: skip
    folder = f"{ROOMS}/pdctl-missing-bootstrap-port"
    found += [
        case("trace-room", "--last-failed", folder, "--no-index", "-o", form)
        for form in ("json", "jsonl", "mermaid", "perfetto", "html")
    ]
    found += [
        case("trace-room", "--slowest", "1", f"{ROOMS}/2p1d-healthy-info-log-requests-sgl0523", "--no-index"),
        case("trace-room", "12345", folder, "--no-index"),
        case("rooms", folder, "-o", "tsv"),
        case("dialect", "check", folder),
        case("dialect", "check", f"{ROOMS}/2p1d-missing-ports-info-sgl0522", "-o", "json"),
        case("dialect", "show", "sglang", "--version", "0.5.23", "--role", "prefill"),
        case("dialect", "show", "pdctl-router", "-o", "json"),
        case("dialect", "flags", "0.5.10"),
    ]  # fmt: skip
    return found


def _scaling() -> list[Case]:
    fleet = "tests/snapshots/files/fleet.json"
    explain = ("autoscale", "explain", "--observation")
    return [
        case("autoscale", "policies"), case("autoscale", "policies", "-o", "json"),
        case(*explain, fleet, "--policy", "blitz"), case(*explain, fleet, "--policy", "blitz", "-o", "json"),
        case(*explain, fleet, "--policy", "dynamo-load"), case(*explain, fleet, "--policy", "dynamo-throughput"),
        case(*explain, "-", "--policy", "kpa", stdin=fleet), case(*explain, "nowhere.json", "--policy", "static"),
    ]  # fmt: skip


def _mistakes() -> list[Case]:
    return [
        case("plann"), case("plan", "--tq", "4"), case("plan", "nowhere.yaml"), case("trace-room"),
        case("rooms", "nowhere"),
        case("status"), case("ls"), case("down", "blue"), case("logs"), case("doctor"), case("explain"),
        case("diagnose", "tests/snapshots/files/foreign.log"), case("completion", "bash"),
        case("dialect", "flags", "0.4.0"),
    ]  # fmt: skip


CASES: tuple[Case, ...] = (*_helps(), *_planning(), *_findings(), *_logs(), *_scaling(), *_mistakes())
