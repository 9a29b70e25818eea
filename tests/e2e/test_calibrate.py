"""A profile measured on a real deployment, and simulated with."""

from __future__ import annotations

import json
from pathlib import Path

from pdctl.simulation.cost_profile import read_profile
from tests.e2e.conftest import Deployment


def test_a_profile_is_measured_and_simulates(two_prefills: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    done = two_prefills.pdctl("simulate", "calibrate", "e2e", "--output-file", str(file))
    assert "decode: 32 rooms of" in done.stderr
    profile, base = read_profile(str(file)), read_profile("laptop")
    assert (profile.layers, profile.kv_bytes_per_token, profile.block_tokens) == (4, 2048, 16)
    assert profile.disk_bytes_per_s == base.disk_bytes_per_s, "what is not measured is that of the base"
    assert 1e-6 < profile.decode_step_s < 1
    assert profile.prefill_step_s + 512 * profile.prefill_token_s + 512 * 512 * profile.prefill_square_s > 1e-4
    text = file.read_text()
    assert text.index("decode_step_s") < text.index("# Not measured") < text.index("disk_bytes_per_s")
    words = ("--trace", "steady:rate=2,duration=10s,prompt=100,output=8", "--profile", str(file), "-o", "json")
    told = json.loads(two_prefills.pdctl("simulate", "2p1d", *words).stdout)
    assert told["policies"][0]["ttft_s"]["p50"] > profile.request_s
