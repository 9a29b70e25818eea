"""One prefill and one decode answer as one engine does, on processors that have less than this one.

By default tests/e2e/ asks that of the processor as it is, and tests/engine/model/test_neighbours.py what equal answers
follow from, of the oldest: a row's bits depend on nothing around it. The whole matrix is `python -m
tests.engine.equality`.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.engine.equality.instances import ROOT
from tests.engine.features import FEATURES, environment, lacks

PROMPTS = 24
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("model", "features"),
    [
        pytest.param("mla", FEATURES[1], id="oldest"),
        pytest.param("gqa", FEATURES[2], id="older"),
    ],
)
def test_a_pair_answers_as_one_engine(model: str, features: dict[str, str]) -> None:
    if reason := lacks(features):
        pytest.skip(reason)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "tests.engine.equality", "--models", model, "--backends", "shm"),
            *("--prefills", "tp1", "--decodes", "tp1", "--prompts", str(PROMPTS)),
        ],
        env=environment(features), cwd=ROOT, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert "1 pairs, 1 equal in every token, 0 not" in ran.stdout
