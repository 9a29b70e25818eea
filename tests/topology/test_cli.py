from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pdctl.cli import exits

from .conftest import ROOT, Write


def run(*argv: str) -> int:
    """The exit code of `pdctl argv`, in this process."""
    try:
        exits.run(list(argv))
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_check_says_ok_on_stdout(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    path = write("roles: {prefill: {instances: 2}, decode: {}}")
    assert run("topology", "check", str(path), "2p1d") == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"{path}: ok (2 prefill, 1 decode, embedded)",
        f"{ROOT / 'topologies' / '2p1d.yaml'}: ok (2 prefill, 1 decode, embedded)",
    ]
    assert said.err == ""


def test_check_lists_the_problems_of_all_files(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    one, two = write("nmae: x", "one.yaml"), write("router: {port: 0}", "two.yaml")
    assert run("topology", "check", str(one), str(two)) == 2
    said = capsys.readouterr().out
    assert f"--> {one}:2:1" in said
    assert f"--> {two}:2:16" in said
    assert said.endswith("2 problems\n")


@pytest.mark.parametrize("sets", [[], ["--set", "router.port=0"]])
def test_check_answers_in_json_with_the_same_code(
    capsys: pytest.CaptureFixture[str], write: Write, sets: list[str]
) -> None:
    path = str(write())
    code = run("topology", "check", path, *sets, "-o", "json")
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "pdctl.diagnostics/1"
    assert (code, len(document["diagnostics"])) == ((2, 1) if sets else (0, 0))
    if sets:
        assert document["diagnostics"][0] == {
            "code": "out-of-range",
            "message": "router.port expects a whole number from 1 to 65535, got 0",
            "help": "",
            "spans": [{"file": "--set", "line": 1, "column": 13, "end_column": 14, "label": ""}],
        }


def test_overlays_and_sets_reach_show(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    overlay = write("router: {port: 8100}", "o.yaml", bare=True)
    assert (
        run(
            "topology",
            "show",
            str(write()),
            "-F",
            str(overlay),
            "--set",
            "roles.decode.tp=2",
            "--set",
            "roles.prefill.tp=2",
        )
        == 0
    )
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["router"]["port"], shown["roles"]["decode"]["tp"]) == (8100, 2)


def test_show_in_json_carries_its_schema(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    assert run("topology", "show", str(write()), "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "pdctl.topology/1"
    assert document["topology"]["readiness"]["timeout"] == "30m"


def test_a_bad_topology_goes_to_stderr_of_any_other_verb(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    path = write("router: {prot: 1}")
    assert run("topology", "show", str(path)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "did you mean `port`?" in said.err
    assert said.err.endswith(f"error: 1 problem in {path}\n")


def test_schema_prints_the_schema_and_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topology", "schema") == 0
    assert json.loads(capsys.readouterr().out)["$id"] == "pdctl/v1"
    assert run("topology", "schema", "-o", "markdown") == 0
    assert capsys.readouterr().out.startswith("## Fields\n")


def test_a_file_from_a_pipe() -> None:
    text = "version: pdctl/v1\nroles: {prefill: {}, decode: {}}\n"
    command = [sys.executable, "-m", "pdctl", "topology", "check", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "-: ok (1 prefill, 1 decode, embedded)\n")


def test_loading_a_topology_loads_no_heavy_module() -> None:
    code = (
        "import sys; from pathlib import Path; from pdctl.topology.resolve import load;"
        f"load([Path({str(ROOT / 'topologies' / 'deepseek-v3-wide.yaml')!r})]);"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    heavy = {
        "asyncio",
        "http",
        "rich",
        "pydantic",
        "numpy",
        "torch",
        "typer",
        "dataclasses",
        "json",
        "decimal",
        "difflib",
    }
    assert not loaded & heavy
    assert Path(ROOT / "pdctl").is_dir()
