"""A profile measured on a real deployment, and simulated with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pdctl.fleet.observations import Endpoint
from pdctl.layout.cost_profile import CostProfile, DecodeCosts, PrefillCosts, read_profile
from pdctl.simulation.calibration import CalibrationTarget, calibrate, write_profile
from tests.e2e.conftest import TINY, Deployment, start


def engines(deployment: Deployment) -> tuple[Endpoint, ...]:
    urls = [*(("prefill", url) for url in deployment.prefills), *(("decode", url) for url in deployment.decodes)]
    return tuple(Endpoint(f"{role}-{at}", role, url) for at, (role, url) in enumerate(urls))


def check(profile: CostProfile, text: str) -> None:
    base = read_profile("laptop")
    assert (profile.layers, profile.kv_bytes_per_token, profile.block_tokens) == (4, 2048, 16)
    assert profile.disk_bytes_per_s == base.disk_bytes_per_s, "what is not measured is that of the base"
    assert 1e-6 < profile.decode_step_s + profile.decode_room_s < 10
    assert profile.prefill_step_s + 512 * profile.prefill_token_s + 512 * 512 * profile.prefill_square_s > 1e-4
    assert text.index("decode_step_s") < text.index("# Not measured") < text.index("disk_bytes_per_s")


def test_a_profile_is_measured_and_can_be_read(two_prefills: Deployment, tmp_path: Path) -> None:
    target = CalibrationTarget(
        two_prefills.router, engines(two_prefills), str(TINY), answer_within_s=200.0, longest=256, most_rooms=2
    )
    told: list[str] = []
    found = calibrate(target, read_profile("laptop"), 1, told.append)
    assert told[-1].startswith("decode: 2 rooms of 128 tokens")
    text = write_profile(found, two_prefills.name)
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    check(read_profile(str(file)), text)


@pytest.mark.heavy
def test_the_verb_measures_a_run_and_a_simulation_takes_its_profile(two_prefills: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    done = two_prefills.pdctl(
        "simulate", "calibrate", "e2e", "--output-file", str(file), "--timeout", "5m", timeout=900
    )
    assert "decode: 32 rooms of" in done.stderr
    profile = read_profile(str(file))
    check(profile, file.read_text())
    words = ("--trace", "steady:rate=2,duration=10s,prompt=100,output=8", "--profile", str(file), "-o", "json")
    told = json.loads(two_prefills.pdctl("simulate", "2p1d", *words).stdout)
    assert told["policies"][0]["ttft_s"]["p50"] > profile.request_s


@pytest.mark.heavy
def test_a_calibration_finds_the_pace_of_a_run_again(tmp_path: Path) -> None:
    pace = {
        **dataclasses.asdict(read_profile("laptop")),
        "prefill_step_s": 0.1,
        "prefill_token_s": 1e-3,
        "prefill_square_s": 5e-7,
        "decode_step_s": 0.1,
        "decode_room_s": 0.02,
        "decode_token_s": 5e-5,
    }
    file = tmp_path / "pace.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in pace.items()))
    run = start(tmp_path, "paced", "topologies/1p1d.yaml", 1, "--set", f"engine.pace={file}")
    try:
        target = CalibrationTarget(
            run.router, engines(run), str(TINY), answer_within_s=300.0, longest=1024, most_rooms=8
        )
        found = calibrate(target, read_profile("laptop"), 1, lambda _: None)
    finally:
        run.pdctl("down", run.name)
    given, measured = read_profile(str(file)), found.profile
    # What passes of these sizes take, not the coefficients: several of them may be near the same fit.
    for tokens in (64, 256, 1024):
        costs = [PrefillCosts.of(one).of_passes(-(-tokens // 512), tokens, tokens**2) for one in (given, measured)]
        assert costs[1] == pytest.approx(costs[0], rel=0.1)
    for rooms, tokens in ((1, 64), (4, 1024), (8, 4096)):
        costs = [DecodeCosts.of(one).of_step(rooms, tokens) for one in (given, measured)]
        assert costs[1] == pytest.approx(costs[0], rel=0.1)
    assert found.error["prefill"] < 0.1
