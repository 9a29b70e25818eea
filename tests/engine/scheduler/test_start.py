"""What only a rank can find out about a start that fails: said in a line, by the rank and by its instance."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import pdctl
from tests.engine.frontend.conftest import running

TINY = Path(pdctl.__file__).parent / "checkpoints" / "tiny"


def test_weights_that_lack_a_tensor_are_told_without_a_traceback(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path, dirs_exist_ok=True)
    tensors = load_file(TINY / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with running(tmp_path, "--num-threads", "1", "--device", "cpu", module="pdctl.engine") as engine:
        assert engine.exit_code() == 1
        lacking = f"{tmp_path}: the weights hold no model.layers.1.mlp.up_proj.weight"
        assert f"] Start-up failed: {lacking}." in engine.wait_for("Start-up failed")
        assert f"Instance ends: rank TP0 cannot go on: {lacking}." in engine.wait_for("Instance ends")
        assert not any("Traceback" in line for line in engine.lines)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not limit address space")
def test_a_limit_of_address_space_is_told_without_a_traceback() -> None:
    """The pool alone is larger than the limit; all else has so much room that none of it fails first."""
    before = ("bash", "-c", 'ulimit -v 1800000; exec "$@"', "bash")
    pool = ("--max-total-tokens", "1000000")  # 2 GB
    with running(TINY, "--num-threads", "1", "--device", "cpu", *pool, module="pdctl.engine", before=before) as engine:
        assert engine.exit_code() in (1, 4)
        said = engine.wait_for("Start-up failed")
        assert "ulimit -v" in said
        assert not any("Traceback" in line for line in engine.lines)


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="becomes another user")
def test_a_limit_of_processes_is_told_without_a_traceback() -> None:
    before = (
        "prlimit", "--nproc=3", "setpriv", "--reuid", "54322", "--bounding-set", "-all,+dac_override", "--inh-caps",
        "+dac_override", "--ambient-caps", "+dac_override",
    )  # fmt: skip
    with running(TINY, "--num-threads", "1", "--device", "cpu", module="pdctl.engine", before=before) as engine:
        assert engine.exit_code() in (1, 4)
        assert any("no more threads or processes can be started" in line for line in engine.lines), engine.lines
        assert not any("Traceback" in line for line in engine.lines), engine.lines


def test_no_temporary_directory_is_told_without_a_traceback() -> None:
    before = ("bash", "-c", 'ulimit -f 0; exec "$@"', "bash")
    with running(TINY, "--num-threads", "1", "--device", "cpu", module="pdctl.engine", before=before) as engine:
        assert engine.exit_code() == 1
        said = engine.wait_for("cannot make a directory for sockets: No usable temporary directory found in")
        assert said.endswith("Set TMPDIR to a directory that can be written to: TMPDIR=DIR")
        assert not any("Traceback" in line for line in engine.lines)
