"""What SGLang reads from the environment, numbers no instance can have, and profiles that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

import pdctl
from pdctl.engine.config.engine_flags import parse


def test_sglangs_variable_says_how_many_threads() -> None:
    argv = ["--model-path", str(Path(pdctl.__file__).parent / "checkpoints" / "tiny")]
    assert parse(argv, {}).disaggregation_transfer_threads == 0
    assert parse(argv, {"SGLANG_DISAGGREGATION_QUEUE_SIZE": "4"}).disaggregation_transfer_threads == 4
    with pytest.raises(SystemExit):
        parse([*argv, "--disaggregation-transfer-threads", "-1"], {})


def test_a_pace_that_is_no_profile_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--model-path", str(Path(pdctl.__file__).parent / "checkpoints" / "tiny")]
    assert parse([*argv, "--pace", "gpu-8b"], {}).pace == "gpu-8b"
    broken, short = tmp_path / "broken.yaml", tmp_path / "short.yaml"
    broken.write_text("layers: [1\n")
    short.write_text("layers: 4\n")
    for name, words in (
        ("gpu8b", "--pace: there is no profile 'gpu8b'; did you mean `gpu-8b`?"),
        (str(tmp_path / "missing.yaml"), "there is no file"),
        (str(broken), f"--pace: {broken}: "),
        (str(short), f"--pace: {short}: `prefill_step_s` is missing; add it"),
    ):
        with pytest.raises(SystemExit):
            parse([*argv, "--pace", name], {})
        assert words in capsys.readouterr().err.splitlines()[-1]
