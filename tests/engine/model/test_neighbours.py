"""A row's bits do not depend on its neighbours, its place or the threads, whatever features the processor has.

The libraries choose their kernels by the processor they find; a process can be told to find less of one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.features import FEATURES, environment, lacks
from tests.engine.model.neighbours import differences
from tests.engine.model.peers import CASES, make_peer

ROOT = Path(__file__).resolve().parents[3]
WITHIN = 300.0
pytestmark = pytest.mark.timeout(600)  # two minutes here under load, most of them imports
# Every kind of attention, cache layout and MLP.
SOME = (
    "llama-mha-dim20-page1", "llama-mqa-llama3-rope-page64", "qwen3-qk-norm-mha-page3", "mistral-window-over-pages",
    "gpt-oss-window-within-a-page", "qwen2-moe-shared-expert-gate", "deepseek2-groups-yarn", "deepseek3-noaux",
)  # fmt: skip


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("neighbours")
    for case in CASES:
        if case.name in SOME:
            make_peer(case, directory / case.name)
    return directory


@pytest.mark.parametrize(
    "features",
    # By default as the processor is, and as the oldest: `-m heavy` for those between.
    [pytest.param(one, marks=[pytest.mark.heavy] if at > 1 else []) for at, one in enumerate(FEATURES)],
    ids=lambda features: " ".join(features.values()) or "as it is",
)
def test_rows_do_not_depend_on_neighbours_place_or_threads(checkpoints: Path, features: dict[str, str]) -> None:
    reason = lacks(features)
    if reason:
        pytest.skip(reason)
    if not features:  # this process is one of those: torch is loaded here already
        some = [case for case in CASES if case.name in SOME]
        assert [line for case in some for line in differences(case, checkpoints / case.name)] == []
        return
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engine.model.neighbours", str(checkpoints), *SOME],
        env=environment(features), cwd=ROOT, capture_output=True, text=True, timeout=WITHIN, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert found["capability"].lower() == features.get("ATEN_CPU_CAPABILITY", found["capability"]).lower()
    assert not found["differences"], "\n".join(found["differences"])
