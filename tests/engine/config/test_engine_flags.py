"""What SGLang reads from the environment, and numbers no instance can have."""

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
