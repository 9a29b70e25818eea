"""`pdctl render kubernetes` as a user types it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pdctl.cli import exits

TOPOLOGY = """
version: pdctl/v1
name: qwen
model: {path: Qwen/Qwen3-32B}
engine: {kind: sglang, version: 0.5.23, env: {GLOO_SOCKET_IFNAME: eth0, NCCL_SOCKET_IFNAME: eth0}}
roles:
  prefill: {instances: 2, tp: 2, page-size: 64}
  decode: {instances: 2, tp: 2, page-size: 64}
transfer: {backend: nixl}
router: {kind: sglang-router}
targets:
  kubernetes: {image: "lmsysorg/sglang:v0.5.23", rdma-resource: {rdma/ib: 1}}
"""
KINDS = {"disaggregatedset": "DisaggregatedSet", "rbg": "RoleBasedGroup", "lws": "LeaderWorkerSet"}

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "qwen.yaml"
    path.write_text(TOPOLOGY)
    return str(path)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """A run in this process: exit code, standard output, standard error."""

    def said(*argv: str) -> tuple[int, str, str]:
        code = 0
        try:
            exits.run(argv)
        except SystemExit as left:
            code = int(left.code or 0)
        return (code, *capsys.readouterr())

    return said


def test_a_stream_of_objects_on_stdout_and_warnings_elsewhere(say: Say, file: str) -> None:
    code, out, err = say("render", "kubernetes", file)
    assert code == 0
    kinds = [each["kind"] for each in yaml.safe_load_all(out)]
    assert kinds[-1] == "DisaggregatedSet"
    assert kinds.count("Service") == 5
    assert all(line.startswith("warning: ") for line in err.splitlines())


@pytest.mark.parametrize(("flavour", "kind"), list(KINDS.items()))
def test_a_file_to_each_object(say: Say, file: str, tmp_path: Path, flavour: str, kind: str) -> None:
    code, out, err = say("render", "kubernetes", file, "--flavour", flavour, "-o", str(tmp_path / "out"))
    assert (code, out) == (0, "")
    found = {path.name: yaml.safe_load(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert f"{len(found)} files in" in err
    assert kind in {each["kind"] for each in found.values()}
    assert all(name == f"{each['kind'].lower()}-{each['metadata']['name']}.yaml" for name, each in found.items())


@pytest.mark.parametrize("flavour", KINDS)
def test_doctor_finds_nothing_wrong_with_it(say: Say, file: str, tmp_path: Path, flavour: str) -> None:
    (tmp_path / "manifest.yaml").write_text(say("render", "kubernetes", file, "--flavour", flavour)[1])
    code, said, _ = say("doctor", str(tmp_path / "manifest.yaml"), "--static", "--fail-on", "warning")
    assert code == 0, said


def test_addresses_have_one_drawback_which_is_said(say: Say, file: str, tmp_path: Path) -> None:
    """A prefill that is replaced behind its name: PD211."""
    _, out, err = say("render", "kubernetes", file, "--set", "targets.kubernetes.discovery=urls")
    assert "decodes keep the rank addresses of a prefill that is replaced behind its name" in err
    (tmp_path / "manifest.yaml").write_text(out)
    code, said, _ = say(
        "doctor", str(tmp_path / "manifest.yaml"), "--static", "--fail-on", "warning", "--ignore", "PD211"
    )
    assert code == 0, said


def test_launch_shows_what_it_would_apply(say: Say, file: str) -> None:
    rendered = say("render", "kubernetes", file)[1]
    code, out, _ = say("launch", file, "-t", "kubernetes", "--dry-run")
    assert (code, out) == (0, rendered)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--kubernetes-version", "1.20"], "no schemas of Kubernetes 1.20"),
        (["--set", "targets.kubernetes.image=x:latest"], "x:latest is not pinned"),
        (["--set", "name=" + "q" * 40], f"DisaggregatedSet {'q' * 40}: metadata.name: "),
        (["--set", "roles.decode.tp=3", "--set", "roles.decode.dp=1", "--set", "roles.decode.ep=2"], "ep"),
        (["-o", "/dev/null/here"], "/dev/null"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(say: Say, file: str, argv: list[str], said: str) -> None:
    code, out, err = say("render", "kubernetes", file, *argv)
    assert code in (1, 2)
    assert out == ""
    assert said in err
    assert "Traceback" not in err
