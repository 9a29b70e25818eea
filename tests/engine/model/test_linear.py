"""Both forms of a product give the same numbers, and packing is used where this torch can do it."""

from __future__ import annotations

import pytest
import torch

from pdctl.engine.model.linear import FEWEST_ROWS, PackedLinear, PlainLinear, can_pack, make_linear

CPU = torch.device("cpu")
needs_packing = pytest.mark.skipif(not can_pack(torch.float32), reason="this torch cannot pack weights for oneDNN")


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("kind", [PlainLinear, pytest.param(PackedLinear, marks=needs_packing)])
@pytest.mark.parametrize("rows", [FEWEST_ROWS, 5, 33])
def test_products(kind: type[PlainLinear] | type[PackedLinear], rows: int) -> None:
    weight, bias, x, residual = values(48, 40), values(48), values(rows, 40), values(rows, 48)
    with torch.inference_mode():
        assert torch.allclose(kind(weight, bias).product(x), x @ weight.t() + bias, atol=1e-5)
        assert torch.allclose(kind(weight, None).product(x), x @ weight.t(), atol=1e-5)
        assert torch.allclose(kind(weight, None).add_product(residual, x), residual + x @ weight.t(), atol=1e-5)


@needs_packing
@pytest.mark.parametrize("shape", [(512, 128), (640, 128), (128, 320), (1024, 128), (512, 1408), (2816, 512)])
def test_a_packed_row_does_not_depend_on_its_neighbours(shape: tuple[int, int]) -> None:
    linear, rows = PackedLinear(values(*shape), None), values(64, shape[1])
    with torch.inference_mode():
        together = linear.product(rows)
        for count in (FEWEST_ROWS, 3, 4, 5, 7, 32, 64):
            assert torch.equal(linear.product(rows[:count]), together[:count])


@needs_packing
def test_float32_on_a_cpu_is_packed() -> None:
    assert isinstance(make_linear(values(8, 8), torch.float32, CPU), PackedLinear)


def test_a_dtype_without_packing_falls_back() -> None:
    assert not can_pack(torch.float64)
    linear = make_linear(values(8, 8), torch.float64, CPU)
    assert isinstance(linear, PlainLinear)
    assert linear.product(values(2, 8).double()).dtype == torch.float64
