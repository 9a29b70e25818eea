"""`pdctl import` as it is called: the topology on stdout, notes on stderr, codes as compilers have them."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest

from tests.cli.verb import Verb, within

PAIR = """\
python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode prefill --port 30000 --tp $TP &
python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode decode --port 30001 &
python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://127.0.0.1:30000 \\
  --decode http://127.0.0.1:30001 --port 8000
"""


def pdctl(*argv: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return within(*argv, folder=cwd, stdin=stdin)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.sh").write_text(PAIR)
    return tmp_path


def test_the_topology_goes_to_stdout_and_notes_to_stderr(folder: Path) -> None:
    done = pdctl("import", "run.sh", cwd=folder)
    assert done.returncode == 0
    assert done.stdout.startswith("# Imported by pdctl from run.sh.\nversion: pdctl/v1\nname: run\n")
    assert done.stderr.splitlines() == [
        "run.sh:3: looks wrong: no bootstrap port for http://127.0.0.1:30000: the router sends null, and a decode puts "
        "its own in its place; pdctl gives the port",
        "run.sh:1: assumed: --tp $TP: taken as 1; give it with --var NAME=VALUE",
        "assumed: engine.traceable false, as here: with true, trace-room and doctor can follow every request",
        "assumed: engine.version: nobody says which release runs; the rules of 0.5.23 apply",
        "imported 1 prefill, 1 decode; 1 looks wrong, 3 assumed",
    ]


def test_what_it_prints_is_a_topology_for_the_other_verbs(folder: Path) -> None:
    made = pdctl("import", "-q", "--var", "TP=4", "-", cwd=folder, stdin=PAIR)
    assert (made.returncode, made.stderr) == (0, "")
    checked = pdctl("topology", "check", "-", cwd=folder, stdin=made.stdout)
    assert checked.stdout == "-: ok (1 prefill, 1 decode, sglang)\n"
    planned = pdctl("plan", "-", "-o", "shell", cwd=folder, stdin=made.stdout)
    assert "--tp-size 4" in planned.stdout


def test_a_file_is_written_once_and_overwritten_when_told(folder: Path) -> None:
    done = pdctl("import", "run.sh", "-o", "topology.yaml", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1].startswith("imported 1 prefill, 1 decode to topology.yaml; ")
    again = pdctl("import", "run.sh", "-o", "topology.yaml", cwd=folder)
    assert again.returncode == 2
    assert "topology.yaml exists already" in again.stderr
    assert pdctl("import", "run.sh", "-o", "topology.yaml", "--force", "--name", "chat", cwd=folder).returncode == 0
    assert "name: chat" in (folder / "topology.yaml").read_text()


def test_what_no_plan_can_run_is_told_by_the_exit_code_and_written_all_the_same(folder: Path) -> None:
    odd = PAIR.replace("--port 30000 --tp $TP", "--port 30000 --page-size 16").replace(
        "30001 &", "30001 --page-size 32 &"
    )
    done = pdctl("import", "-", "-q", cwd=folder, stdin=odd)
    assert (done.returncode, done.stderr) == (1, "")
    assert "page-size: 32" in done.stdout
    assert pdctl("plan", "-", cwd=folder, stdin=done.stdout).returncode == 1


@pytest.mark.parametrize("text", ["a: [1,\nb: {", "kind: Pod\n\tspec: 1\n", "services:\n  - [", "kind: Pod\na: 'b\n"])
def test_broken_yaml_is_told_in_the_words_of_the_other_verbs(text: str, folder: Path) -> None:
    (folder / "bad.yaml").write_text(text)
    told = [pdctl(*verb, "bad.yaml", cwd=folder) for verb in (("import",), ("plan",), ("doctor", "--static"))]
    assert {(done.returncode, done.stdout, done.stderr) for done in told} == {(2, "", told[1].stderr)}
    assert "\n --> bad.yaml:2" in told[0].stderr


def test_strict_is_a_code_for_scripts(folder: Path) -> None:
    assert pdctl("import", "run.sh", "--strict", cwd=folder).returncode == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("nothing.sh",), "nothing.sh cannot be read: no such file or directory"),
        (("run.sh", "--var", "TP"), "--var TP is no NAME=VALUE"),
        (("-", "-"), "standard input can be read once"),
        (("-",), "nothing in <stdin> starts an SGLang engine or a router"),
        (("run.sh", "-o", "no/such/folder/t.yaml"), "no/such/folder/t.yaml cannot be written"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(argv: tuple[str, ...], said: str, folder: Path) -> None:
    done = pdctl("import", *argv, cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr
    assert "fix: " in done.stderr


def test_a_full_disk_leaves_no_empty_file(folder: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can grow: what a full disk does, with another number (EFBIG)."""
    monkeypatch.chdir(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        code = verb("import", "run.sh", "-o", "made.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, "made.yaml cannot be written: file too large" in verb.err) == (2, True), verb.err
    assert [each.name for each in folder.glob("*made*")] == []
