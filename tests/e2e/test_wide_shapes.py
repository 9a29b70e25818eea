"""Instances over several nodes of this machine: what `pdctl plan` prints is what runs, and answers stay the same."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl.engines.pdctl.engine_lines import ROWS
from tests import plain_http
from tests.e2e.conftest import ROOT, Deployment, wait_for
from tests.e2e.greedy import alone, answers, prompts
from tests.ports import free_block

MOE = ROOT / "pdctl" / "checkpoints" / "tiny-moe"
PLACED = re.compile(next(row.pattern for row in ROWS if row.id == "rank-placed"))
# Two nodes of one rank each, two attention groups that both need the other's half of every MLP.
SMALL = """
version: pdctl/v1
name: small
model: {path: tiny-moe}
engine: {args: {num-threads: 1, max-total-tokens: 8192}}
pools: {node: {gpus-per-host: 1}}
roles:
  prefill: {tp: 2, dp: 2, ep: 2}
  decode: {}
"""


def launched(home: Path, topology: str, name: str, nodes: int) -> Iterator[Deployment]:
    """`nodes` of the prefill, then one decode."""
    block = free_block(14 + 2 * nodes + 2)
    http, bootstrap, router, dist = block, block + nodes + 1, block + 2 * nodes + 1, block + 2 * nodes + 2
    words = [f"router.port={router}", f"ports.http={http}", f"ports.bootstrap={bootstrap}", f"ports.dist-init={dist}"]
    sets = [word for setting in words for word in ("--set", setting)]
    urls = [f"http://127.0.0.1:{port}" for port in (router, http, http + nodes)]
    deployment = Deployment(name, home, urls[0], (urls[1],), (urls[2],))
    try:
        deployment.pdctl("launch", topology, "-d", "--name", name, *sets, timeout=600)
        yield deployment
    finally:
        deployment.pdctl("down", name)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    home = tmp_path_factory.mktemp("small")
    (home / "small.yaml").write_text(SMALL)
    yield from launched(home, str(home / "small.yaml"), "small", 2)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from launched(tmp_path_factory.mktemp("wide"), "topologies/tp16dp8-two-nodes.yaml", "wide", 2)


def planned(deployment: Deployment, topology: str) -> dict[str, list[dict[str, object]]]:
    document = json.loads(deployment.pdctl("plan", topology, "-o", "json").stdout)
    return {one["name"]: one["ranks"] for one in document["instances"]}


def placed(deployment: Deployment) -> dict[str, list[dict[str, object]]]:
    """What every rank logged about itself, by instance, in the plan's order of ranks."""
    found: dict[str, list[dict[str, object]]] = {}
    for log in sorted((deployment.home / "runs" / deployment.name / "logs").glob("*.log")):
        cells = [match.groupdict() for match in PLACED.finditer(log.read_text())]
        if cells:
            instance = re.sub(r"-node\d+$", "", log.stem)
            found.setdefault(instance, []).extend(cells)
    for rows in found.values():
        rows.sort(key=lambda row: (int(str(row["node"])), int(str(row["pp"])), int(str(row["tp"]))))
    return found


# Key of the plan's document, and the word in a rank's log line.
CELLS = {
    "node": "node", "gpu": "gpu", "pp_rank": "pp", "tp_rank": "tp", "attn_dp_rank": "attn_dp",
    "attn_cp_rank": "attn_cp", "attn_tp_rank": "attn_tp", "moe_ep_rank": "ep", "moe_dp_rank": "moe_dp", "dp_rank": "dp",
}  # fmt: skip


def compare(deployment: Deployment, topology: str, ranks: dict[str, int]) -> None:
    plan, log = planned(deployment, topology), placed(deployment)
    assert {name: len(rows) for name, rows in log.items()} == ranks

    def cell(key: str, value: object) -> str:
        return "cpu" if key == "gpu" and value is None else str(value)

    for name, rows in plan.items():
        want = [{word: cell(key, row[key]) for key, word in CELLS.items()} for row in rows]
        assert log[name] == want, name


def same_answers(deployment: Deployment, count: int) -> None:
    inputs = prompts(count, 1280)
    expected = alone(MOE, inputs)
    got, _ = asyncio.run(answers(deployment.router, inputs, 8))
    different = [(len(ids), a, b) for ids, a, b in zip(inputs, expected, got, strict=True) if a != b]
    assert not different, f"{len(different)} of {count} answers differ: {different[:3]}"
    wait_for("idle pools", deployment.all_pages_free)


def test_two_nodes_are_what_the_plan_says(small: Deployment) -> None:
    compare(small, str(small.home / "small.yaml"), {"prefill-0": 2, "decode-0": 1})


def test_two_nodes_answer_like_one_rank(small: Deployment) -> None:
    same_answers(small, 12)


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_sixteen_ranks_are_what_the_plan_says(wide: Deployment) -> None:
    compare(wide, "topologies/tp16dp8-two-nodes.yaml", {"prefill-0": 16, "decode-0": 8})


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_sixteen_ranks_answer_like_one(wide: Deployment) -> None:
    same_answers(wide, 60)


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "shape",
    [
        "--tp-size 4 --attn-dp-size 2 --load-balance-method total_tokens",
        "--tp-size 2 --pp-size 2",
        "--tp-size 4 --attn-dp-size 2 --ep-size 4 --pp-size 2",
        "--tp-size 2 --dp-size 2 --load-balance-method total_requests",
    ],
)
def test_a_unified_engine_of_any_shape_answers_like_one_rank(shape: str, tmp_path: Path) -> None:
    port = free_block(1)
    words = ["--model-path", str(MOE), "--port", str(port), "--num-threads", "1", "--max-total-tokens", "8192"]
    with (tmp_path / "engine.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pdctl.engine", *words, *shape.split()],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for("engine", lambda: plain_http.get(f"{url}/health", timeout=30).status_code == 200, 300)
            inputs = prompts(40, 1280)
            got, _ = asyncio.run(answers(url, inputs, 8))
            assert got == alone(MOE, inputs)
        finally:
            process.terminate()
            assert process.wait(60) == 0
