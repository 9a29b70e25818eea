from __future__ import annotations

import pytest

from pdctl.layout.model_config import load
from pdctl.layout.shape import Shape
from pdctl.layout.transfer_bill import Nics, bill, seconds, used, windowed_bytes, wire_bytes
from pdctl.layout.workload import ratio
from tests.cases import for_each

from .conftest import MODELS

GBPS = 10**9
ONE = Shape()


@for_each(
    ("name", "size", "milliseconds"),
    [
        ("llama-3-8b", 536_870_912, (171.8, 42.95, 10.74, 1.34)),
        ("qwen3-32b", 1_073_741_824, (343.6, 85.90, 21.47, 2.68)),
        ("deepseek-v3", 287_834_112, (92.1, 23.03, 5.76, 0.72)),
        ("gpt-oss-120b", 301_989_888, (96.6, 24.16, 6.04, 0.75)),
    ],
)
def test_4096_tokens_at_line_rate(name: str, size: int, milliseconds: tuple[float, ...]) -> None:
    model = load(MODELS / name)
    assert wire_bytes(model, ONE, ONE, 4096, 2) == (size, 1)
    for speed, wanted in zip((25, 100, 400, 3200), milliseconds, strict=True):
        assert seconds(size, speed * GBPS, 1.0) * 1e3 == pytest.approx(wanted, abs=0.05 if wanted > 90 else 0.006)


def test_sliding_windows_move_less() -> None:
    model = load(MODELS / "gpt-oss-120b")
    assert windowed_bytes(model, 4096, 2) == 4096 * 36_864 + 4_718_592
    assert windowed_bytes(model, 64, 2) == 64 * 73_728


@for_each(
    ("name", "prefill", "decode", "copies"),
    [
        ("deepseek-v3", Shape(tp=16, dp=8), Shape(tp=32, dp=32), 1),
        ("deepseek-v3", Shape(tp=8), Shape(tp=8), 8),
        ("llama-3-8b", Shape(tp=8), Shape(tp=8), 1),
        ("llama-3-8b", Shape(tp=4), Shape(tp=8), 1),
        ("llama-3-8b", Shape(tp=8), Shape(tp=16), 2),
        ("llama-3-8b", Shape(tp=16), Shape(tp=4), 2),
        ("llama-3-8b", Shape(tp=4, pp=2), Shape(tp=4), 1),
    ],
)
def test_copies_on_the_wire(name: str, prefill: Shape, decode: Shape, copies: int) -> None:
    model = load(MODELS / name)
    size, found = wire_bytes(model, prefill, decode, 100, 2)
    assert found == copies
    assert size == copies * wire_bytes(model, ONE, ONE, 100, 2)[0]


def test_each_gpu_reaches_its_share_of_the_nics() -> None:
    eight = Nics(400 * GBPS, 8, 1)
    assert [used(eight, ranks, 8) for ranks in (1, 2, 8)] == [1, 2, 8]
    assert [used(Nics(400 * GBPS, 1, 1), ranks, 8) for ranks in (1, 8)] == [1, 1]


def test_the_slower_side_sets_the_time() -> None:
    model = load(MODELS / "qwen3-32b")
    found = bill(
        model,
        Shape(tp=2, gpus_per_host=4),
        Shape(tp=4),
        isl=3000,
        page_size=64,
        itemsize=2,
        nics=(Nics(100 * GBPS, 1, 2), Nics(400 * GBPS, 8, 1)),
        rate=8,
        ttft=1.5,
    )
    assert found.tokens == 3008
    assert found.bytes_per_request == 3008 * 262_144
    assert (found.nics, found.bits_per_second) == (1, 100 * GBPS)
    assert found.seconds == pytest.approx(3008 * 262_144 * 8 / (0.8 * 100 * GBPS))
    assert found.line_rate_seconds == pytest.approx(found.seconds * 0.8)
    assert found.required_bits_per_second == 3008 * 262_144 * 8 * 8
    assert found.available_bits_per_second == pytest.approx(2 * 100 * GBPS * 0.8)
    assert found.share_of_ttft == pytest.approx(found.seconds / 1.5)


def test_without_a_nic_only_bytes() -> None:
    found = bill(load(MODELS / "llama-3-8b"), ONE, ONE, isl=100, page_size=16, itemsize=2)
    assert (found.tokens, found.seconds, found.nics, found.required_bits_per_second) == (112, None, None, None)


def test_instances_a_workload_needs() -> None:
    found = ratio(rate=20, isl=4000, osl=500, prefill_rate=40_000, tpot=0.020, batch=64, have=(3, 4))
    assert found.prefill == pytest.approx(2.22, abs=0.005)
    assert found.concurrency == pytest.approx(200)
    assert found.decode == pytest.approx(3.40, abs=0.005)
    assert found.instances == (3, 4)
    assert found.bottleneck == "decode"


def test_what_is_not_known_is_not_reckoned() -> None:
    found = ratio(rate=20, isl=4000, osl=500, hit=0.5, have=(2, 1))
    assert (found.prefill, found.decode, found.concurrency, found.bottleneck) == (None, None, None, None)
    assert found.prefill_rate_needed == pytest.approx(20 * 4000 * 0.5 / (2 * 0.9))
