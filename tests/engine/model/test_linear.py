"""Both forms of a product give the same numbers, each row alike whatever is beside it; packing is used where it can."""

from __future__ import annotations

import pytest
import torch

from pdctl.engine.model.linear import FEWEST_ROWS, CheckedLinear, PackedLinear, PlainLinear, can_pack, make_linear
from tests.cases import for_each

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


SHAPES = [(512, 128), (101, 48), (640, 128), (128, 320), (512, 1408), (512, 1536), (8, 64)]


@for_each("kind", [PlainLinear, pytest.param(PackedLinear, marks=needs_packing)])
@for_each("shape", SHAPES)
def test_a_row_does_not_depend_on_its_neighbours_nor_on_threads(
    kind: type[PlainLinear] | type[PackedLinear], shape: tuple[int, int]
) -> None:
    """MKL's own products, which a PlainLinear makes here, do depend on both: the check has to find that out."""
    linear, rows, before = CheckedLinear(kind(values(*shape), None)), values(544, shape[1]), torch.get_num_threads()
    with torch.inference_mode():
        pairs = torch.cat([linear.product(rows[at : at + FEWEST_ROWS].clone()) for at in range(0, 64, FEWEST_ROWS)])
        try:
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)
                for count in (FEWEST_ROWS, 3, 5, 8, 12, 28, 64, 272, 544):
                    got = linear.product(rows[:count].clone())
                    assert got.shape == (count, shape[0])
                    assert torch.equal(got[:64], pairs[:count])
                    assert torch.equal(linear.add_product(torch.ones_like(got), rows[:count].clone()), got + 1)
        finally:
            torch.set_num_threads(before)


@needs_packing
def test_float32_on_a_cpu_is_packed() -> None:
    assert type(make_linear(values(8, 8), torch.float32, CPU)._linear) is PackedLinear


def test_a_dtype_without_packing_falls_back() -> None:
    assert not can_pack(torch.float64)
    linear = make_linear(values(8, 8), torch.float64, CPU)
    assert type(linear._linear) is PlainLinear
    assert linear.product(values(2, 8).double()).dtype == torch.float64
