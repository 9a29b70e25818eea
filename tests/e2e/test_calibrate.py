"""A profile measured on a real deployment, and simulated with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdctl.fleet.observations import Endpoint
from pdctl.layout.cost_profile import CostProfile, read_profile
from pdctl.simulation.calibration import CalibrationTarget, calibrate, write_profile
from tests.e2e.conftest import TINY, Deployment


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
