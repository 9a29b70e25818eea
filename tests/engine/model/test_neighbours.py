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
# Every kind of attention, cache layout and MLP; by default the oldest processor is given one of each attention.
SOME = (
    "llama-mha-dim20-page1", "llama-mqa-llama3-rope-page64", "qwen3-qk-norm-mha-page3", "mistral-window-over-pages",
    "gpt-oss-window-within-a-page", "qwen2-moe-shared-expert-gate", "deepseek2-groups-yarn", "deepseek3-noaux",
)  # fmt: skip
FEW = ("llama-mha-dim20-page1", "mistral-window-over-pages", "qwen2-moe-shared-expert-gate", "deepseek2-groups-yarn")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("neighbours")
    for case in CASES:
        if case.name in SOME:
            make_peer(case, directory / case.name)
    return directory


@pytest.mark.parametrize(
    ("features", "models"),
    # By default as the processor is, and as the oldest: `-m heavy` for those between.
    [
        (FEATURES[0], SOME),
        (FEATURES[1], FEW),
        *(pytest.param(one, SOME, marks=pytest.mark.heavy) for one in FEATURES[1:]),
    ],
    ids=lambda value: " ".join(value.values()) or "as it is" if isinstance(value, dict) else f"{len(value)} models",
)
def test_rows_do_not_depend_on_neighbours_place_or_threads(
    checkpoints: Path, features: dict[str, str], models: tuple[str, ...]
) -> None:
    reason = lacks(features)
    if reason:
        pytest.skip(reason)
    if not features:  # this process is one of those: torch is loaded here already
        some = [case for case in CASES if case.name in models]
        assert [line for case in some for line in differences(case, checkpoints / case.name)] == []
        return
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engine.model.neighbours", str(checkpoints), *models],
        env=environment(features), cwd=ROOT, capture_output=True, text=True, timeout=WITHIN, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert found["capability"].lower() == features.get("ATEN_CPU_CAPABILITY", found["capability"]).lower()
    assert not found["differences"], "\n".join(found["differences"])
