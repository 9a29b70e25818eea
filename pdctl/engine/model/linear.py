"""Matrix products with a checkpoint's weights, in the form that is fastest where the model runs.

On a CPU with oneDNN the weights are packed once at load. Against torch.mm, with weights that come from memory, that is
1.6 to 1.9 times as fast at 8 to 32 rows and 1.1 times at 256 (docs/performance.md), and a row's result does not depend
on how many rows share the product: which batch a request is in does not change its answer.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F

# Callers pad to this many rows: oneDNN's kernel for a single row adds in another order where a weight is wide, from two
# rows on the order is the same however many there are. More padding costs time (4 rows take 1.1 times as long as 2).
FEWEST_ROWS = 2


class Linear(Protocol):
    """A weight [out, in], perhaps with a bias, that rows [n, in] are multiplied with; n is at least FEWEST_ROWS."""

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """rows @ weight.T + bias: [n, out]."""

    def add_product(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """residual + rows @ weight.T + bias."""


def make_linear(
    weight: torch.Tensor, dtype: torch.dtype, device: torch.device, bias: torch.Tensor | None = None
) -> Linear:
    """Place `weight` for products of `dtype` rows on `device`; `weight` itself can be freed afterwards."""
    weight = weight.to(device=device, dtype=dtype)
    bias = None if bias is None else bias.to(device=device, dtype=dtype)
    if device.type == "cpu" and can_pack(dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


class PlainLinear:
    """Transposed, [in, out]: few rows are multiplied faster that way by every BLAS measured."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight.t().contiguous()
        self._bias = bias

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        if self._bias is None:
            return rows @ self._weight
        return torch.addmm(self._bias, rows, self._weight)

    def add_product(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        result = torch.addmm(residual, rows, self._weight)
        return result if self._bias is None else result.add_(self._bias)


class PackedLinear:
    """In oneDNN's own blocked order, through the operators torch.compile uses for frozen weights."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = _onednn()._reorder_linear_weight(weight.contiguous())
        self._bias = bias
        self._product = _onednn()._linear_pointwise.default
        self._add = _onednn()._linear_pointwise.binary

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._product(rows, self._weight, self._bias, "none", [], "")
        return result

    def add_product(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._add(rows, residual, self._weight, self._bias, "add")
        return result


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch packs weights for oneDNN and then multiplies right: tried, not guessed."""
    weight = torch.linspace(-1, 1, 24 * 16).view(24, 16).to(dtype)
    rows = torch.linspace(-1, 1, 3 * 16).view(3, 16).to(dtype)
    residual = torch.ones(3, 24, dtype=dtype)
    try:
        with torch.inference_mode():
            got = PackedLinear(weight, None).add_product(residual, rows)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    expected = F.linear(rows.float(), weight.float()) + 1
    return torch.allclose(got.float(), expected, rtol=0.02, atol=0.02)


def _onednn() -> Any:  # noqa: ANN401 (operators registered at run time)
    return torch.ops.mkldnn
